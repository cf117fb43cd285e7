//! `aggregate_metrics.json`: [`AggregateMetrics`] writes it from the statistics tables.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use datafusion::prelude::SessionContext;
use indexmap::IndexMap;
use tokio::sync::OnceCell;

use super::custom::CustomMetrics;
use super::groups::{GroupOrder, Groups};
use super::json_object::JsonObject;
use super::perf::perf_summaries;
use super::repeats::{AgentRepeats, OwnRepeats, Repeats};
use super::statistics::{Agent, AgentStatistics};
use crate::gym::GymRules;
use crate::import::TaskLabels;
use crate::json::quote;
use crate::measure::catalog::MetricCatalog;
use crate::measure::error::MeasureError;
use crate::measure::families::{AGENT_STATISTICS, TASK_STATISTICS};
use crate::measure::queries::MetricQueries;
use crate::measure::source::Sessions;
use crate::request::agent_ref;
use crate::store::EnvironmentServer;

/// The sample of every task: an aggregation sees answers but no requests.
const SAMPLE: &str = r#"{"agent_ref":{"name":"agent"}}"#;

/// Writes the statistics of a run in the form of NeMo Gym's `*_aggregate_metrics.json`: for each agent its
/// metrics, its key metrics, and those of its tasks with every rollout. Each agent's
/// rollouts are a data set of their own.
///
/// Tasks are written as they are read, one at a time.
pub struct AggregateMetrics<'a> {
    ctx: &'a SessionContext,
    labels: &'a TaskLabels,
    rules: &'static GymRules,
    custom: HashMap<String, CustomMetrics>,
    servers: BTreeMap<String, EnvironmentServer>,
    statistics: OnceCell<AgentStatistics>,
    repeats: OnceCell<Repeats>,
    /// Keeps the temporary files of its tables alive.
    _catalog: Option<MetricCatalog>,
}

impl<'a> AggregateMetrics<'a> {
    /// Creates the writer over tables of a session: `rollouts`, and the families `agent_statistics` and
    /// `task_statistics`.
    pub fn new(ctx: &'a SessionContext, labels: &'a TaskLabels, rules: &'static GymRules) -> Self {
        Self {
            ctx,
            labels,
            rules,
            custom: HashMap::new(),
            servers: BTreeMap::new(),
            statistics: OnceCell::new(),
            repeats: OnceCell::new(),
            _catalog: None,
        }
    }

    /// Returns the rules that the file follows.
    pub fn rules(&self) -> &'static GymRules {
        self.rules
    }

    /// Adds a benchmark's own metrics, by agent, to the statistics.
    pub fn with_custom(mut self, custom: HashMap<String, CustomMetrics>) -> Self {
        self.custom = custom;
        self
    }

    /// Sets the environment servers that agents stand for, by agent name.
    pub fn with_servers(mut self, servers: BTreeMap<String, EnvironmentServer>) -> Self {
        self.servers = servers;
        self
    }

    /// Computes the families over the tables `tasks` and `rollouts` of a session, and adds them to it.
    /// Fails if the tables cannot be read.
    pub async fn compute(
        ctx: &'a SessionContext,
        labels: &'a TaskLabels,
        rules: &'static GymRules,
    ) -> Result<Self, MeasureError> {
        let parameters = HashMap::from([("reserved".into(), rules.reserved.into())]);
        let queries = MetricQueries::embedded()?;
        let catalog = MetricCatalog::new(&Sessions::of(ctx, ctx), parameters).await?;
        catalog.keep_views().await?;
        for name in [TASK_STATISTICS, AGENT_STATISTICS] {
            catalog.keep(queries.get(name)?).await?;
        }
        Ok(Self {
            _catalog: Some(catalog),
            ..Self::new(ctx, labels, rules)
        })
    }

    /// Writes a list with an entry for each agent, sorted by name. Returns warnings about the numbers.
    /// Fails if the tables cannot be read, or the output not be written.
    pub async fn write(&self, out: &mut impl Write) -> Result<Vec<String>, MeasureError> {
        // The groups are sorted while the rest is read.
        let mut groups =
            Groups::read(self.ctx, self.labels, GroupOrder::AgentTask, self.rules).await?;
        let agents = self.agent_statistics().await?;
        let repeats = self.repeats().await?;
        let perf = self.perf(repeats).await?;
        let mut before = "[";
        for (name, agent) in agents.iter() {
            let entry = self.entry(name, agent, repeats, &perf);
            put(out, before)?;
            let label = self.label(name, agents.iter().map(|(name, _)| name));
            put(out, &format!("{{\"agent_ref\":{}", agent_ref(label)))?;
            if let Some(server) = self.servers.get(name) {
                put(
                    out,
                    &format!(",\"_ng_environment_server\":{}", quote(&server.name)),
                )?;
            }
            put(out, &entry.metrics)?;
            put(out, ",")?;
            self.write_groups(&mut groups, name, agent, out).await?;
            put(out, &entry.rest)?;
            put(out, "}")?;
            before = ",";
        }
        put(out, if before == "[" { "[]\n" } else { "]\n" })?;
        Ok(repeats.notes())
    }

    /// Writes the entry of one agent in the form that an agent server returns: without its name, and with
    /// the tasks first. Its parts are empty if the agent has no rollouts.
    /// Fails if the tables cannot be read, or the output not be written.
    pub async fn write_agent(&self, name: &str, out: &mut impl Write) -> Result<(), MeasureError> {
        let agents = self.agent_statistics().await?;
        let none = Agent::default();
        let agent = agents.get(name).unwrap_or(&none);
        let repeats = self.repeats().await?;
        let perf = self.perf(repeats).await?;
        let entry = self.entry(name, agent, repeats, &perf);
        let mut groups =
            Groups::read(self.ctx, self.labels, GroupOrder::AgentTask, self.rules).await?;
        groups.skip_to(name).await?;
        put(out, "{")?;
        self.write_groups(&mut groups, name, agent, out).await?;
        put(out, &entry.metrics)?;
        put(out, &entry.rest)?;
        put(out, "}\n")
    }

    /// Returns the name of an entry: the agent's, or the environment server's if another entry has the same agent.
    fn label<'b>(&'b self, name: &'b str, mut all: impl Iterator<Item = &'b str>) -> &'b str {
        let server = self.servers.get(name);
        let agent_of = |name: &'b str| {
            let server = self.servers.get(name);
            let agent = server.and_then(|server| server.agent.as_deref());
            agent.unwrap_or(name)
        };
        let agent = agent_of(name);
        if all.all(|other| other == name || agent_of(other) != agent) {
            agent
        } else {
            server.map_or(name, |server| &server.name)
        }
    }

    /// Returns the statistics of all agents. Reads them once, since each agent's are used several times.
    async fn agent_statistics(&self) -> Result<&AgentStatistics, MeasureError> {
        let read = || AgentStatistics::read(self.ctx);
        self.statistics.get_or_try_init(read).await
    }

    /// Returns the repeats of all agents. Reads them once.
    async fn repeats(&self) -> Result<&Repeats, MeasureError> {
        let read = || Repeats::read(self.ctx, self.rules);
        self.repeats.get_or_try_init(read).await
    }

    async fn perf(&self, repeats: &Repeats) -> Result<BTreeMap<String, String>, MeasureError> {
        let num_rollouts = |agent: &str| {
            let agent = repeats.of(agent);
            agent.measured + agent.masked
        };
        if !self.rules.repeats {
            return Ok(BTreeMap::new());
        }
        perf_summaries(self.ctx, num_rollouts).await
    }

    async fn write_groups(
        &self,
        groups: &mut Groups<'_>,
        name: &str,
        agent: &Agent,
        out: &mut impl Write,
    ) -> Result<(), MeasureError> {
        let mut separator = "";
        put(out, "\"group_level_metrics\":[")?;
        while let Some(group) = groups.next_of(name).await? {
            put(out, separator)?;
            let text = group.to_json(&agent.layout, self.labels, SAMPLE, None, None);
            let tasks = self.custom.get(name).map(|custom| &custom.tasks);
            let custom = tasks.and_then(|tasks| tasks.get(&group.task_index));
            match custom {
                Some(custom) => put(out, &JsonObject::from(text).merged(custom))?,
                None => put(out, &text)?,
            }
            separator = ",";
        }
        put(out, "]")
    }

    fn entry(
        &self,
        name: &str,
        agent: &Agent,
        repeats: &Repeats,
        perf: &BTreeMap<String, String>,
    ) -> Entry {
        let mut repeats = repeats.of(name);
        let custom = self.custom.get(name);
        let mut metrics = self.statistics(agent, &repeats);
        let is_measured = !self.rules.repeats || repeats.measured > 0;
        if let Some(custom) = custom.filter(|_| is_measured) {
            metrics.extend(custom.agent.clone());
        }
        if repeats.measured > 0 {
            metrics.insert("num_repeats".into(), repeats.num_repeats.to_string());
        }
        let own_key = custom.and_then(|custom| custom.key.clone());
        let mut key_metrics = match own_key.filter(|_| is_measured) {
            Some(key) => key,
            None if self.rules.repeats => {
                let means = metrics.iter().filter(|(name, _)| name.starts_with("mean/"));
                means
                    .map(|(name, mean)| (name.clone(), mean.clone()))
                    .collect()
            }
            None => {
                let mut means = JsonObject::default();
                agent.layout.write_means(&agent.statistics, &mut means);
                means.into_fields()
            }
        };
        repeats.write_coverage(&mut key_metrics);
        let mut rest = String::new();
        if self.rules.repeats {
            if let Some(custom) = custom {
                repeats.replace(&custom.repeats, &custom.agent, &mut metrics);
            }
            let entries = repeats.to_json(None).join(",");
            rest = format!(",\"repeat_level_metrics\":[{entries}]");
        }
        if let Some(summary) = perf.get(name) {
            rest.push_str(",\"perf_summary\":");
            rest.push_str(summary);
        }
        let (metrics, key_metrics) = (text(&metrics), text(&key_metrics));
        Entry {
            metrics: format!(",\"agent_metrics\":{metrics},\"key_metrics\":{key_metrics}"),
            rest,
        }
    }

    /// Returns the metrics of an agent's rollouts, without a benchmark's own.
    fn statistics(&self, agent: &Agent, repeats: &AgentRepeats) -> IndexMap<String, String> {
        let mut object = JsonObject::default();
        agent.layout.write(&agent.statistics, &mut object);
        let mut metrics = object.into_fields();
        repeats.write_across(&[], &mut metrics);
        repeats.write_coverage(&mut metrics);
        metrics
    }

    /// Returns the names of the agents that have rollouts, sorted.
    /// Fails if the tables cannot be read.
    pub async fn agents(&self) -> Result<Vec<String>, MeasureError> {
        let agents = self.agent_statistics().await?;
        Ok(agents.iter().map(|(name, _)| name.to_owned()).collect())
    }

    /// Returns the metrics of an agent's repeats in which a benchmark's report, `said`, differs from ours.
    /// Fails if the tables cannot be read.
    pub async fn own_repeats(
        &self,
        name: &str,
        said: &OwnRepeats,
    ) -> Result<OwnRepeats, MeasureError> {
        Ok(self.repeats().await?.of(name).own(said))
    }

    /// Returns the metrics of an agent, by name as JSON text, from which key metrics are chosen.
    /// Fails if the tables cannot be read.
    pub async fn agent_metrics(
        &self,
        name: &str,
    ) -> Result<IndexMap<String, String>, MeasureError> {
        let agents = self.agent_statistics().await?;
        let repeats = self.repeats().await?.of(name);
        let agent = agents.get(name);
        Ok(agent.map_or_else(IndexMap::new, |agent| self.statistics(agent, &repeats)))
    }
}

/// The parts of an agent's entry that are not its tasks.
struct Entry {
    /// Its metrics and key metrics.
    metrics: String,
    /// The fields that follow the tasks.
    rest: String,
}

fn text(fields: &IndexMap<String, String>) -> String {
    let mut object = JsonObject::default();
    fields
        .iter()
        .for_each(|(name, value)| object.raw(name, value));
    object.finish()
}

fn put(out: &mut impl Write, text: &str) -> Result<(), MeasureError> {
    out.write_all(text.as_bytes()).map_err(MeasureError::Write)
}
