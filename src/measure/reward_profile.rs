//! `*_reward_profiling.jsonl` and `*_agent_metrics.json`: [`RewardProfile`] writes them from the
//! statistics tables.

use std::collections::HashMap;
use std::io::Write;

use arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use indexmap::IndexMap;

use super::error::MeasureError;
use super::families::{AGENT_STATISTICS, TASK_STATISTICS, plan};
use super::groups::{GroupOrder, Groups};
use super::json_object::JsonObject;
use super::parameter::ParameterValue;
use super::queries::MetricQueries;
use super::repeats::Repeats;
use super::rows::{Rows, counts, texts};
use super::spool::Spool;
use super::statistics::AgentStatistics;
use super::task_labels::TaskLabels;
use super::views::{spool_scores, spool_views};
use crate::gym::GymRules;
use crate::json::Object;
use crate::request::agent_ref;

const INDEX_KEYS: [&str; 2] = ["_ng_task_index", "_ng_rollout_index"];

/// The statistics of a run in the shape of NeMo Gym's reward profile: a line for each task and an
/// entry for each agent. The rollouts of all agents are one data set, and a task is one whoever
/// worked on it.
///
/// Tasks are written as they are read, one at a time.
pub struct RewardProfile<'a> {
    ctx: &'a SessionContext,
    labels: &'a TaskLabels,
    rules: &'static GymRules,
    /// Several agents worked on one task, and each has lines of its own.
    by_agent: bool,
    repeats: Repeats,
    _spool: Spool,
}

struct Sample {
    agent_name: String,
    task_index: i64,
    expected: i64,
    request: String,
}

fn samples(batch: &RecordBatch) -> Result<Vec<Sample>, MeasureError> {
    let mut agents = texts(batch, "agent_name")?.into_iter();
    let mut expected = counts(batch, "expected")?.into_iter();
    let mut requests = texts(batch, "request")?.into_iter();
    let tasks = counts(batch, "task_index")?.into_iter();
    Ok(tasks
        .map(|task_index| Sample {
            agent_name: agents.next().unwrap_or_default(),
            task_index,
            expected: expected.next().unwrap_or_default(),
            request: requests.next().unwrap_or_default(),
        })
        .collect())
}

impl Sample {
    /// The request without what tells the rollouts of a task apart.
    fn to_json(&self) -> Result<String, MeasureError> {
        let request = Object::parse(&self.request).map_err(|_| MeasureError::Row {
            table: "tasks",
            task_index: self.task_index,
        })?;
        let mut sample = JsonObject::default();
        for (name, _, value) in request
            .iter()
            .filter(|(name, ..)| !INDEX_KEYS.contains(name))
        {
            sample.raw(name, value);
        }
        Ok(sample.finish())
    }
}

/// Whether several agents worked on one task.
async fn has_shared_tasks(ctx: &SessionContext) -> Result<bool, MeasureError> {
    let sql = include_str!("../../queries/artifacts/shared_tasks.sql");
    let tasks = Rows::of(ctx, sql, |batch| counts(batch, "task_index")).await?;
    Ok(!tasks.collect().await?.is_empty())
}

/// Lets the statistics of tasks stand by task alone.
async fn forget_agents(ctx: &SessionContext) -> Result<(), DataFusionError> {
    let sql = include_str!("../../queries/artifacts/unsplit_tasks.sql");
    let unsplit = ctx.sql(sql).await?.into_view();
    ctx.deregister_table(TASK_STATISTICS)?;
    ctx.register_table(TASK_STATISTICS, unsplit).map(drop)
}

impl<'a> RewardProfile<'a> {
    /// Computes the statistics over the tables `tasks` and `rollouts` of a session, to which it adds
    /// `task_statistics` and `agent_statistics`. `source` has the same tables and gathers the scores;
    /// it may be the same session.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn compute(
        source: &SessionContext,
        ctx: &'a SessionContext,
        labels: &'a TaskLabels,
        rules: &'static GymRules,
    ) -> Result<Self, MeasureError> {
        let spool = Spool::new()?;
        let queries = MetricQueries::embedded()?;
        let parameters = |split_agents: bool| {
            HashMap::from([
                ("split_agents".into(), ParameterValue::Boolean(split_agents)),
                ("reserved".into(), rules.reserved.into()),
            ])
        };
        spool_views(&spool, source, ctx, &parameters(true)).await?;
        let table = plan(ctx, queries.get(AGENT_STATISTICS)?, &parameters(true)).await?;
        spool.keep(ctx, table, &[]).await?;
        // Where each task has one agent, its scores are the same, whether agents are split or not.
        let is_shared = has_shared_tasks(source).await?;
        let by_agent = is_shared && rules.lines_by_agent;
        let split = by_agent || !is_shared;
        if !split {
            spool_scores(&spool, source, ctx, &parameters(false)).await?;
        }
        let table = plan(ctx, queries.get(TASK_STATISTICS)?, &parameters(split)).await?;
        spool.keep(ctx, table, &[]).await?;
        if !is_shared {
            forget_agents(ctx).await.map_err(MeasureError::tables)?;
        }
        let repeats = Repeats::read(ctx, rules).await?;
        Ok(Self {
            ctx,
            labels,
            rules,
            by_agent,
            repeats,
            _spool: spool,
        })
    }

    /// Writes a line for each task that has a rollout, by index; for each of its agents, where several worked on one task
    /// and the rules tell them apart.
    ///
    /// # Errors
    /// The tables cannot be read, or the output not be written.
    pub async fn write_tasks(&self, out: &mut impl Write) -> Result<(), MeasureError> {
        let layout = AgentStatistics::read(self.ctx).await?.run_layout();
        let order = match self.by_agent {
            true => GroupOrder::TaskAgent,
            false => GroupOrder::Task,
        };
        let sql = include_str!("../../queries/artifacts/samples.sql");
        let split_agents = [("split_agents", ScalarValue::from(self.by_agent))];
        let mut asked = Rows::with_parameters(self.ctx, sql, &split_agents, samples).await?;
        let mut groups = Groups::read(self.ctx, self.labels, order, self.rules).await?;
        while let Some(group) = groups.next().await? {
            let is_its = |sample: &Sample| {
                (sample.task_index, &sample.agent_name) == (group.task_index, &group.agent_name)
            };
            let sample = asked.next_if(is_its).await?.ok_or(MeasureError::Row {
                table: "tasks",
                task_index: group.task_index,
            })?;
            let agent = self.by_agent.then_some(group.agent_name.as_str());
            let (request, expected) = (sample.to_json()?, Some(sample.expected));
            let line = group.to_json(&layout, self.labels, &request, expected, agent);
            writeln!(out, "{line}").map_err(MeasureError::Write)?;
        }
        Ok(())
    }

    /// Writes a list with an entry for each agent, by name.
    ///
    /// # Errors
    /// The tables cannot be read, or the output not be written.
    pub async fn write_agents(&self, out: &mut impl Write) -> Result<(), MeasureError> {
        let agents = AgentStatistics::read(self.ctx).await?;
        let layout = agents.run_layout();
        let order = self.repeats.metrics();
        let (mut entries, mut unmeasured) = (Vec::new(), Vec::new());
        for (name, agent) in agents.iter() {
            let mut entry = JsonObject::default();
            layout.write(&agent.statistics, &mut entry);
            entry.raw("agent_ref", &agent_ref(name));
            let (of_agent, mut more) = (self.repeats.of(name), IndexMap::new());
            of_agent.write_across(&order, &mut more);
            of_agent.write_coverage(&mut more);
            let of_kind = match agent.is_measured {
                true => &mut entries,
                false => &mut unmeasured,
            };
            of_kind.push(entry.merged(&more));
        }
        entries.append(&mut unmeasured);
        write!(out, "[{}]", entries.join(",")).map_err(MeasureError::Write)
    }

    /// Writes a list with an entry for each repeat of each agent, where the rules have such; gives what is to be known of
    /// them.
    ///
    /// # Errors
    /// The tables cannot be read, or the output not be written.
    pub async fn write_repeats(&self, out: &mut impl Write) -> Result<Vec<String>, MeasureError> {
        let entries = self.repeats.iter().flat_map(|(name, of_agent)| {
            let agent = agent_ref(name);
            of_agent.to_json(Some(("agent_ref", &agent)))
        });
        let entries = entries.collect::<Vec<_>>().join(",");
        write!(out, "[{entries}]").map_err(MeasureError::Write)?;
        Ok(self.repeats.notes())
    }
}
