//! How figures grow with the size of what is measured: [`Growth`].

use std::collections::BTreeMap;

use super::figure::{Goal, Spread};
use super::report::Report;

/// Sizes that an exponent needs.
const SIZES: usize = 3;

/// The largest exponents: of memory, which hardly grows, and of time.
const OF_MEMORY: f64 = 0.1;
const OF_TIME: f64 = 1.05;

/// Medians of figures by size.
#[derive(Debug, Default)]
pub struct Growth {
    points: BTreeMap<String, Vec<(f64, f64)>>,
}

impl Growth {
    /// Adds a figure at a size.
    pub fn add(&mut self, figure: &str, size: usize, values: &[f64]) {
        let median = Spread::of(values.iter().copied()).median;
        let points = self.points.entry(figure.to_owned()).or_default();
        points.push((size as f64, median));
    }

    /// Reports the exponent of each figure that was measured at three sizes or more.
    pub fn report(&self, case: &str, report: &mut Report) {
        for (figure, points) in &self.points {
            if let Some(exponent) = exponent(points) {
                let is_memory = figure.ends_with("memory");
                let most = if is_memory { OF_MEMORY } else { OF_TIME };
                let figure = format!("{figure}, exponent");
                let reported = report.figure(case, &figure, "", &[exponent]);
                reported.goal(Goal::AtMost(most));
            }
        }
    }
}

/// Slope of the logarithms by least squares.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logs: Vec<(f64, f64)> = points
        .iter()
        .filter(|(size, figure)| *size > 0.0 && *figure > 0.0)
        .map(|(size, figure)| (size.ln(), figure.ln()))
        .collect();
    if logs.len() < SIZES {
        return None;
    }
    let count = logs.len() as f64;
    let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / count;
    let covariance: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (variance > 0.0).then(|| covariance / variance)
}
