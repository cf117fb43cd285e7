//! One figure of a report, with its [`Spread`], its baseline and its [`Goal`]; and the figures of two reports side by
//! side.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::report::Report;

/// Name and unit of a figure, and how it is computed.
pub type FigureOf<'a, T> = (&'static str, &'static str, &'a dyn Fn(&T) -> f64);

/// A figure of a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    pub case: String,
    pub figure: String,
    pub unit: String,
    pub value: Spread,
    pub values: Vec<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
}

/// What a figure is compared with, in the same run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Against {
    pub baseline: String,
    pub value: Spread,
    pub ratio: Spread,
}

impl Figure {
    /// Sets its goal.
    pub fn goal(&mut self, goal: Goal) {
        self.goal = Some(goal);
    }

    /// Returns what is equal for the same figure of two runs.
    pub fn key(&self) -> (&str, &str, Option<&str>) {
        let against = self.against.as_ref();
        let baseline = against.map(|against| against.baseline.as_str());
        (&self.case, &self.figure, baseline)
    }

    /// Returns the goal and whether it is met; nothing without a goal.
    pub fn verdict(&self) -> String {
        let ratio = self.against.as_ref().map(|against| against.ratio.median);
        let verdict = |goal: Goal| goal.verdict(self.value.median, ratio);
        self.goal.map(verdict).unwrap_or_default()
    }
}

/// Formats median, smallest and largest.
pub fn text(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if min == max {
        return number(median);
    }
    format!("{} ({}..{})", number(median), number(min), number(max))
}

/// Formats a number with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Median, smallest and largest of several measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Middle measurement, or the mean of the two middle ones.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; zeros if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        Self {
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            min: at(0),
            max: at(last),
        }
    }

    /// The spread of the ratios of `ours` to `baseline`, pair by pair: the measurements of a pair follow each other, so
    /// other load on the machine affects both.
    pub fn of_ratios(ours: &[f64], baseline: &[f64]) -> Self {
        Self::of(
            ours.iter()
                .zip(baseline)
                .map(|(ours, baseline)| ours / baseline),
        )
    }
}

/// A bound of a figure, or of its ratio to the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// The figure is no smaller.
    AtLeast(f64),
    /// The figure is no larger.
    AtMost(f64),
    /// Its ratio to the baseline is no smaller.
    RatioAtLeast(f64),
    /// Its ratio to the baseline is no larger.
    RatioAtMost(f64),
}

impl Goal {
    /// Returns the goal and whether these medians meet it. A missing ratio meets none.
    pub fn verdict(self, value: f64, ratio: Option<f64>) -> String {
        let (sign, bound, of, is_met) = match self {
            Self::AtLeast(bound) => (">=", bound, "", value >= bound),
            Self::AtMost(bound) => ("<=", bound, "", value <= bound),
            Self::RatioAtLeast(bound) => (">=", bound, "x", ratio.is_some_and(|r| r >= bound)),
            Self::RatioAtMost(bound) => ("<=", bound, "x", ratio.is_some_and(|r| r <= bound)),
        };
        let verdict = if is_met { "met" } else { "missed" };
        format!("{sign} {bound}{of}: {verdict}")
    }
}

/// Compares each figure with that of an earlier report, and their ratios to the baseline, if there is one: other load
/// affects a figure and its baseline.
pub fn comparison(earlier: &Report, now: &Report) -> Table {
    let mut table = Table::new();
    let header = [
        "case",
        "figure",
        "unit",
        "earlier",
        "now",
        "now / earlier",
        "to baseline",
        "earlier",
        "now",
        "now / earlier",
    ];
    table.load_preset(presets::NOTHING).set_header(header);
    for figure in now.figures() {
        let before = earlier.figures().iter().find(|e| e.key() == figure.key());
        table.add_row(cells(before, figure));
    }
    table
}

fn cells(before: Option<&Figure>, now: &Figure) -> Vec<Cell> {
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let ratio = |figure: &Figure| figure.against.as_ref().map(|against| against.ratio);
    let (value_before, ratio_before) = (before.map(|b| b.value), before.and_then(ratio));
    let mut cells = vec![
        Cell::new(&now.case),
        Cell::new(&now.figure),
        Cell::new(&now.unit),
        right(value_before.map(text).unwrap_or_default()),
        right(text(now.value)),
        right(change(value_before, Some(now.value))),
    ];
    if let Some(against) = &now.against {
        cells.extend([
            Cell::new(&against.baseline),
            right(ratio_before.map(text).unwrap_or_default()),
            right(text(against.ratio)),
            right(change(ratio_before, Some(against.ratio))),
        ]);
    }
    cells
}

/// The ratio of the medians, if there are two.
fn change(before: Option<Spread>, now: Option<Spread>) -> String {
    match (before, now) {
        (Some(before), Some(now)) if before.median != 0.0 => number(now.median / before.median),
        _ => String::new(),
    }
}
