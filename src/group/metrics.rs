use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::SampleFacts;

/// What NeMo RL says of a group of samples, under its names and in its order. Rates are between 0 and
/// 1. A standard deviation is that of a sample, and null where there is only one. Empty for no samples.
pub fn group_metrics(samples: &[SampleFacts]) -> Map<String, Value> {
    let mut metrics = Map::new();
    if samples.is_empty() {
        return metrics;
    }
    let counts =
        |count: fn(&SampleFacts) -> u64| -> Vec<u64> { samples.iter().map(count).collect() };
    let rewards: Vec<f64> = samples.iter().map(|sample| sample.reward).collect();
    let turns = counts(|sample| sample.turn_count);
    let generated = counts(|sample| sample.assistant_tokens);
    let longest = counts(|sample| sample.turn_gen_tokens.iter().copied().max().unwrap_or(0));
    let rate = |holds: fn(&SampleFacts) -> bool| {
        let count = samples.iter().filter(|sample| holds(sample)).count();
        Value::from(count as f64 / samples.len() as f64)
    };
    let of_turns = |lengths: fn(&SampleFacts) -> &[u64]| -> Value {
        let all = samples.iter().flat_map(lengths).copied();
        all.map(Value::from).collect()
    };

    let mut put = |name: &str, value: Value| metrics.insert(name.to_owned(), value);
    describe(&mut put, "total_reward", &rewards);
    put("total_turns", turns.iter().sum::<u64>().into());
    describe(&mut put, "turns_per_sample", &turns);
    put("turns_per_sample/p95", percentile(&turns, 95));
    put("turns_per_sample/p99", percentile(&turns, 99));
    describe(
        &mut put,
        "total_tokens_per_sample",
        &counts(|sample| sample.total_tokens),
    );
    describe(&mut put, "gen_tokens_per_sample", &generated);
    describe(
        &mut put,
        "env_tokens_per_sample",
        &counts(|sample| sample.env_tokens),
    );
    put(
        "max_gen_tokens_per_turn/max",
        extreme(&sorted(&longest), true),
    );
    put("max_gen_tokens_per_turn/mean", mean(&longest).into());
    put("max_gen_tokens_per_turn/p95", percentile(&longest, 95));
    put("truncation_rate", rate(|sample| sample.truncated));
    put("natural_termination_rate", rate(|sample| sample.terminated));
    put(
        "max_turns_reached_rate",
        rate(|sample| sample.max_turns_reached),
    );
    put("per_worker_token_counts", per_worker(samples));
    put(
        "histogram/gen_tokens_length",
        of_turns(|sample| &sample.turn_gen_tokens),
    );
    put(
        "histogram/input_tokens_length",
        of_turns(|sample| &sample.turn_input_tokens),
    );
    put(
        "histogram/total_tokens_length",
        of_turns(|sample| &sample.turn_total_tokens),
    );
    put("mean_gen_tokens_per_sample", mean(&generated).into());
    metrics
}

/// A figure of a sample: a count stays an integer where it is given as it is.
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

pub(super) fn describe<F: Figure>(
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
    name: &str,
    figures: &[F],
) {
    let ordered = sorted(figures);
    let mut put = |what: &str, value| put(&format!("{name}/{what}"), value);
    put("mean", mean(figures).into());
    put("max", extreme(&ordered, true));
    put("min", extreme(&ordered, false));
    put("median", median(&ordered));
    put("stddev", deviation(figures));
}

fn sorted<F: Figure>(figures: &[F]) -> Vec<F> {
    let mut ordered = figures.to_vec();
    ordered.sort_by(|a, b| a.as_f64().total_cmp(&b.as_f64()));
    ordered
}

fn mean<F: Figure>(figures: &[F]) -> f64 {
    let sum: f64 = figures.iter().map(|figure| figure.as_f64()).sum();
    sum / figures.len() as f64
}

fn extreme<F: Figure>(ordered: &[F], largest: bool) -> Value {
    let figure = match largest {
        true => ordered.last(),
        false => ordered.first(),
    };
    figure.map_or(Value::Null, |figure| (*figure).into())
}

fn median<F: Figure>(ordered: &[F]) -> Value {
    let upper = ordered.len() / 2;
    let at = |index: usize| ordered.get(index).copied();
    if ordered.len() % 2 == 1 {
        return at(upper).map_or(Value::Null, Into::into);
    }
    match (at(upper.wrapping_sub(1)), at(upper)) {
        (Some(a), Some(b)) => ((a.as_f64() + b.as_f64()) / 2.0).into(),
        _ => Value::Null,
    }
}

fn deviation<F: Figure>(figures: &[F]) -> Value {
    if figures.len() < 2 {
        return Value::Null;
    }
    let mean = mean(figures);
    let squares: f64 = figures
        .iter()
        .map(|figure| (figure.as_f64() - mean).powi(2))
        .sum();
    (squares / (figures.len() - 1) as f64).sqrt().into()
}

/// The figure that this part of them, in hundredths, does not reach; nothing is interpolated.
fn percentile(figures: &[u64], hundredths: usize) -> Value {
    let ordered = sorted(figures);
    let index = (ordered.len() * hundredths / 100).min(ordered.len().saturating_sub(1));
    let figure = ordered.get(index).map(|figure| *figure as f64);
    figure
        .and_then(Number::from_f64)
        .map_or(Value::Null, Value::Number)
}

fn per_worker(samples: &[SampleFacts]) -> Value {
    let mut sums = BTreeMap::<&str, u64>::new();
    for (worker, tokens) in samples
        .iter()
        .flat_map(|sample| &sample.per_worker_token_counts)
    {
        let sum = sums.entry(worker).or_default();
        *sum = sum.saturating_add(*tokens);
    }
    let named = sums.into_iter();
    named
        .map(|(worker, tokens)| (worker.to_owned(), Value::from(tokens)))
        .collect()
}
