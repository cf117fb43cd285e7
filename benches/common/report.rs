//! What a benchmark says: [`Report`], a table for people and JSON for a later comparison.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::Options;
use super::child::program;
use super::comparison::comparison;
use super::figure::{Against, Figure, FigureOf, text};
use super::process::peak_memory;
use super::spread::Spread;

/// The figures of a benchmark. Times say something about this machine at this moment; ratios to a
/// baseline of the same run are what can be compared.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    bench: String,
    version: String,
    /// The program that was measured, where a part of the benchmark is the program itself.
    #[serde(default)]
    program: String,
    cpus: usize,
    load_before: String,
    load_after: String,
    rows: Vec<Figure>,
    /// What a reader of the figures has to know.
    #[serde(default)]
    notes: Vec<String>,
    #[serde(skip)]
    printed: usize,
}

impl Report {
    /// An empty report.
    pub fn new(bench: &str) -> Self {
        if cfg!(debug_assertions) {
            eprintln!("warning: not an optimised build: what is measured in this program is slow");
        }
        Self {
            bench: bench.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: program().to_string_lossy().into_owned(),
            cpus: available_parallelism().map_or(1, usize::from),
            load_before: load(),
            load_after: String::new(),
            rows: Vec::new(),
            notes: Vec::new(),
            printed: 0,
        }
    }

    /// One that was written as JSON.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report = serde_json::from_slice(&text);
        report.with_context(|| format!("{} is no report of a benchmark", path.display()))
    }

    /// The figures.
    pub fn figures(&self) -> &[Figure] {
        &self.rows
    }

    /// Something that a reader of the figures has to know.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        eprintln!("{note}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A figure of which there is nothing to compare.
    pub fn figure(&mut self, case: &str, figure: &str, unit: &str, values: &[f64]) -> &mut Figure {
        self.push(case, figure, unit, values, None)
    }

    /// A figure beside that of a baseline, measured in turns; the ratio is ours to the baseline's.
    pub fn compare(
        &mut self,
        case: &str,
        figure: &str,
        unit: &str,
        values: &[f64],
        (baseline, of_baseline): (&str, &[f64]),
    ) -> &mut Figure {
        let value = Spread::of(of_baseline.iter().copied());
        let against = Against {
            baseline: baseline.to_owned(),
            value,
            ratio: Spread::of_ratios(values, of_baseline),
        };
        self.push(case, figure, unit, values, Some(against))
    }

    /// A figure of several measurements, beside that of a baseline unless there are none of it.
    pub fn measured<T>(
        &mut self,
        case: &str,
        (figure, unit, of): FigureOf<T>,
        ours: &[T],
        (baseline, theirs): (&str, &[T]),
    ) -> &mut Figure {
        let values = |all: &[T]| all.iter().map(of).collect::<Vec<f64>>();
        match theirs {
            [] => self.figure(case, figure, unit, &values(ours)),
            _ => {
                let against = (baseline, &*values(theirs));
                self.compare(case, figure, unit, &values(ours), against)
            }
        }
    }

    fn push(
        &mut self,
        case: &str,
        figure: &str,
        unit: &str,
        values: &[f64],
        against: Option<Against>,
    ) -> &mut Figure {
        let place = self.rows.len();
        self.rows.push(Figure {
            case: case.to_owned(),
            figure: figure.to_owned(),
            unit: unit.to_owned(),
            value: Spread::of(values.iter().copied()),
            values: values.to_vec(),
            against,
            goal: None,
        });
        &mut self.rows[place]
    }

    /// Prints the table, writes the JSON where the options say so, and compares with an earlier one.
    pub fn finish(mut self, options: &Options) -> anyhow::Result<()> {
        // Read first: it may be the file that is written.
        let earlier = options.against.as_deref().map(Self::read).transpose()?;
        self.save(options)?;
        for note in &self.notes {
            println!("{note}");
        }
        println!(
            "{} CPUs, load {} before and {} after",
            self.cpus, self.load_before, self.load_after
        );
        // A process begins with the peak of the one that starts it.
        println!(
            "no process that was started here can show less memory than {:.0} MB",
            millions(peak_memory(std::process::id())? as f64)
        );
        if let Some(earlier) = earlier {
            println!("\n{}", comparison(&earlier, &self));
        }
        Ok(())
    }

    /// Prints what there is since it was last printed, and writes all of it: a measurement may take hours.
    pub fn save(&mut self, options: &Options) -> anyhow::Result<()> {
        self.load_after = load();
        let since = self.rows.get(self.printed..).unwrap_or_default();
        if !since.is_empty() {
            println!("{}\n", table(since));
        }
        self.printed = self.rows.len();
        if let Some(path) = &options.json {
            let json = serde_json::to_vec_pretty(&self)?;
            fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn table(rows: &[Figure]) -> Table {
    let mut table = Table::new();
    let header = [
        "case",
        "figure",
        "unit",
        "median (min..max)",
        "baseline",
        "median (min..max)",
        "ratio (min..max)",
        "goal",
    ];
    table.load_preset(presets::NOTHING).set_header(header);
    for row in rows {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        let against = row.against.as_ref();
        let baseline = against.map_or("", |against| &against.baseline);
        let of = |of: fn(&Against) -> Spread| against.map(of).map(text).unwrap_or_default();
        table.add_row([
            Cell::new(&row.case),
            Cell::new(&row.figure),
            Cell::new(&row.unit),
            right(text(row.value)),
            Cell::new(baseline),
            right(of(|against| against.value)),
            right(of(|against| against.ratio)),
            Cell::new(row.verdict()),
        ]);
    }
    table
}

/// Load averages of 1, 5 and 15 minutes.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Thousands of something.
pub fn thousands(value: f64) -> f64 {
    value / 1e3
}

/// Millions of something.
pub fn millions(value: f64) -> f64 {
    value / 1e6
}
