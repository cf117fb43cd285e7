//! NeMo RL's metrics of a group of samples, under its names: [`group_metrics`], [`batch_metrics_legacy`] and, for
//! groups that came through NeMo Gym, [`gym_metrics`].

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Number, Value};

use super::Completion;

/// The fields of a multi-turn agent's answer from which the metrics of a group are computed.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct SampleFacts {
    /// The sum of its rewards.
    pub reward: f64,
    /// Turns that were begun.
    pub turn_count: u64,
    /// Tokens of assistant and environment.
    pub total_tokens: u64,
    /// Tokens that the model generated.
    pub assistant_tokens: u64,
    /// Tokens of observations.
    pub env_tokens: u64,
    /// Whether the environment ended the sample.
    pub terminated: bool,
    /// Whether the sample was cut short.
    pub truncated: bool,
    /// Whether the sample ran out of turns.
    pub max_turns_reached: bool,
    /// The generated tokens of each turn.
    pub turn_gen_tokens: Vec<u64>,
    /// The tokens of the log before each turn.
    pub turn_input_tokens: Vec<u64>,
    /// The sum of both for each turn.
    pub turn_total_tokens: Vec<u64>,
    /// Tokens that each worker generated.
    pub per_worker_token_counts: IndexMap<String, u64>,
}

impl SampleFacts {
    /// Reads the facts from an answer.
    ///
    /// # Errors
    /// A field is missing or has another type: the answer is not from a multi-turn agent.
    pub fn of(answer: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(answer)
    }
}

/// Metrics by name.
#[derive(Default)]
struct Metrics(Map<String, Value>);

impl Metrics {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    /// Adds mean, extremes, median and deviation of figures.
    fn spread<F: Figure>(&mut self, name: &str, figures: &[F]) {
        let ordered = sorted(figures);
        self.put(&format!("{name}/mean"), mean(figures));
        self.put(&format!("{name}/max"), value(ordered.last()));
        self.put(&format!("{name}/min"), value(ordered.first()));
        self.put(&format!("{name}/median"), median(&ordered));
        self.put(&format!("{name}/stddev"), deviation(figures));
    }
}

/// Returns the metrics of a group, in NeMo RL's order. Rates are between 0 and 1. The standard deviation is that of a
/// sample, and null for a single value. The result is empty if there are no samples.
pub fn group_metrics(samples: &[SampleFacts]) -> Map<String, Value> {
    let mut metrics = Metrics::default();
    if samples.is_empty() {
        return metrics.0;
    }
    let counts =
        |count: fn(&SampleFacts) -> u64| -> Vec<u64> { samples.iter().map(count).collect() };
    let rate = |holds: fn(&SampleFacts) -> bool| {
        let count = samples.iter().filter(|sample| holds(sample)).count();
        count as f64 / samples.len() as f64
    };
    let of_turns = |lengths: fn(&SampleFacts) -> &[u64]| -> Value {
        let all = samples.iter().flat_map(lengths).copied();
        all.map(Value::from).collect()
    };
    let rewards: Vec<f64> = samples.iter().map(|sample| sample.reward).collect();
    let turns = counts(|sample| sample.turn_count);
    let generated = counts(|sample| sample.assistant_tokens);
    let longest = counts(|sample| sample.turn_gen_tokens.iter().copied().max().unwrap_or(0));

    metrics.spread("total_reward", &rewards);
    metrics.put("total_turns", turns.iter().sum::<u64>());
    metrics.spread("turns_per_sample", &turns);
    metrics.put("turns_per_sample/p95", percentile(&turns, 95));
    metrics.put("turns_per_sample/p99", percentile(&turns, 99));
    let total = counts(|sample| sample.total_tokens);
    metrics.spread("total_tokens_per_sample", &total);
    metrics.spread("gen_tokens_per_sample", &generated);
    let observed = counts(|sample| sample.env_tokens);
    metrics.spread("env_tokens_per_sample", &observed);
    let most = value(sorted(&longest).last());
    metrics.put("max_gen_tokens_per_turn/max", most);
    metrics.put("max_gen_tokens_per_turn/mean", mean(&longest));
    metrics.put("max_gen_tokens_per_turn/p95", percentile(&longest, 95));
    metrics.put("truncation_rate", rate(|sample| sample.truncated));
    let terminated = rate(|sample| sample.terminated);
    metrics.put("natural_termination_rate", terminated);
    let max_turns = rate(|sample| sample.max_turns_reached);
    metrics.put("max_turns_reached_rate", max_turns);
    metrics.put("per_worker_token_counts", per_worker(samples));
    let lengths = of_turns(|sample| &sample.turn_gen_tokens);
    metrics.put("histogram/gen_tokens_length", lengths);
    let lengths = of_turns(|sample| &sample.turn_input_tokens);
    metrics.put("histogram/input_tokens_length", lengths);
    let lengths = of_turns(|sample| &sample.turn_total_tokens);
    metrics.put("histogram/total_tokens_length", lengths);
    metrics.put("mean_gen_tokens_per_sample", mean(&generated));
    metrics.0
}

/// The older forms of NeMo RL's rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyForm {
    /// Samples at their own pace.
    PerSample,
    /// Batches. Means and rates are rounded to 32 bits, and rewards are left out.
    Lockstep,
}

/// Returns the metrics of a group of samples in an older form of NeMo RL; none if there are no samples.
pub fn batch_metrics_legacy(samples: &[SampleFacts], form: LegacyForm) -> Map<String, Value> {
    let mut metrics = Metrics::default();
    if samples.is_empty() {
        return metrics.0;
    }
    let over_samples = |sum: f64| match form {
        LegacyForm::Lockstep => f64::from(sum as f32 / samples.len() as f32),
        LegacyForm::PerSample => sum / samples.len() as f64,
    };
    let mean = |count: fn(&SampleFacts) -> u64| {
        over_samples(samples.iter().map(count).sum::<u64>() as f64)
    };
    let rate = |holds: fn(&SampleFacts) -> bool| {
        over_samples(samples.iter().filter(|sample| holds(sample)).count() as f64)
    };
    let turns = || samples.iter().map(|sample| sample.turn_count);
    let rewards = || samples.iter().map(|sample| sample.reward);

    metrics.put("total_turns", turns().sum::<u64>());
    metrics.put("avg_turns_per_sample", mean(|sample| sample.turn_count));
    metrics.put("max_turns_per_sample", turns().max());
    let terminated = rate(|sample| sample.terminated);
    metrics.put("natural_termination_rate", terminated);
    metrics.put("truncation_rate", rate(|sample| sample.truncated));
    let max_turns = rate(|sample| sample.max_turns_reached);
    metrics.put("max_turns_reached_rate", max_turns);
    let total = mean(|sample| sample.total_tokens);
    metrics.put("mean_total_tokens_per_sample", total);
    let generated = mean(|sample| sample.assistant_tokens);
    metrics.put("mean_gen_tokens_per_sample", generated);
    let observed = mean(|sample| sample.env_tokens);
    metrics.put("mean_env_tokens_per_sample", observed);
    if form == LegacyForm::PerSample {
        metrics.put("mean_total_reward", over_samples(rewards().sum()));
        metrics.put("max_total_reward", rewards().reduce(f64::max));
        metrics.put("min_total_reward", rewards().reduce(f64::min));
    }
    metrics.0
}

/// Returns the metrics of a group from NeMo Gym: rewards, turns and tokens, and the mean over all answers of each
/// number in the first one, under the agent's name.
pub(super) fn gym_metrics(
    agent: &str,
    completions: &[Completion],
    answers: &[Value],
) -> Map<String, Value> {
    let mut metrics = Metrics::default();
    let count = completions.len() as f64;
    if completions.is_empty() {
        return metrics.0;
    }
    let of = |figure: fn(&Completion) -> f64| completions.iter().map(figure).collect::<Vec<_>>();
    metrics.spread("total_reward", &of(|one| one.reward));
    metrics.spread("turns_per_sample", &of(|one| generated(one).count() as f64));
    let total = |one: &Completion| one.message_log.iter().map(|m| m.token_count as f64).sum();
    metrics.spread("total_tokens_per_sample", &of(total));
    let sum = |one: &Completion| generated(one).sum::<u64>() as f64;
    metrics.spread("gen_tokens_per_sample", &of(sum));
    let longest = |one: &Completion| generated(one).max().unwrap_or_default() as f64;
    metrics.spread("max_gen_tokens_per_turn", &of(longest));
    let truncated = completions.iter().filter(|one| one.truncated).count() as f64;
    metrics.put("natural_termination_rate", (count - truncated) / count);
    metrics.put("truncation_rate", truncated / count);
    let first = answers.first().and_then(Value::as_object);
    for (name, value) in first.into_iter().flatten() {
        if number(value).is_none() {
            continue;
        }
        let values = answers
            .iter()
            .filter_map(|answer| number(answer.get(name)?));
        metrics.put(&format!("{agent}/{name}"), values.sum::<f64>() / count);
    }
    metrics.0
}

/// Returns the tokens of each generation.
fn generated(completion: &Completion) -> impl Iterator<Item = u64> {
    let log = completion.message_log.iter();
    log.filter(|message| message.role == "assistant")
        .map(|message| message.token_count)
}

/// Returns a number or boolean.
pub(super) fn number(value: &Value) -> Option<f64> {
    let boolean = value.as_bool().map(|value| f64::from(u8::from(value)));
    boolean.or_else(|| value.as_f64())
}

/// A figure of a sample. Integers stay integers in extremes and medians.
trait Figure: Copy + PartialOrd + Into<Value> {
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

fn mean<F: Figure>(figures: &[F]) -> f64 {
    let sum: f64 = figures.iter().map(|figure| figure.as_f64()).sum();
    sum / figures.len() as f64
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
    if figures.len() < 2 {
        return Value::Null;
    }
    let mean = mean(figures);
    let squares = figures
        .iter()
        .map(|figure| (figure.as_f64() - mean).powi(2));
    (squares.sum::<f64>() / (figures.len() - 1) as f64)
        .sqrt()
        .into()
}

/// Returns the percentile of figures, without interpolation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_agent_says_what_it_lacks() {
        let error = SampleFacts::of(&serde_json::json!({"reward": 1})).unwrap_err();
        assert_eq!(error.to_string(), "missing field `turn_count`");
    }
}
