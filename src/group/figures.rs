//! Figures of samples and their statistics, as Python computes them, under NeMo RL's names.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::SampleFacts;
use crate::python::Compensated;

/// Metrics by name.
#[derive(Default)]
pub(super) struct Metrics(pub(super) Map<String, Value>);

impl Metrics {
    pub(super) fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Adds mean, extremes, median, deviation and values of the figures of all samples.
    pub(super) fn spread<F: Figure>(&mut self, name: &str, figures: &[F]) {
        self.spread_over(name, figures, figures.len());
    }

    /// The same where not every one of the samples has a figure. The mean is over all of them.
    pub(super) fn spread_over<F: Figure>(&mut self, name: &str, figures: &[F], samples: usize) {
        let ordered = sorted(figures);
        self.put(&format!("{name}/mean"), sum(figures) / samples as f64);
        self.put(&format!("{name}/max"), value(ordered.last()));
        self.put(&format!("{name}/min"), value(ordered.first()));
        self.put(&format!("{name}/median"), median(&ordered));
        self.put(&format!("{name}/stddev"), deviation(figures));
        self.put(&format!("{name}/histogram"), list(figures));
    }

    pub(super) fn turn_percentiles(&mut self, turns: &[u64]) {
        self.put("turns_per_sample/p95", percentile(turns, 95));
        self.put("turns_per_sample/p99", percentile(turns, 99));
    }

    /// Adds the longest generations of samples.
    pub(super) fn longest_generations(&mut self, longest: &[u64]) {
        self.put("max_gen_tokens_per_turn/max", longest.iter().max().copied());
        self.put("max_gen_tokens_per_turn/mean", mean(longest));
        self.put("max_gen_tokens_per_turn/p95", percentile(longest, 95));
    }

    /// Adds the tokens of each worker and of each turn.
    pub(super) fn turn_lengths(&mut self, samples: &[&SampleFacts]) {
        self.put("per_worker_token_counts", per_worker(samples));
        for (name, lengths) in [
            ("gen", SampleFacts::gen_tokens as fn(&SampleFacts) -> &[u64]),
            ("input", |sample| &sample.turn_input_tokens),
            ("total", |sample| &sample.turn_total_tokens),
        ] {
            let all: Vec<u64> = samples
                .iter()
                .flat_map(|sample| lengths(sample))
                .copied()
                .collect();
            self.put(&format!("histogram/{name}_tokens_length"), list(&all));
        }
    }
}

/// Returns a number or boolean.
pub(super) fn number(value: &Value) -> Option<f64> {
    let boolean = value.as_bool().map(|value| f64::from(u8::from(value)));
    boolean.or_else(|| value.as_f64())
}

/// A figure of a sample. Integers stay integers in extremes and medians.
pub(super) trait Figure: Copy + PartialOrd + Into<Value> {
    fn as_f64(self) -> f64;
}

impl Figure for u64 {
    fn as_f64(self) -> f64 {
        self as f64
    }
}

impl Figure for f64 {
    fn as_f64(self) -> f64 {
        self
    }
}

fn sorted<F: Figure>(figures: &[F]) -> Vec<F> {
    let mut ordered = figures.to_vec();
    ordered.sort_by(|a, b| a.as_f64().total_cmp(&b.as_f64()));
    ordered
}

fn value<F: Figure>(figure: Option<&F>) -> Value {
    figure.map_or(Value::Null, |figure| (*figure).into())
}

pub(super) fn sum<F: Figure>(figures: &[F]) -> f64 {
    let sum: Compensated = figures.iter().map(|figure| figure.as_f64()).collect();
    sum.total()
}

pub(super) fn mean<F: Figure>(figures: &[F]) -> f64 {
    sum(figures) / figures.len() as f64
}

fn list<F: Figure>(figures: &[F]) -> Value {
    figures.iter().map(|figure| (*figure).into()).collect()
}

fn median<F: Figure>(ordered: &[F]) -> Value {
    let upper = ordered.len() / 2;
    if ordered.len() % 2 == 1 {
        return value(ordered.get(upper));
    }
    match (
        upper.checked_sub(1).and_then(|lower| ordered.get(lower)),
        ordered.get(upper),
    ) {
        (Some(a), Some(b)) => ((a.as_f64() + b.as_f64()) / 2.0).into(),
        _ => Value::Null,
    }
}

fn deviation<F: Figure>(figures: &[F]) -> Value {
    let (Some(first), true) = (figures.first(), figures.len() > 1) else {
        return Value::Null;
    };
    let largest = figures
        .iter()
        .fold(0.0, |a: f64, b| a.max(b.as_f64().abs()));
    if largest == 0.0 {
        return 0.0.into();
    }
    // By a power of two, so that nothing is rounded, and neither differences nor squares overflow or vanish.
    let unit = largest
        .log2()
        .floor()
        .min(f64::from(f64::MAX_EXP - 1))
        .exp2();
    // Equal figures must have a deviation of exactly 0, which the rounding of their mean could spoil.
    let shifted = || {
        let scaled = figures.iter().map(|figure| figure.as_f64() / unit);
        scaled.map(|figure| figure - first.as_f64() / unit)
    };
    let mean = shifted().sum::<f64>() / figures.len() as f64;
    let squares = shifted().map(|figure| (figure - mean).powi(2));
    let variance = squares.sum::<f64>() / (figures.len() - 1) as f64;
    (unit * variance.sqrt()).into()
}

/// Returns the percentile of figures, without interpolation.
pub(super) fn percentile(figures: &[u64], hundredths: usize) -> Value {
    let ordered = sorted(figures);
    let index = (ordered.len() * hundredths / 100).min(ordered.len().saturating_sub(1));
    let figure = ordered.get(index).map(|figure| *figure as f64);
    figure
        .and_then(Number::from_f64)
        .map_or(Value::Null, Value::Number)
}

fn per_worker(samples: &[&SampleFacts]) -> Value {
    let mut sums = BTreeMap::<&str, u64>::new();
    let workers = samples
        .iter()
        .flat_map(|sample| &sample.per_worker_token_counts);
    for (worker, tokens) in workers {
        let sum = sums.entry(worker).or_default();
        *sum = sum.saturating_add(*tokens);
    }
    sums.into_iter()
        .map(|(worker, tokens)| (worker.to_owned(), Value::from(tokens)))
        .collect()
}
