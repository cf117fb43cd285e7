//! NeMo RL's metrics under its names: of a group of samples ([`group_metrics`]), of a batch ([`batch_metrics`],
//! [`batch_metrics_legacy`]), and of a group that came through NeMo Gym ([`gym_metrics`]).

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Completion;
use super::figures::{Metrics, mean, number, percentile, sum};
use crate::config::Driver;
use crate::python::json::{Writer, loads};

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

    pub(super) fn gen_tokens(&self) -> &[u64] {
        &self.turn_gen_tokens
    }

    pub(super) fn longest_generation(&self) -> u64 {
        self.turn_gen_tokens.iter().copied().max().unwrap_or(0)
    }
}

/// Returns the metrics of a group, in NeMo RL's order. Rates are between 0 and 1. The standard deviation is that of a
/// sample, and null for a single value. `NAME/histogram` has the values themselves. The result is empty if there are no
/// samples.
pub fn group_metrics<'a>(samples: impl IntoIterator<Item = &'a SampleFacts>) -> Map<String, Value> {
    let samples: Vec<&SampleFacts> = samples.into_iter().collect();
    let mut metrics = Metrics::default();
    if samples.is_empty() {
        return metrics.0;
    }
    let counts = |count: fn(&SampleFacts) -> u64| -> Vec<u64> {
        samples.iter().map(|it| count(it)).collect()
    };
    let rate = |holds: fn(&SampleFacts) -> bool| {
        let count = samples.iter().filter(|sample| holds(sample)).count();
        count as f64 / samples.len() as f64
    };
    let rewards: Vec<f64> = samples.iter().map(|sample| sample.reward).collect();
    let turns = counts(|sample| sample.turn_count);
    let generated = counts(|sample| sample.assistant_tokens);

    metrics.spread("total_reward", &rewards);
    metrics.put("total_turns", turns.iter().sum::<u64>());
    metrics.spread("turns_per_sample", &turns);
    metrics.turn_percentiles(&turns);
    let total = counts(|sample| sample.total_tokens);
    metrics.spread("total_tokens_per_sample", &total);
    metrics.spread("gen_tokens_per_sample", &generated);
    let observed = counts(|sample| sample.env_tokens);
    metrics.spread("env_tokens_per_sample", &observed);
    metrics.longest_generations(&counts(SampleFacts::longest_generation));
    metrics.put("truncation_rate", rate(|sample| sample.truncated));
    let terminated = rate(|sample| sample.terminated);
    metrics.put("natural_termination_rate", terminated);
    let max_turns = rate(|sample| sample.max_turns_reached);
    metrics.put("max_turns_reached_rate", max_turns);
    metrics.turn_lengths(&samples);
    metrics.put("mean_gen_tokens_per_sample", mean(&generated));
    metrics.0
}

/// Returns the metrics of a batch of samples, as NeMo RL's multi-turn functions name them: those of
/// `run_async_multi_turn_rollout` for samples at their own pace, those of `run_multi_turn_rollout`, whose means are rounded
/// to 32 bits, for samples in lockstep. The result is empty if there are no samples.
pub fn batch_metrics<'a>(
    samples: impl IntoIterator<Item = &'a SampleFacts>,
    driver: Driver,
) -> Map<String, Value> {
    let samples: Vec<&SampleFacts> = samples.into_iter().collect();
    let counts =
        |count: fn(&SampleFacts) -> u64| samples.iter().map(|it| count(it)).collect::<Vec<_>>();
    let form = match driver {
        Driver::PerSample => LegacyForm::PerSample,
        Driver::Lockstep => LegacyForm::Lockstep,
    };
    let mut metrics = Metrics(batch_metrics_legacy(samples.iter().copied(), form));
    let Some(most) = samples.iter().map(|sample| sample.assistant_tokens).max() else {
        return metrics.0;
    };
    if driver == Driver::Lockstep {
        metrics.put("max_gen_tokens_per_sample", f64::from(most as f32));
        return metrics.0;
    }
    metrics.put("max_gen_tokens_per_sample", most);
    metrics.turn_percentiles(&counts(|sample| sample.turn_count));
    metrics.longest_generations(&counts(SampleFacts::longest_generation));
    metrics.turn_lengths(&samples);
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
pub fn batch_metrics_legacy<'a>(
    samples: impl IntoIterator<Item = &'a SampleFacts>,
    form: LegacyForm,
) -> Map<String, Value> {
    let samples: Vec<&SampleFacts> = samples.into_iter().collect();
    let mut metrics = Metrics::default();
    if samples.is_empty() {
        return metrics.0;
    }
    let over_samples = |sum: f64| match form {
        LegacyForm::Lockstep => f64::from(sum as f32 / samples.len() as f32),
        LegacyForm::PerSample => sum / samples.len() as f64,
    };
    let mean = |count: fn(&SampleFacts) -> u64| {
        over_samples(samples.iter().map(|it| count(it)).sum::<u64>() as f64)
    };
    let rate = |holds: fn(&SampleFacts) -> bool| {
        over_samples(samples.iter().filter(|sample| holds(sample)).count() as f64)
    };
    let turns = || samples.iter().map(|sample| sample.turn_count);
    let rewards: Vec<f64> = samples.iter().map(|sample| sample.reward).collect();

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
        metrics.put("mean_total_reward", over_samples(sum(&rewards)));
        metrics.put("max_total_reward", rewards.iter().copied().reduce(f64::max));
        metrics.put("min_total_reward", rewards.iter().copied().reduce(f64::min));
    }
    metrics.0
}

/// Returns the metrics of rollouts through an agent of NeMo Gym: rewards, turns and tokens, and all numbers and booleans
/// whose names the first answer has, under the agent's name. The mean counts all rollouts, also those without the number.
pub(super) fn gym_metrics<'a>(
    agent: &str,
    completions: impl IntoIterator<Item = &'a Completion>,
    has_full_results: bool,
) -> Map<String, Value> {
    let completions: Vec<&Completion> = completions.into_iter().collect();
    let mut metrics = Metrics::default();
    let Some(first) = completions.first() else {
        return metrics.0;
    };
    let counts =
        |count: fn(&Completion) -> u64| completions.iter().map(|it| count(it)).collect::<Vec<_>>();
    let rewards: Vec<f64> = completions.iter().map(|one| one.reward).collect();
    let turns = counts(|one| generated(one).count() as u64);
    let total = counts(|one| {
        one.message_log
            .iter()
            .map(|message| message.token_count)
            .sum()
    });
    let tokens = counts(|one| generated(one).sum());
    let longest = counts(|one| generated(one).max().unwrap_or_default());
    metrics.spread("total_reward", &rewards);
    metrics.spread("turns_per_sample", &turns);
    metrics.turn_percentiles(&turns);
    metrics.spread("total_tokens_per_sample", &total);
    metrics.spread("gen_tokens_per_sample", &tokens);
    metrics.spread("max_gen_tokens_per_turn", &longest);
    metrics.put("max_gen_tokens_per_turn/p95", percentile(&longest, 95));
    let rate = |is_truncated: bool| {
        let count = completions
            .iter()
            .filter(|one| one.truncated == is_truncated)
            .count();
        count as f64 / completions.len() as f64
    };
    metrics.put("natural_termination_rate", rate(false));
    metrics.put("truncation_rate", rate(true));
    for name in first.env_extras.as_object().into_iter().flat_map(Map::keys) {
        let values = completions
            .iter()
            .filter_map(|one| number(one.env_extras.get(name)?));
        let values: Vec<f64> = values.collect();
        if !values.is_empty() {
            metrics.spread_over(&format!("{agent}/{name}"), &values, completions.len());
        }
    }
    if has_full_results {
        let results = completions
            .iter()
            .map(|one| json!([dumped(&one.env_extras)]));
        let table = json!({"columns": ["Full result"], "data": results.collect::<Value>()});
        metrics.put(&format!("{agent}/full_result"), table);
    }
    metrics.put("mean_gen_tokens_per_sample", mean(&tokens));
    metrics.0
}

/// Returns JSON as Python writes it without spaces.
fn dumped(value: &Value) -> String {
    let text = value.to_string();
    let mut written = String::new();
    match loads(&text, Writer::CompactDumps) {
        Ok(value) => value.write(Writer::CompactDumps, &mut written),
        // What nests too deeply for Python is written as it is.
        Err(_) => written = text,
    }
    written
}

/// Returns the tokens of each generation.
fn generated(completion: &Completion) -> impl Iterator<Item = u64> {
    let log = completion.message_log.iter();
    log.filter(|message| message.role == "assistant")
        .map(|message| message.token_count)
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
