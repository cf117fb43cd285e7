//! Writes the statistics tables as JSON: a [`Statistic`] is a row, and a [`Layout`] holds the order of
//! the metrics and whether extremes are integers.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use datafusion::prelude::SessionContext;

use super::json_object::{JsonObject, write, write_number};
use crate::json::quote;
use crate::measure::error::MeasureError;
use crate::measure::rows::{Rows, row};

row! {
    /// The statistics of a metric, of an agent or of a task.
    #[derive(Debug)]
    pub(super) struct Statistic {
        pub(super) agent_name: String,
        /// The task; zero for the statistics of an agent.
        pub(super) task_index: i64,
        metric: String,
        position: i64,
        run_position: i64,
        mean: Option<f64>,
        max: Option<f64>,
        min: Option<f64>,
        median: Option<f64>,
        std: Option<f64>,
        integer_max: Option<i64>,
        integer_min: Option<i64>,
    }
}

row! {
    struct Known {
        agent_name: String,
        is_measured: i64,
    }
}

/// The form that all objects of one data set share.
#[derive(Debug, Default)]
pub(super) struct Layout {
    metrics: HashMap<String, Metric>,
    /// Whether every rollout has every metric, and all values are integers.
    integers: bool,
}

/// A metric of a [`Layout`].
#[derive(Debug, Clone)]
struct Metric {
    position: i64,
    /// The names of its statistics as JSON text, in the order of [`KINDS`].
    names: [String; KINDS.len()],
}

impl Metric {
    fn new(name: &str, position: i64) -> Self {
        let names = KINDS.map(|(kind, _)| quote(&format!("{kind}/{name}")));
        Self { position, names }
    }
}

/// The statistics of all agents, which are few.
#[derive(Debug)]
pub(super) struct AgentStatistics {
    agents: BTreeMap<String, Agent>,
}

/// One agent's statistics.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// Whether one of its rollouts is accepted.
    pub(super) is_measured: bool,
    pub(super) statistics: Vec<Statistic>,
    /// The layout with the agent's rollouts as the data set.
    pub(super) layout: Layout,
    run_positions: HashMap<String, i64>,
}

impl AgentStatistics {
    /// Reads the table `agent_statistics`, and adds agents whose rollouts have no metric.
    pub(super) async fn read(ctx: &SessionContext) -> Result<Self, MeasureError> {
        let names = include_str!("../../../queries/nemo_gym/agents.sql");
        let known = Rows::of(ctx, names, Known::rows).await?.collect().await?;
        let known = known.into_iter().map(|row| {
            let agent = Agent {
                is_measured: row.is_measured > 0,
                ..Agent::default()
            };
            (row.agent_name, agent)
        });
        let mut agents: BTreeMap<String, Agent> = known.collect();
        let rows = include_str!("../../../queries/nemo_gym/agent_rows.sql");
        for row in Rows::of(ctx, rows, Statistic::rows)
            .await?
            .collect()
            .await?
        {
            let agent = agents.entry(row.agent_name.clone()).or_default();
            let metric = &row.metric;
            agent.layout.insert(metric, row.position);
            agent.run_positions.insert(metric.clone(), row.run_position);
            agent.statistics.push(row);
        }
        for agent in agents.values_mut() {
            let mut all = agent.statistics.iter();
            agent.layout.integers = all.all(|statistic| statistic.integer_max.is_some());
        }
        Ok(Self { agents })
    }

    /// Returns the statistics of one agent, if it has rollouts.
    pub(super) fn get(&self, name: &str) -> Option<&Agent> {
        self.agents.get(name)
    }

    /// Iterates over the agents, sorted by the code points of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Agent)> {
        self.agents
            .iter()
            .map(|(name, agent)| (name.as_str(), agent))
    }

    /// Returns the layout with the rollouts of all agents as one data set.
    pub(super) fn run_layout(&self) -> Layout {
        let mut layout = Layout::default();
        for agent in self.agents.values() {
            for (metric, position) in &agent.run_positions {
                layout.insert(metric, *position);
            }
        }
        let mut agents = self.agents.values().filter(|agent| agent.is_measured);
        layout.integers = agents
            .all(|agent| agent.layout.integers && agent.statistics.len() == layout.metrics.len());
        layout
    }
}

impl Layout {
    fn insert(&mut self, metric: &str, position: i64) {
        let known = Metric::new(metric, position);
        self.metrics.insert(metric.to_owned(), known);
    }

    /// Adds the statistics of one agent or task, statistic by statistic. Metrics that the layout lacks come first.
    pub(super) fn write(&self, statistics: &[Statistic], object: &mut JsonObject) {
        self.write_kinds(KINDS.len(), statistics, object);
    }

    /// Adds the means alone: the default key metrics of an agent.
    pub(super) fn write_means(&self, statistics: &[Statistic], object: &mut JsonObject) {
        self.write_kinds(1, statistics, object);
    }

    /// Adds the first `count` of the [`KINDS`].
    fn write_kinds(&self, count: usize, statistics: &[Statistic], object: &mut JsonObject) {
        let named = statistics.iter().map(|statistic| {
            let metric = self.metrics.get(&statistic.metric).map(Cow::Borrowed);
            let unknown = || Cow::Owned(Metric::new(&statistic.metric, i64::MIN));
            (metric.unwrap_or_else(unknown), statistic)
        });
        let mut ordered: Vec<(Cow<'_, Metric>, &Statistic)> = named.collect();
        ordered.sort_by_key(|(metric, _)| metric.position);
        for (place, (_, value)) in KINDS.iter().enumerate().take(count) {
            for (metric, statistic) in &ordered {
                let Some(name) = metric.names.get(place) else {
                    continue;
                };
                match value(statistic) {
                    (_, Some(integer)) if self.integers => write(integer, object.quoted(name)),
                    (Some(float), _) if !float.is_nan() => write_number(float, object.quoted(name)),
                    _ => {}
                }
            }
        }
    }
}

/// The name of a statistic, and its value as a float and, where it can be one, as an integer.
type Kind = (&'static str, fn(&Statistic) -> (Option<f64>, Option<i64>));

/// The means come first.
const KINDS: [Kind; 5] = [
    ("mean", |of| (of.mean, None)),
    ("max", |of| (of.max, of.integer_max)),
    ("min", |of| (of.min, of.integer_min)),
    ("median", |of| (of.median, None)),
    ("std", |of| (of.std, None)),
];
