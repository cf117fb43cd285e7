use std::time::Duration;

use crate::measure::AgentMetric;
use crate::progress::AgentProgress;

/// A count with its thousands apart.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A metric to the digits that a table has room for.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e15 {
        return format!("{value:.0}");
    }
    if (1e-4..1e7).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// What is known of a metric so far: `sim reward 0.5595 ± 0.0564, pass@4 0.8571, 168 rollouts`.
pub(super) fn metric(metric: &AgentMetric) -> String {
    let or_none = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let mut text = format!(
        "{} {} {}",
        metric.agent_name,
        metric.metric,
        or_none(metric.mean)
    );
    if let Some(stderr) = metric.stderr {
        text.push_str(&format!(" \u{b1} {}", number(stderr)));
    }
    if let Some(pass) = metric.pass_at.filter(|pass| pass.k > 1) {
        text.push_str(&format!(", pass@{} {}", pass.k, number(pass.pass_at_k)));
    }
    text.push_str(&format!(", {} rollouts", count(metric.count)));
    text.replace(char::is_control, " ")
}

/// A time for people: `1h02m`, `3m20s`, `4.2s`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Failures by class: `3 failed (2 infra, 1 data)`.
pub(super) fn failures(progress: &AgentProgress) -> String {
    match progress.num_failed() {
        0 => "0 failed".to_owned(),
        all => {
            let classes: Vec<String> = progress
                .failed
                .iter()
                .map(|(class, n)| format!("{} {class}", count(*n)))
                .collect();
            format!("{} failed ({})", count(all), classes.join(", "))
        }
    }
}

/// Failed attempts that were not the last of their rollouts: `, 12 retries`; nothing where there are none.
pub(super) fn retries(progress: &AgentProgress) -> String {
    match progress.num_retries() {
        0 => String::new(),
        1 => ", 1 retry".to_owned(),
        retries => format!(", {} retries", count(retries)),
    }
}

/// An agent's share: what is left, the running mean reward and, where it adapts, the limit of calls
/// in flight.
pub(super) fn agent(name: &str, progress: &AgentProgress) -> String {
    let reward = progress
        .mean_reward()
        .map_or_else(|| "-".to_owned(), |mean| format!("{mean:.4}"));
    let limit = progress
        .concurrency_limit
        .map_or_else(String::new, |limit| format!(", limit {limit}"));
    format!(
        "{name}: {} left, mean reward {reward}{limit}",
        count(progress.pending())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_read_well() {
        assert_eq!(
            [0, 999, 1000, 1234567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        let times =
            [4.25, 42.0, 200.0, 3720.0].map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["4.2s", "42s", "3m20s", "1h02m"]);
    }
}
