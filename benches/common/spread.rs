//! Several measurements of one thing: [`Spread`].

use serde::{Deserialize, Serialize};

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

    /// The spread of the ratios of `ours` to `baseline`, measurement by measurement: each pair was
    /// taken one right after the other, so that what else the machine does touches both.
    pub fn of_ratios(ours: &[f64], baseline: &[f64]) -> Self {
        Self::of(
            ours.iter()
                .zip(baseline)
                .map(|(ours, baseline)| ours / baseline),
        )
    }
}
