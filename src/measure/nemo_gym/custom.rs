//! What a benchmark reports beyond the statistics: [`CustomMetrics`], the [`KeyMetrics`] among them, and [`PassMajority`],
//! pass@k and majority@k as NeMo Gym's benchmarks report them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringViewArray};
use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use indexmap::IndexMap;

use super::json_object::number;
use super::repeats::OwnRepeats;
use crate::json::quote;
use crate::measure::error::MeasureError;
use crate::measure::families::register_views;
use crate::measure::rows::{Rows, row};

/// Metrics of one agent that are not statistics of single scores, each as JSON text by its name: those
/// that a benchmark defines on the agent's server, or [`PassMajority`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CustomMetrics {
    /// Metrics of the agent.
    pub agent: IndexMap<String, String>,
    /// Metrics of its tasks, by task index.
    pub tasks: BTreeMap<i64, IndexMap<String, String>>,
    /// Metrics of its repeats.
    pub repeats: OwnRepeats,
    /// The key metrics of the agent; `None` if these are the means.
    pub key: Option<IndexMap<String, String>>,
}

/// Which metrics are the key metrics of an agent.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyMetrics {
    /// The metrics with these names, if they exist.
    Names(Vec<String>),
    /// The metrics with the largest k among those whose names follow a pattern with `{k}`.
    HighestK {
        /// The beginning of the names, up to the slash before the score's name, such as `pass@{k}`.
        pattern: String,
        /// The scores to choose from; `None` for all.
        score_names: Option<Vec<String>>,
        /// The scores to leave out.
        exclude_names: Vec<String>,
    },
}

/// Ends of the names of statistics of spread, which are not scores.
const NO_SCORES: [&str; 3] = [
    "std_dev_across_runs",
    "std_err_across_runs",
    "avg_sample_std_dev",
];

impl KeyMetrics {
    /// Returns the key metrics among `metrics`.
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

/// Returns the k and the score of a name that follows a pattern; k is 0 for a pattern without `{k}`.
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

/// The scores that [`PassMajority`] covers, and what it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct PassMajorityOptions {
    /// Names of scores, each with the name of its metric.
    pub scores: Vec<(String, String)>,
    /// Path of the answer within an agent's result; with it, majority@k and `no_answer` are computed.
    pub answer_key: Option<String>,
    /// Whether to add the mean over tasks of the standard deviation within a task.
    pub add_avg_sample_std_dev: bool,
    /// The number of all tasks, where some may have no rollout.
    pub num_tasks: Option<i64>,
}

impl Default for PassMajorityOptions {
    fn default() -> Self {
        Self {
            scores: vec![("accuracy".into(), "reward".into())],
            answer_key: None,
            add_avg_sample_std_dev: false,
            num_tasks: None,
        }
    }
}

/// The metrics of an agent as JSON text, under NeMo Gym's names and in percent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PassMajority {
    /// `pass@{k}/{score}` and so on, for every k up to the most rollouts that a task has; the means of
    /// the runs under `per_sample_aggregate`.
    pub metrics: IndexMap<String, String>,
    /// The names of the scores.
    pub score_names: Vec<String>,
    /// The largest number of rollouts of a task.
    pub max_k: i64,
}

row! {
    struct AtK {
        agent_name: String,
        name: String,
        k: i64,
        pass_at_k: Option<f64>,
        avg_of_k: Option<f64>,
        majority_at_k: Option<f64>,
        mean_task_std: Option<f64>,
    }
}

row! {
    struct Run {
        agent_name: String,
        name: String,
        run: i64,
        mean: Option<f64>,
        std: Option<f64>,
        stderr: Option<f64>,
    }
}

impl PassMajority {
    /// Computes the metrics of every agent over the tables `tasks` and `rollouts` of a session, and
    /// `scores` if that table exists.
    ///
    /// # Errors
    /// The tables cannot be read, or an answer is a list or an object.
    pub async fn compute(
        ctx: &SessionContext,
        options: &PassMajorityOptions,
    ) -> Result<HashMap<String, Self>, MeasureError> {
        let mut parameters = HashMap::new();
        if let Some(path) = &options.answer_key {
            parameters.insert("answer_key".into(), path.as_str().into());
        }
        register_views(ctx, &parameters).await?;
        register_names(ctx, &options.scores).await?;
        let sql = include_str!("../../../queries/nemo_gym/pass_majority.sql");
        let num_tasks = ScalarValue::from(options.num_tasks.unwrap_or(0));
        let at_k = Rows::with_parameters(ctx, sql, &[("num_tasks", num_tasks)], AtK::rows).await?;
        let sql = include_str!("../../../queries/nemo_gym/score_runs.sql");
        let runs = Rows::of(ctx, sql, Run::rows).await?.collect().await?;
        let mut agents: HashMap<String, Vec<AtK>> = HashMap::new();
        for row in at_k.collect().await? {
            agents.entry(row.agent_name.clone()).or_default().push(row);
        }
        let agents = agents.into_iter().map(|(agent, at_k)| {
            let runs: Vec<&Run> = runs.iter().filter(|run| run.agent_name == agent).collect();
            let of_agent = Self::of(&at_k, &runs, options);
            (agent, of_agent)
        });
        Ok(agents.collect())
    }

    fn of(at_k: &[AtK], runs: &[&Run], options: &PassMajorityOptions) -> Self {
        let names = options.scores.iter().map(|(name, _)| name.as_str());
        let no_answer = options.answer_key.as_ref().map(|_| "no_answer");
        let names: BTreeSet<&str> = names.chain(no_answer).collect();
        let max_k = at_k.iter().map(|row| row.k).max().unwrap_or_default();
        let mut metrics = IndexMap::new();
        let put = |metrics: &mut IndexMap<String, String>, name: String, value: Option<f64>| {
            if let Some(value) = value.filter(|value| !value.is_nan()) {
                metrics.insert(name, number(value));
            }
        };

        for row in at_k {
            let AtK { name, k, .. } = row;
            put(&mut metrics, format!("pass@{k}/{name}"), row.pass_at_k);
            put(
                &mut metrics,
                format!("pass@1[avg-of-{k}]/{name}"),
                row.avg_of_k,
            );
            put(
                &mut metrics,
                format!("majority@{k}/{name}"),
                row.majority_at_k,
            );
        }
        let of_runs: Vec<String> = names
            .iter()
            .filter_map(|name| {
                let means = runs.iter().filter(|run| run.name == **name);
                let means = means.filter_map(|run| run.mean.filter(|mean| !mean.is_nan()));
                let means: Vec<String> = means.map(number).collect();
                (!means.is_empty()).then(|| format!("{}:[{}]", quote(name), means.join(",")))
            })
            .collect();
        let of_runs = format!("{{{}}}", of_runs.join(","));
        metrics.insert("per_sample_aggregate".into(), of_runs);
        for k in 2..=max_k {
            for name in &names {
                // For a k beyond the last run, the first k runs are all runs.
                let among = runs.iter().filter(|run| run.name == **name && run.run <= k);
                let Some(last) = among.max_by_key(|run| run.run) else {
                    continue;
                };
                let prefix = format!("pass@1[avg-of-{k}]/{name}");
                put(
                    &mut metrics,
                    format!("{prefix}/std_dev_across_runs"),
                    last.std,
                );
                put(
                    &mut metrics,
                    format!("{prefix}/std_err_across_runs"),
                    last.stderr,
                );
            }
        }
        if options.add_avg_sample_std_dev {
            for row in at_k.iter().filter(|row| row.k > 1) {
                let AtK { name, k, .. } = row;
                let name = format!("pass@1[avg-of-{k}]/{name}/avg_sample_std_dev");
                put(&mut metrics, name, row.mean_task_std);
            }
        }
        Self {
            metrics,
            score_names: names.into_iter().map(str::to_owned).collect(),
            max_k,
        }
    }
}

async fn register_names(
    ctx: &SessionContext,
    scores: &[(String, String)],
) -> Result<(), MeasureError> {
    let column = |of: fn(&(String, String)) -> &String| -> ArrayRef {
        Arc::new(scores.iter().map(of).map(Some).collect::<StringViewArray>())
    };
    let columns = [
        ("name", column(|score| &score.0)),
        ("metric", column(|score| &score.1)),
    ];
    ctx.deregister_table("score_names")?;
    ctx.register_batch("score_names", RecordBatch::try_from_iter(columns)?)?;
    let named = ctx.sql(include_str!("../../../queries/nemo_gym/named_scores.sql"));
    let named = named.await?.into_view();
    ctx.deregister_table("named_scores")?;
    ctx.register_table("named_scores", named)?;
    Ok(())
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
