//! The report of a benchmark: [`Report`], a table for people and JSON for a later comparison; and the [`Options`] that
//! every benchmark has.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::Context;
use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::figure::{Against, Figure, FigureOf, Spread, comparison, text};
use super::process::{peak_memory, program};

/// The figures of a benchmark. Times depend on the machine and the moment; ratios to a
/// baseline of the same run can be compared.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    bench: String,
    version: String,
    /// The program that was measured, if it is not part of the benchmark.
    #[serde(default)]
    program: String,
    cpus: usize,
    load_before: String,
    load_after: String,
    rows: Vec<Figure>,
    /// What a reader of the figures must know.
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

    /// Reads a report that was written as JSON.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report = serde_json::from_slice(&text);
        report.with_context(|| format!("{} is no report of a benchmark", path.display()))
    }

    /// The figures.
    pub fn figures(&self) -> &[Figure] {
        &self.rows
    }

    /// Adds something that a reader of the figures must know.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        eprintln!("{note}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a figure without a baseline.
    pub fn figure(&mut self, case: &str, figure: &str, unit: &str, values: &[f64]) -> &mut Figure {
        self.push(case, figure, unit, values, None)
    }

    /// Adds a figure and that of a baseline, measured in turns. The ratio is ours to the baseline's.
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

    /// Adds a figure of several measurements, and that of a baseline if it was measured.
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

    /// Prints the table, writes the JSON, and compares with an earlier report, as the options say.
    pub fn finish(mut self, options: &Options) -> anyhow::Result<()> {
        // Read first: it may be the file to write.
        let earlier = options.against.as_deref().map(Self::read).transpose()?;
        self.save(options)?;
        for note in &self.notes {
            println!("{note}");
        }
        println!(
            "{} CPUs, load {} before and {} after",
            self.cpus, self.load_before, self.load_after
        );
        // A process starts with the peak of its parent.
        println!(
            "no process that was started here can show less memory than {:.0} MB",
            millions(peak_memory(std::process::id())? as f64)
        );
        if let Some(earlier) = earlier {
            println!("\n{}", comparison(&earlier, &self));
        }
        Ok(())
    }

    /// Prints the figures since the last call, and writes all of them: a measurement may take hours.
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

/// How much is measured, and where the figures go.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Write the figures to this file as JSON, to be compared with those of another run
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
    /// Print each figure beside that of an earlier run, from the JSON that it wrote
    #[arg(long, value_name = "FILE", global = true)]
    pub against: Option<PathBuf>,
    /// Measure little and quickly: a trial of the benchmark, not of the program
    #[arg(long, global = true)]
    pub quick: bool,
    /// How often each cell is measured, alternating with its baseline [default: 5; 2 with --quick]
    #[arg(long, value_name = "N", global = true)]
    pub repeats: Option<usize>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true, global = true)]
    pub bench: bool,
}

impl Options {
    /// How often each cell is measured.
    pub fn repeats(&self) -> usize {
        self.repeats_or(if self.quick { 2 } else { 5 })
    }

    /// How often a cell that takes minutes is measured.
    pub fn repeats_or(&self, default: usize) -> usize {
        self.repeats.unwrap_or(default).max(1)
    }
}
