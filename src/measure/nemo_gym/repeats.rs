//! The repeats of a data set: the first rollouts of all its tasks, the second ones, and so on, and their spread.
//! [`Repeats`] writes the metrics of repeats that NeMo Gym has since 0.7, and the number of masked rollouts.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::prelude::SessionContext;
use indexmap::{IndexMap, IndexSet};

use super::json_object::{JsonObject, number};
use crate::gym::GymRules;
use crate::measure::error::MeasureError;
use crate::measure::functions::{median, pairwise_sum, quantile, t_quantile};
use crate::measure::rows::{Rows, row};

/// Separates the name of a statistic from that of the repeats' metric.
const ACROSS: &str = "_across_repeats/";

/// Beginnings, ends and names of the metrics that are statistics other than means themselves. They get no statistics
/// across repeats.
const NO_PREFIXES: [&str; 11] = [
    "max/",
    "min/",
    "median/",
    "std/",
    "sem/",
    "se/",
    "p25/",
    "p75/",
    "ci_low_95/",
    "ci_high_95/",
    "histogram/",
];
const NO_SUFFIXES: [&str; 18] = [
    "/max",
    "/min",
    "/median",
    "/p5",
    "/p25",
    "/p75",
    "/p95",
    "/ci_low_95",
    "/ci_high_95",
    "/ci_lower",
    "/ci_upper",
    "_ci_lower",
    "_ci_upper",
    "_ci95_lower",
    "_ci95_upper",
    "/std_dev_across_runs",
    "/std_err_across_runs",
    "/avg_sample_std_dev",
];
const NO_NAMES: [&str; 4] = [
    "sample_count",
    "missing_count",
    "num_repeats",
    "token_usage_version",
];

/// A benchmark's own metrics of each repeat, by rollout index; `None` for a value that is not a number.
pub type OwnRepeats = BTreeMap<i64, IndexMap<String, Option<f64>>>;

/// The repeats of all agents, by name.
#[derive(Debug, Default)]
pub(super) struct Repeats(BTreeMap<String, AgentRepeats>);

/// The repeats of one agent.
#[derive(Debug, Default, Clone)]
pub(super) struct AgentRepeats {
    /// The number of rollout indices, including those of masked rollouts only.
    pub(super) num_repeats: i64,
    /// The number of accepted rollouts.
    pub(super) measured: i64,
    /// The number of masked rollouts.
    pub(super) masked: i64,
    measured_tasks: i64,
    tasks: i64,
    repeats: Vec<Repeat>,
}

/// The rollouts with the same index.
#[derive(Debug, Clone)]
struct Repeat {
    rollout_index: i64,
    num_tasks: i64,
    metrics: IndexMap<String, f64>,
}

row! {
    struct Measured {
        agent_name: String,
        num_repeats: i64,
        measured: i64,
        masked: i64,
        measured_tasks: i64,
        tasks: i64,
    }
}

row! {
    struct Index {
        agent_name: String,
        rollout_index: i64,
        num_tasks: i64,
    }
}

row! {
    struct Metric {
        agent_name: String,
        rollout_index: i64,
        metric: String,
        mean: Option<f64>,
        median: Option<f64>,
        std: Option<f64>,
        sem: Option<f64>,
        min: Option<f64>,
        max: Option<f64>,
        p25: Option<f64>,
        p75: Option<f64>,
        ci_low_95: Option<f64>,
        ci_high_95: Option<f64>,
    }
}

impl Repeats {
    /// Reads the repeats from the tables and views of a session. Returns none if the rules have no repeats.
    pub(super) async fn read(ctx: &SessionContext, rules: &GymRules) -> Result<Self, MeasureError> {
        if !rules.repeats {
            return Ok(Self::default());
        }
        let sql = include_str!("../../../queries/nemo_gym/measured.sql");
        let mut all: BTreeMap<String, AgentRepeats> = BTreeMap::new();
        for row in Rows::of(ctx, sql, Measured::rows).await?.collect().await? {
            let agent = AgentRepeats {
                num_repeats: row.num_repeats,
                measured: row.measured,
                masked: row.masked,
                measured_tasks: row.measured_tasks,
                tasks: row.tasks,
                repeats: Vec::new(),
            };
            all.insert(row.agent_name, agent);
        }
        let sql = include_str!("../../../queries/nemo_gym/repeats.sql");
        for row in Rows::of(ctx, sql, Index::rows).await?.collect().await? {
            all.entry(row.agent_name).or_default().repeats.push(Repeat {
                rollout_index: row.rollout_index,
                num_tasks: row.num_tasks,
                metrics: IndexMap::new(),
            });
        }
        // A single repeat has nothing to be compared with.
        for agent in all.values_mut() {
            if agent.repeats.len() == 1 {
                agent.repeats.clear();
            }
        }
        if all.values().all(|agent| agent.repeats.is_empty()) {
            return Ok(Self(all));
        }
        let sql = include_str!("../../../queries/nemo_gym/repeat_statistics.sql");
        let mut rows = Rows::of(ctx, sql, Metric::rows).await?;
        while let Some(row) = rows.next().await? {
            let agent = all.get_mut(&row.agent_name);
            let repeat = agent.and_then(|agent| {
                let mut repeats = agent.repeats.iter_mut();
                repeats.find(|repeat| repeat.rollout_index == row.rollout_index)
            });
            let Some(repeat) = repeat else { continue };
            for (statistic, value) in [
                ("mean", row.mean),
                ("median", row.median),
                ("std", row.std),
                ("sem", row.sem),
                ("min", row.min),
                ("max", row.max),
                ("p25", row.p25),
                ("p75", row.p75),
                ("ci_low_95", row.ci_low_95),
                ("ci_high_95", row.ci_high_95),
            ] {
                let named = value.map(|value| (format!("{statistic}/{}", row.metric), value));
                repeat.metrics.extend(named);
            }
        }
        Ok(Self(all))
    }

    /// Returns the repeats of an agent.
    pub(super) fn of(&self, agent: &str) -> AgentRepeats {
        self.0.get(agent).cloned().unwrap_or_default()
    }

    /// Iterates over the agents and their repeats, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &AgentRepeats)> {
        self.0.iter().map(|(name, agent)| (name.as_str(), agent))
    }

    /// Returns the metrics of all agents' repeats, in the order of their first appearance.
    pub(super) fn metrics(&self) -> Vec<&str> {
        let repeats = self.0.values().flat_map(|agent| &agent.repeats);
        let names: IndexSet<&String> = repeats.flat_map(|repeat| repeat.metrics.keys()).collect();
        names.into_iter().map(String::as_str).collect()
    }

    /// Returns warnings about repeats that lack tasks.
    pub(super) fn notes(&self) -> Vec<String> {
        let uneven = self.0.iter().filter_map(|(name, agent)| {
            let repeats = agent.repeats.iter();
            let lacking = repeats.filter(|repeat| repeat.num_tasks < agent.measured_tasks);
            let count = lacking.count();
            (count > 0).then(|| {
                format!(
                    "{count} of the {} repeats of agent '{name}' lack rollouts of some tasks, and are not quite comparable",
                    agent.repeats.len()
                )
            })
        });
        uneven.collect()
    }
}

impl AgentRepeats {
    /// Adds the `coverage/...` counts if any rollouts are masked.
    pub(super) fn write_coverage(&self, metrics: &mut IndexMap<String, String>) {
        if self.masked == 0 {
            return;
        }
        for (name, count) in [
            ("measured_rollouts", self.measured),
            ("masked_rollouts", self.masked),
            ("measured_tasks", self.measured_tasks),
            ("fully_masked_tasks", self.tasks - self.measured_tasks),
        ] {
            metrics.insert(format!("coverage/{name}"), count.to_string());
        }
    }

    /// Adds the statistics of each metric across the repeats. The metrics in `first` come first, in that order.
    pub(super) fn write_across(&self, first: &[&str], metrics: &mut IndexMap<String, String>) {
        let first = first.iter().map(|name| (*name, Vec::new()));
        let mut values: IndexMap<&str, Vec<f64>> = first.collect();
        let all = self.repeats.iter().flat_map(|repeat| &repeat.metrics);
        for (name, value) in all.filter(|(name, value)| is_primary(name) && !value.is_nan()) {
            values.entry(name).or_default().push(*value);
        }
        for (metric, values) in values.into_iter().filter(|(_, values)| !values.is_empty()) {
            for (statistic, value) in across(values) {
                metrics.insert(format!("{statistic}{ACROSS}{metric}"), number(value));
            }
        }
    }

    /// Returns the metrics in which a benchmark's report on the repeats, `said`, differs from ours, by rollout index:
    /// its own values, and `None` for those that it leaves out.
    pub(super) fn own(&self, said: &OwnRepeats) -> OwnRepeats {
        let of = |repeat: &Repeat, name: &String| {
            let of_repeat = said.get(&repeat.rollout_index)?;
            of_repeat.get(name).copied().flatten()
        };
        if said.is_empty() {
            return OwnRepeats::new();
        }
        let mut names: IndexSet<&String> = IndexSet::new();
        for repeat in &self.repeats {
            let said = said.get(&repeat.rollout_index);
            let all = repeat
                .metrics
                .keys()
                .chain(said.into_iter().flat_map(IndexMap::keys));
            names.extend(all.filter(|name| {
                let (ours, theirs) = (repeat.metrics.get(*name), of(repeat, name));
                !matches!((ours, theirs), (Some(ours), Some(theirs)) if is_same(*ours, theirs))
            }));
        }
        let own = self.repeats.iter().map(|repeat| {
            let values = names.iter().map(|name| ((*name).clone(), of(repeat, name)));
            (repeat.rollout_index, values.collect())
        });
        own.collect()
    }

    /// Replaces metrics by a benchmark's own of the same name, here and in the agent's `metrics`. Removes one that is
    /// not a number in some repeat, or in `own`, over all rollouts.
    pub(super) fn replace(
        &mut self,
        of_repeats: &OwnRepeats,
        own: &IndexMap<String, String>,
        metrics: &mut IndexMap<String, String>,
    ) {
        let names = of_repeats.values().flat_map(IndexMap::keys);
        let names: BTreeSet<&String> = names.collect();
        if names.is_empty() || self.repeats.is_empty() {
            return;
        }
        for name in &names {
            let value = |repeat: &Repeat| {
                let of_repeat = of_repeats.get(&repeat.rollout_index)?;
                let value = of_repeat.get(*name).copied().flatten();
                value.filter(|value| value.is_finite())
            };
            let values: Option<Vec<f64>> = self.repeats.iter().map(value).collect();
            let is_number = |text: &String| text.parse::<f64>().is_ok();
            let values = values.filter(|_| own.get(*name).is_none_or(is_number));
            for (place, repeat) in self.repeats.iter_mut().enumerate() {
                repeat.metrics.shift_remove(*name);
                if let Some(value) = values.as_ref().and_then(|values| values.get(place)) {
                    repeat.metrics.insert((*name).clone(), *value);
                }
            }
        }
        let is_gone = |name: &String| {
            let metric = name.split_once(ACROSS);
            metric.is_some_and(|(_, metric)| names.contains(&metric.to_owned()))
        };
        metrics.retain(|name, _| !is_gone(name));
        self.write_across(&[], metrics);
    }

    /// Returns the metrics of each repeat as a JSON object, with `head` as its first field if given.
    pub(super) fn to_json(&self, head: Option<(&str, &str)>) -> Vec<String> {
        let entries = self.repeats.iter().map(|repeat| {
            let mut object = JsonObject::default();
            if let Some((name, value)) = head {
                object.raw(name, value);
            }
            object.integer("_ng_rollout_index", repeat.rollout_index);
            object.integer("sample_count", repeat.num_tasks);
            object.integer("missing_count", self.measured_tasks - repeat.num_tasks);
            for (name, value) in &repeat.metrics {
                object.float(name, *value);
            }
            object.finish()
        });
        entries.collect()
    }
}

/// Returns whether two numbers are equal up to rounding errors.
pub(super) fn is_same(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= 1e-9 * ours.abs() + 1e-12
}

fn is_primary(name: &str) -> bool {
    let begins = NO_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let ends = NO_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    !begins && !ends && !NO_NAMES.contains(&name) && !name.contains(ACROSS)
}

/// Returns the statistics of at least one number, computed as those within a repeat are.
fn across(mut values: Vec<f64>) -> Vec<(&'static str, f64)> {
    let count = values.len() as f64;
    let sum = |term: &dyn Fn(f64) -> f64| {
        pairwise_sum(values.len(), |at| values.get(at).copied().map_or(0.0, term))
    };
    let mean = sum(&|value| value) / count;
    let squares = sum(&|value| (mean - value).powi(2));
    let std = match values.len() {
        1 => 0.0,
        _ => (squares / (count - 1.0)).sqrt(),
    };
    let se = std / count.sqrt();
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| quantile(&values, share).unwrap_or(mean);
    let mut statistics = vec![
        ("mean", mean),
        ("median", median(&values).unwrap_or(mean)),
        ("std", std),
        ("min", at(0.0)),
        ("max", at(1.0)),
        ("se", se),
    ];
    if values.len() > 1 {
        let reach = t_quantile(0.975, count - 1.0).map_or(f64::NAN, |t| t * se);
        let reach = if se == 0.0 { 0.0 } else { reach };
        statistics.extend([("ci_low_95", mean - reach), ("ci_high_95", mean + reach)]);
    }
    statistics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats() -> AgentRepeats {
        let repeat = |rollout_index, mean| Repeat {
            rollout_index,
            num_tasks: 2,
            metrics: IndexMap::from([("mean/x".to_owned(), mean), ("std/x".to_owned(), 0.5)]),
        };
        AgentRepeats {
            measured_tasks: 2,
            repeats: vec![repeat(0, 1.0), repeat(3, 2.0)],
            ..AgentRepeats::default()
        }
    }

    fn said(of_repeats: &[(i64, &[(&str, f64)])]) -> OwnRepeats {
        let of_repeats = of_repeats.iter();
        of_repeats
            .map(|(index, metrics)| {
                let metrics = metrics.iter();
                let metrics = metrics.map(|(name, value)| ((*name).to_owned(), Some(*value)));
                (*index, metrics.collect())
            })
            .collect()
    }

    #[test]
    fn what_a_server_says_as_we_do_is_ours_and_the_rest_its_own() {
        let same: &[(&str, f64)] = &[("mean/x", 1.0), ("std/x", 0.5)];
        let none = repeats().own(&said(&[(0, same), (3, &[("mean/x", 2.0), ("std/x", 0.5)])]));
        assert!(none.values().all(IndexMap::is_empty));
        assert!(repeats().own(&OwnRepeats::new()).is_empty());

        let more: &[(&str, f64)] = &[("mean/x", 9.0), ("own", 4.0)];
        let own = repeats().own(&said(&[(0, same), (3, more)]));
        let of_last: Vec<(&str, Option<f64>)> = own[&3]
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        assert_eq!(
            of_last,
            [("mean/x", Some(9.0)), ("std/x", None), ("own", Some(4.0))]
        );
        assert_eq!(own[&0]["own"], None);
    }

    #[test]
    fn what_is_no_number_in_every_repeat_is_taken_out_with_its_statistics() {
        let (mut repeats, mut metrics) = (repeats(), IndexMap::new());
        repeats.write_across(&[], &mut metrics);
        assert_eq!(metrics["mean_across_repeats/mean/x"], "1.5");
        let own = said(&[
            (0, &[("mean/x", 8.0), ("only once", 1.0)]),
            (3, &[("mean/x", 4.0)]),
        ]);
        repeats.replace(&own, &IndexMap::new(), &mut metrics);
        assert_eq!(metrics["mean_across_repeats/mean/x"], "6.0");
        assert!(!metrics.contains_key("mean_across_repeats/only once"));
        let texts = repeats.to_json(None);
        assert_eq!(
            texts[1],
            r#"{"_ng_rollout_index":3,"sample_count":2,"missing_count":0,"std/x":0.5,"mean/x":4.0}"#
        );

        let own_of_all = IndexMap::from([("mean/x".to_owned(), "null".to_owned())]);
        repeats.replace(&own, &own_of_all, &mut metrics);
        assert!(!metrics.contains_key("mean_across_repeats/mean/x"));
    }
}
