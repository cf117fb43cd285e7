use serde_json::{Map, Value};

use super::SampleFacts;

/// The older forms of NeMo RL's rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyForm {
    /// Samples at their own pace.
    PerSample,
    /// Batches: means and rates pass through 32 bit, and rewards are not told.
    Lockstep,
}

/// What the older forms of NeMo RL say of a group of samples. Empty for no samples.
pub fn batch_metrics_legacy(samples: &[SampleFacts], form: LegacyForm) -> Map<String, Value> {
    let mut metrics = Map::new();
    if samples.is_empty() {
        return metrics;
    }
    let is_narrow = form == LegacyForm::Lockstep;
    let over_samples = |sum: f64| -> Value {
        if is_narrow {
            f64::from(sum as f32 / samples.len() as f32).into()
        } else {
            (sum / samples.len() as f64).into()
        }
    };
    let mean = |count: fn(&SampleFacts) -> u64| {
        over_samples(samples.iter().map(count).sum::<u64>() as f64)
    };
    let rate = |holds: fn(&SampleFacts) -> bool| {
        over_samples(samples.iter().filter(|sample| holds(sample)).count() as f64)
    };
    let turns = || samples.iter().map(|sample| sample.turn_count);
    let rewards = || samples.iter().map(|sample| sample.reward);

    let mut put = |name: &str, value: Value| metrics.insert(name.to_owned(), value);
    put("total_turns", turns().sum::<u64>().into());
    put("avg_turns_per_sample", mean(|sample| sample.turn_count));
    put("max_turns_per_sample", turns().max().into());
    put("natural_termination_rate", rate(|sample| sample.terminated));
    put("truncation_rate", rate(|sample| sample.truncated));
    put(
        "max_turns_reached_rate",
        rate(|sample| sample.max_turns_reached),
    );
    put(
        "mean_total_tokens_per_sample",
        mean(|sample| sample.total_tokens),
    );
    put(
        "mean_gen_tokens_per_sample",
        mean(|sample| sample.assistant_tokens),
    );
    put(
        "mean_env_tokens_per_sample",
        mean(|sample| sample.env_tokens),
    );
    if form == LegacyForm::PerSample {
        put("mean_total_reward", over_samples(rewards().sum()));
        put("max_total_reward", rewards().reduce(f64::max).into());
        put("min_total_reward", rewards().reduce(f64::min).into());
    }
    metrics
}
