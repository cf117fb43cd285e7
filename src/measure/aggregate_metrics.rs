//! `aggregate_metrics.json`: [`AggregateMetrics`] writes it from the statistics tables.

use std::collections::HashMap;
use std::io::Write;

use datafusion::prelude::SessionContext;

use super::error::MeasureError;
use super::families::{AGENT_STATISTICS, TASK_STATISTICS, plan};
use super::groups::Groups;
use super::json_object::JsonObject;
use super::queries::MetricQueries;
use super::spool::Spool;
use super::statistics::{Agent, AgentStatistics};
use super::task_labels::TaskLabels;
use super::views::spool_scores;
use crate::json::quote;

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
    _spool: Option<Spool>,
}

impl<'a> AggregateMetrics<'a> {
    /// Of the tables of a session: `rollouts`, and the families `agent_statistics` and
    /// `task_statistics`.
    pub fn new(ctx: &'a SessionContext, labels: &'a TaskLabels) -> Self {
        let _spool = None;
        Self {
            ctx,
            labels,
            _spool,
        }
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
        spool_scores(&spool, ctx, ctx, &parameters).await?;
        for name in [TASK_STATISTICS, AGENT_STATISTICS] {
            let table = plan(ctx, queries.get(name)?, &parameters).await?;
            spool.keep(ctx, table, &[]).await?;
        }
        let _spool = Some(spool);
        Ok(Self {
            ctx,
            labels,
            _spool,
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
            head.raw("agent_metrics", &metrics(agent));
            head.raw("key_metrics", &key_metrics(agent));
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
        put(out, &metrics(agent))?;
        put(out, ",\"key_metrics\":")?;
        put(out, &key_metrics(agent))?;
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
            put(
                out,
                &group.to_json(&agent.layout, self.labels, SAMPLE, None),
            )?;
            separator = ",";
        }
        put(out, "]")
    }
}

fn metrics(agent: &Agent) -> String {
    let mut object = JsonObject::default();
    agent.layout.write(&agent.statistics, &mut object);
    object.finish()
}

fn key_metrics(agent: &Agent) -> String {
    let mut object = JsonObject::default();
    agent.layout.write_means(&agent.statistics, &mut object);
    object.finish()
}

fn put(out: &mut impl Write, text: &str) -> Result<(), MeasureError> {
    out.write_all(text.as_bytes()).map_err(MeasureError::Write)
}
