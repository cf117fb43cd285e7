//! [`CustomMetrics`]: what a benchmark reports beyond the statistics.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::repeats::OwnRepeats;

/// Metrics of one agent that are not statistics of single scores, each as JSON text by its name: those
/// that a benchmark defines on the agent's server, or [`PassMajority`](super::PassMajority).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CustomMetrics {
    /// Of the agent.
    pub agent: IndexMap<String, String>,
    /// Of its tasks, by index.
    pub tasks: BTreeMap<i64, IndexMap<String, String>>,
    /// Of its repeats.
    pub repeats: OwnRepeats,
    /// Those that stand for the agent at a glance; nothing where the means do.
    pub key: Option<IndexMap<String, String>>,
}

/// Which metrics stand for an agent at a glance.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyMetrics {
    /// These, where they are there.
    Names(Vec<String>),
    /// Of a family of names with a `{k}` in it, those with the largest k.
    HighestK {
        /// What the names begin with, up to the slash before the score's name: `pass@{k}`.
        pattern: String,
        /// Only these scores.
        score_names: Option<Vec<String>>,
        /// Not these scores.
        exclude_names: Vec<String>,
    },
}

/// Ends of names that say how sure a number is, and are no scores.
const NO_SCORES: [&str; 3] = [
    "std_dev_across_runs",
    "std_err_across_runs",
    "avg_sample_std_dev",
];

impl KeyMetrics {
    /// Chooses among metrics, in their order.
    pub fn select(&self, metrics: &IndexMap<String, String>) -> IndexMap<String, String> {
        match self {
            Self::Names(names) => {
                let there = names.iter().filter_map(|name| metrics.get_key_value(name));
                there.map(owned).collect()
            }
            Self::HighestK {
                pattern,
                score_names,
                exclude_names,
            } => {
                let of = |name: &str| {
                    let (k, score) = k_and_score(pattern, name)?;
                    let wanted = score_names
                        .as_ref()
                        .is_none_or(|names| names.iter().any(|name| name == score));
                    let excluded = exclude_names.iter().any(|name| name == score);
                    (wanted && !excluded).then_some(k)
                };
                let highest = metrics.keys().filter_map(|name| of(name)).max();
                let highest = metrics
                    .iter()
                    .filter(|(name, _)| highest.is_some() && of(name) == highest);
                highest.map(owned).collect()
            }
        }
    }
}

fn owned((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// The k and the score of a name that follows a pattern; 0 for a pattern without k.
fn k_and_score<'a>(pattern: &str, name: &'a str) -> Option<(u64, &'a str)> {
    if NO_SCORES.iter().any(|end| name.ends_with(end)) {
        return None;
    }
    let Some((before, after)) = pattern.split_once("{k}") else {
        return Some((0, name.strip_prefix(pattern)?.strip_prefix('/')?));
    };
    let rest = name.strip_prefix(before)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let (k, rest) = rest.split_at(digits);
    Some((
        k.parse().ok()?,
        rest.strip_prefix(after)?.strip_prefix('/')?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(names: &[&str]) -> IndexMap<String, String> {
        let named = names
            .iter()
            .map(|name| ((*name).to_owned(), "1.0".to_owned()));
        named.collect()
    }

    fn selected(pattern: &str, only: Option<&[&str]>, not: &[&str]) -> Vec<String> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyMetrics::HighestK {
            pattern: pattern.to_owned(),
            score_names: only.map(names),
            exclude_names: names(not),
        };
        let metrics = metrics(&[
            "mean/reward",
            "pass@1/accuracy",
            "pass@10/accuracy",
            "pass@10/judge",
            "pass@2/judge",
            "pass@1[avg-of-4]/accuracy",
            "pass@1[avg-of-12]/accuracy/std_dev_across_runs",
        ]);
        key.select(&metrics).into_keys().collect()
    }

    #[test]
    fn the_highest_k_is_a_number_and_the_pattern_a_literal() {
        assert_eq!(
            selected("pass@{k}", None, &[]),
            ["pass@10/accuracy", "pass@10/judge"]
        );
        assert_eq!(selected("pass@{k}", None, &["accuracy"]), ["pass@10/judge"]);
        assert_eq!(
            selected("pass@{k}", Some(&["judge"]), &[]),
            ["pass@10/judge"]
        );
        assert!(selected("pass@{k}", Some(&[]), &[]).is_empty());
        let of_runs = selected("pass@1[avg-of-{k}]", None, &[]);
        assert_eq!(of_runs, ["pass@1[avg-of-4]/accuracy"]);
        assert!(selected("majority@{k}", None, &[]).is_empty());
    }
}
