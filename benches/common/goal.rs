//! What a figure ought to be: [`Goal`].

use serde::{Deserialize, Serialize};

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
    /// The goal, and whether these medians reach it; a ratio that is missing reaches none.
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
