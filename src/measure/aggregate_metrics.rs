//! `aggregate_metrics.json`: [`AggregateMetrics`] writes it from the statistics tables.

use std::collections::HashMap;
use std::io::Write;

use datafusion::prelude::SessionContext;
use indexmap::IndexMap;

use super::custom_metrics::CustomMetrics;
use super::error::MeasureError;
use super::families::{AGENT_STATISTICS, TASK_STATISTICS, plan};
use super::groups::Groups;
use super::json_object::JsonObject;
use super::queries::MetricQueries;
use super::spool::Spool;
use super::statistics::{Agent, AgentStatistics};
use super::task_labels::TaskLabels;
use super::views::spool_views;
use crate::json::{Object, quote};

/// What stands in the place of a task's request: an aggregation sees answers only.
const SAMPLE: &str = r#"{"agent_ref":{"name":"agent"}}"#;

/// The statistics of a run in the shape of NeMo Gym's `*_aggregate_metrics.json`: per agent its
/// metrics, the ones that matter most, and those of its tasks with every rollout. Each agent's
/// rollouts are a data set of their own.
///
/// Tasks are written as they are read, one at a time.
pub struct AggregateMetrics<'a> {
    ctx: &'a SessionContext,
    labels: &'a TaskLabels,
    custom: HashMap<String, CustomMetrics>,
    _spool: Option<Spool>,
}

impl<'a> AggregateMetrics<'a> {
    /// Of the tables of a session: `rollouts`, and the families `agent_statistics` and
    /// `task_statistics`.
    pub fn new(ctx: &'a SessionContext, labels: &'a TaskLabels) -> Self {
        Self {
            ctx,
            labels,
            custom: HashMap::new(),
            _spool: None,
        }
    }

    /// With metrics of a benchmark's own beside the statistics: by agent.
    pub fn with_custom(mut self, custom: HashMap<String, CustomMetrics>) -> Self {
        self.custom = custom;
        self
    }

    /// Computes the families over the tables `tasks` and `rollouts` of a session, to which it adds them.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn compute(
        ctx: &'a SessionContext,
        labels: &'a TaskLabels,
    ) -> Result<Self, MeasureError> {
        let (spool, parameters) = (Spool::new()?, HashMap::new());
        let queries = MetricQueries::embedded()?;
        spool_views(&spool, ctx, ctx, &parameters).await?;
        for name in [TASK_STATISTICS, AGENT_STATISTICS] {
            let table = plan(ctx, queries.get(name)?, &parameters).await?;
            spool.keep(ctx, table, &[]).await?;
        }
        Ok(Self {
            _spool: Some(spool),
            ..Self::new(ctx, labels)
        })
    }

    /// Writes a list with an entry for each agent, by name; says how many.
    ///
    /// # Errors
    /// The tables cannot be read, or the output not be written.
    pub async fn write(&self, out: &mut impl Write) -> Result<usize, MeasureError> {
        let agents = AgentStatistics::read(self.ctx).await?;
        let mut groups = Groups::read(self.ctx, self.labels, true).await?;
        let mut count = 0;
        put(out, "[")?;
        for (name, agent) in agents.iter() {
            let mut head = JsonObject::default();
            head.raw("agent_ref", &format!("{{\"name\":{}}}", quote(name)));
            head.raw("agent_metrics", &self.metrics(name, agent));
            head.raw("key_metrics", &self.key_metrics(name, agent));
            put(out, if count == 0 { "" } else { "," })?;
            put(out, &head.unfinished())?;
            put(out, ",")?;
            self.write_groups(&mut groups, name, agent, out).await?;
            put(out, "}")?;
            count += 1;
        }
        put(out, "]\n")?;
        Ok(count)
    }

    /// Writes the entry of one agent as an agent server answers it: the same without its name, and
    /// the tasks first. All is empty if the agent has no rollouts.
    ///
    /// # Errors
    /// The tables cannot be read, or the output not be written.
    pub async fn write_agent(&self, name: &str, out: &mut impl Write) -> Result<(), MeasureError> {
        let agents = AgentStatistics::read(self.ctx).await?;
        let none = Agent::default();
        let agent = agents.get(name).unwrap_or(&none);
        let mut groups = Groups::read(self.ctx, self.labels, true).await?;
        groups.skip_to(name).await?;
        put(out, "{")?;
        self.write_groups(&mut groups, name, agent, out).await?;
        put(out, ",\"agent_metrics\":")?;
        put(out, &self.metrics(name, agent))?;
        put(out, ",\"key_metrics\":")?;
        put(out, &self.key_metrics(name, agent))?;
        put(out, "}\n")
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
            let text = group.to_json(&agent.layout, self.labels, SAMPLE, None);
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

    fn metrics(&self, name: &str, agent: &Agent) -> String {
        let mut object = JsonObject::default();
        agent.layout.write(&agent.statistics, &mut object);
        match self.custom.get(name) {
            Some(custom) => object.merged(&custom.agent),
            None => object.finish(),
        }
    }

    fn key_metrics(&self, name: &str, agent: &Agent) -> String {
        let mut object = JsonObject::default();
        match self.custom.get(name).and_then(|custom| custom.key.as_ref()) {
            Some(key) => return object.merged(key),
            None => agent.layout.write_means(&agent.statistics, &mut object),
        }
        object.finish()
    }

    /// The agents that have rollouts, by name.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn agents(&self) -> Result<Vec<String>, MeasureError> {
        let agents = AgentStatistics::read(self.ctx).await?;
        Ok(agents.iter().map(|(name, _)| name.to_owned()).collect())
    }

    /// The metrics of an agent by name, as JSON text: those that key metrics are chosen of.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn agent_metrics(
        &self,
        name: &str,
    ) -> Result<IndexMap<String, String>, MeasureError> {
        let agents = AgentStatistics::read(self.ctx).await?;
        let text = agents.get(name).map(|agent| self.metrics(name, agent));
        let text = text.unwrap_or_else(|| "{}".into());
        let object = Object::parse(&text).unwrap_or_default();
        let fields = object.iter();
        Ok(fields
            .map(|(name, _, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

fn put(out: &mut impl Write, text: &str) -> Result<(), MeasureError> {
    out.write_all(text.as_bytes()).map_err(MeasureError::Write)
}
