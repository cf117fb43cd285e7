//! What a benchmark says: [`Report`], a table for people and JSON for a later comparison.

use std::fs;
use std::thread::available_parallelism;

use anyhow::Context;
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::Options;
use super::spread::Spread;

/// The figures of a benchmark. Times say something about this machine at this moment; ratios to a
/// baseline of the same run are what can be compared.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    version: &'static str,
    cpus: usize,
    load_before: String,
    load_after: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    case: String,
    figure: String,
    unit: &'static str,
    value: Spread,
    values: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

#[derive(Debug, Serialize)]
struct Against {
    baseline: &'static str,
    value: Spread,
    ratio: Spread,
}

impl Report {
    /// An empty report.
    pub fn new(bench: &'static str) -> Self {
        Self {
            bench,
            version: env!("CARGO_PKG_VERSION"),
            cpus: available_parallelism().map_or(1, usize::from),
            load_before: load(),
            load_after: String::new(),
            rows: Vec::new(),
        }
    }

    /// A figure of which there is nothing to compare.
    pub fn figure(&mut self, case: &str, figure: &str, unit: &'static str, values: &[f64]) {
        self.push(case, figure, unit, values, None);
    }

    /// A figure beside that of a baseline, measured in turns; the ratio is ours to the baseline's.
    pub fn compare(
        &mut self,
        case: &str,
        figure: &str,
        unit: &'static str,
        values: &[f64],
        (baseline, of_baseline): (&'static str, &[f64]),
    ) {
        let value = Spread::of(of_baseline.iter().copied());
        let against = Against {
            baseline,
            value,
            ratio: Spread::of_ratios(values, of_baseline),
        };
        self.push(case, figure, unit, values, Some(against));
    }

    fn push(
        &mut self,
        case: &str,
        figure: &str,
        unit: &'static str,
        values: &[f64],
        against: Option<Against>,
    ) {
        let value = Spread::of(values.iter().copied());
        let (case, figure, values) = (case.to_owned(), figure.to_owned(), values.to_vec());
        self.rows.push(Row {
            case,
            figure,
            unit,
            value,
            values,
            against,
        });
    }

    /// Prints the table, and writes the JSON where the options say so.
    pub fn finish(mut self, options: &Options) -> anyhow::Result<()> {
        self.load_after = load();
        let mut table = Table::new();
        let header = [
            "case",
            "figure",
            "unit",
            "median (min..max)",
            "baseline",
            "median (min..max)",
            "ratio (min..max)",
        ];
        table.load_preset(presets::NOTHING).set_header(header);
        for row in &self.rows {
            let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            let mut cells = vec![
                Cell::new(&row.case),
                Cell::new(&row.figure),
                Cell::new(row.unit),
                right(text(row.value)),
            ];
            if let Some(Against {
                baseline,
                value,
                ratio,
            }) = &row.against
            {
                cells.extend([
                    Cell::new(baseline),
                    right(text(*value)),
                    right(text(*ratio)),
                ]);
            }
            table.add_row(cells);
        }
        println!("{table}");
        println!(
            "{} CPUs, load {} before and {} after",
            self.cpus, self.load_before, self.load_after
        );
        if let Some(path) = &options.json {
            let json = serde_json::to_vec_pretty(&self)?;
            fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Load averages of 1, 5 and 15 minutes.
fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace()
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

fn text(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    format!("{} ({}..{})", number(median), number(min), number(max))
}

/// Three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Thousands of something.
pub fn thousands(value: f64) -> f64 {
    value / 1e3
}

/// Millions of something.
pub fn millions(value: f64) -> f64 {
    value / 1e6
}
