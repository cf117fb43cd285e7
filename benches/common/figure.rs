//! One figure of a report, beside its baseline and its goal: [`Figure`].

use serde::{Deserialize, Serialize};

use super::goal::Goal;
use super::spread::Spread;

/// Name and unit of a figure, and how it is worked out.
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
    /// Says what it ought to be.
    pub fn goal(&mut self, goal: Goal) {
        self.goal = Some(goal);
    }

    /// The same figure of two runs has the same key.
    pub fn key(&self) -> (&str, &str, Option<&str>) {
        let against = self.against.as_ref();
        let baseline = against.map(|against| against.baseline.as_str());
        (&self.case, &self.figure, baseline)
    }

    /// The goal, and whether it is met; nothing where there is none.
    pub fn verdict(&self) -> String {
        let ratio = self.against.as_ref().map(|against| against.ratio.median);
        let verdict = |goal: Goal| goal.verdict(self.value.median, ratio);
        self.goal.map(verdict).unwrap_or_default()
    }
}

/// Median, smallest and largest as text.
pub fn text(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    match min == max {
        true => number(median),
        false => format!("{} ({}..{})", number(median), number(min), number(max)),
    }
}

/// Three digits that count.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
