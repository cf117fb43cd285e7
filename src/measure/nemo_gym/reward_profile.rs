//! NeMo Gym's reward profile, `*_reward_profiling.jsonl` and `*_agent_metrics.json`: [`Profile`] writes that of a run
//! or of files from the statistics tables.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use futures::future::try_join;
use indexmap::IndexMap;

use super::completion::CompletionSummary;
use super::groups::{GroupOrder, Groups};
use super::json_object::JsonObject;
use super::repeats::Repeats;
use super::statistics::AgentStatistics;
use crate::error::Error;
use crate::gym::{GymChoice, GymRules};
use crate::import::{
    AgentServers, Import, Imported, RolloutFiles, RolloutOptions, TaskLabels, Zeros, is_stamped,
};
use crate::json::Object;
use crate::measure::catalog::MetricCatalog;
use crate::measure::error::MeasureError;
use crate::measure::families::{AGENT_STATISTICS, TASK_STATISTICS};
use crate::measure::queries::MetricQueries;
use crate::measure::rows::{Column, Rows, row};
use crate::measure::source::{Sessions, Source, by_rules};
use crate::request::agent_ref;
use crate::session;
use crate::store::{Document, RunStore};

/// NeMo Gym's reward profile: a line for each task, an entry for each agent, and how many of the planned
/// rollouts are done.
pub struct Profile {
    sessions: Sessions,
    labels: TaskLabels,
    rules: &'static GymRules,
    completion: CompletionSummary,
    /// Keeps the tables of imported files readable.
    _imported: Option<Imported>,
}

/// Where a profile is written.
#[derive(Debug, Clone)]
pub struct ProfileTarget {
    /// A run, or any directory or object-store prefix.
    pub place: RunStore,
    /// The prefix of the file names: empty in a run, `NAME_` beside `NAME.jsonl`.
    pub prefix: String,
}

impl Profile {
    /// Reads a run, live or finished, from its Parquet parts and its journal. The rules of the run apply, unless `gym`
    /// names others. Queries spill to temporary files beyond `memory` bytes.
    ///
    /// # Errors
    /// The run can't be read.
    pub async fn of_run(run: &RunStore, gym: GymChoice, memory: usize) -> Result<Self, Error> {
        let (runs, rules) = by_rules(std::slice::from_ref(run), gym).await?;
        let source = Source::Runs(&runs);
        Self::of(&source, None, rules, memory).await
    }

    /// Reads files of NeMo Gym. The rules of the version that wrote them apply, unless `gym` names others.
    ///
    /// # Errors
    /// A file can't be read, or has invalid rows.
    pub async fn of_files(
        rollouts: &Path,
        materialized_inputs: &Path,
        gym: GymChoice,
        memory: usize,
    ) -> Result<Self, Error> {
        let is_stamped = is_stamped(rollouts)?;
        let rules = gym.rules(|| is_stamped);
        let files = session::gathering(memory)?;
        let mut import = Import::new()?;
        let shown = |path: &Path| path.display().to_string();
        import.materialized_inputs(materialized_inputs, &shown(materialized_inputs), rules)?;
        let options = RolloutOptions {
            files: RolloutFiles::Results,
            rules,
            servers: AgentServers::new(),
            zeros: Zeros::default(),
        };
        import.rollouts(&[(rollouts, shown(rollouts))], &options)?;
        let imported = import.register(&files).await?;
        imported.check_profile(&files).await?;
        Self::of(&Source::Tables(&files), Some(imported), rules, memory).await
    }

    async fn of(
        source: &Source<'_>,
        imported: Option<Imported>,
        rules: &'static GymRules,
        memory: usize,
    ) -> Result<Self, Error> {
        let sessions = source.open(memory).await?;
        let completion = CompletionSummary::of(&sessions.gathering, rules).await?;
        let labels = imported.as_ref().map(|files| files.labels.clone());
        Ok(Self {
            sessions,
            labels: labels.unwrap_or_default(),
            rules,
            completion,
            _imported: imported,
        })
    }

    /// Returns how many of the rollouts are done.
    pub fn completion(&self) -> &CompletionSummary {
        &self.completion
    }

    /// Fails if there are unplanned rollouts or, unless `allow_partial`, missing ones.
    ///
    /// # Errors
    /// There are such rollouts, or the tables can't be read.
    pub async fn check(&self, allow_partial: bool) -> Result<(), Error> {
        let (ctx, labels) = (&self.sessions.gathering, &self.labels);
        Ok(self.completion.check(ctx, labels, allow_partial).await?)
    }

    /// Writes `reward_profiling.jsonl`, `agent_metrics.json` and, if the rules have it, `repeat_level_metrics.json`;
    /// returns their paths. Each file appears only when it is complete. Warnings about the numbers are appended to
    /// `notes`.
    ///
    /// # Errors
    /// The tables can't be read, or a file can't be written.
    pub async fn write(
        &self,
        target: &ProfileTarget,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let create = |name: &str| {
            let name = format!("{}{name}", target.prefix);
            Document::create(&target.place, &name)
        };
        let mut tasks = create("reward_profiling.jsonl")?;
        let mut agents = create("agent_metrics.json")?;
        let statistics = self.statistics().await?;
        self.write_tasks(statistics.by_agent, &mut tasks).await?;
        self.write_agents(&statistics.repeats, &mut agents).await?;
        let mut written = vec![tasks.finish().await?, agents.finish().await?];
        if self.rules.repeats {
            let mut repeats = create("repeat_level_metrics.json")?;
            write_repeats(&statistics.repeats, &mut repeats)?;
            notes.extend(statistics.repeats.notes());
            written.push(repeats.finish().await?);
        }
        Ok(written)
    }
}

const INDEX_KEYS: [&str; 2] = ["_ng_task_index", "_ng_rollout_index"];

/// The data of a profile besides the tables `task_statistics` and `agent_statistics`. The rollouts of all agents are
/// one data set, and a task is one task, whichever agents worked on it.
struct Statistics {
    /// Whether several agents worked on one task and each has its own lines.
    by_agent: bool,
    repeats: Repeats,
    /// Keep the temporary files of the tables alive.
    _catalogs: (MetricCatalog, Option<MetricCatalog>),
}

row! {
    struct Sample {
        agent_name: String,
        task_index: i64,
        expected: i64,
        request: String,
    }
}

impl Sample {
    /// Returns the request without the indices, in which the rollouts of a task differ.
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

/// Returns whether several agents worked on one task.
async fn has_shared_tasks(ctx: &SessionContext) -> Result<bool, MeasureError> {
    let sql = include_str!("../../../queries/nemo_gym/shared_tasks.sql");
    let tasks = Rows::of(ctx, sql, |batch| i64::read(batch, "task_index")).await?;
    Ok(!tasks.collect().await?.is_empty())
}

/// Clears the agents' names in the statistics of tasks, which are then by task alone.
async fn forget_agents(ctx: &SessionContext) -> Result<(), DataFusionError> {
    let sql = include_str!("../../../queries/nemo_gym/unsplit_tasks.sql");
    let unsplit = ctx.sql(sql).await?.into_view();
    ctx.deregister_table(TASK_STATISTICS)?;
    ctx.register_table(TASK_STATISTICS, unsplit).map(drop)
}

impl Profile {
    /// Computes the statistics, and adds the tables `task_statistics` and `agent_statistics` to the sessions.
    async fn statistics(&self) -> Result<Statistics, MeasureError> {
        let (sessions, rules) = (&self.sessions, self.rules);
        let ctx = &sessions.measuring;
        let queries = MetricQueries::embedded()?;
        let parameters = |split_agents: bool| {
            HashMap::from([
                ("split_agents".into(), split_agents.into()),
                ("reserved".into(), rules.reserved.into()),
            ])
        };
        let of_agents = MetricCatalog::new(sessions, parameters(true)).await?;
        of_agents.keep_views().await?;
        // If each task has one agent, its scores do not depend on whether agents are split.
        let is_shared = has_shared_tasks(&sessions.gathering).await?;
        let by_agent = is_shared && rules.lines_by_agent;
        let (agents, tasks) = (
            queries.get(AGENT_STATISTICS)?,
            queries.get(TASK_STATISTICS)?,
        );
        let mut of_tasks = None;
        if is_shared && !by_agent {
            of_agents.keep(agents).await?;
            let unsplit = MetricCatalog::new(sessions, parameters(false)).await?;
            unsplit.keep(tasks).await?;
            of_tasks = Some(unsplit);
        } else {
            try_join(of_agents.keep(agents), of_agents.keep(tasks)).await?;
        }
        if !is_shared {
            forget_agents(ctx).await?;
        }
        let repeats = Repeats::read(ctx, rules).await?;
        Ok(Statistics {
            by_agent,
            repeats,
            _catalogs: (of_agents, of_tasks),
        })
    }

    /// Writes a line for each task that has a rollout, sorted by index. With `by_agent`, a task has a line for each of
    /// its agents.
    async fn write_tasks(&self, by_agent: bool, out: &mut impl Write) -> Result<(), MeasureError> {
        let ctx = &self.sessions.measuring;
        let order = if by_agent {
            GroupOrder::TaskAgent
        } else {
            GroupOrder::Task
        };
        let mut groups = Groups::read(ctx, &self.labels, order, self.rules).await?;
        let layout = AgentStatistics::read(ctx).await?.run_layout();
        let sql = include_str!("../../../queries/nemo_gym/samples.sql");
        let split_agents = [("split_agents", ScalarValue::from(by_agent))];
        let mut asked = Rows::with_parameters(ctx, sql, &split_agents, Sample::rows).await?;
        while let Some(group) = groups.next().await? {
            let is_its = |sample: &Sample| {
                (sample.task_index, &sample.agent_name) == (group.task_index, &group.agent_name)
            };
            let sample = asked.next_if(is_its).await?.ok_or(MeasureError::Row {
                table: "tasks",
                task_index: group.task_index,
            })?;
            let agent = by_agent.then_some(group.agent_name.as_str());
            let (request, expected) = (sample.to_json()?, Some(sample.expected));
            let line = group.to_json(&layout, &self.labels, &request, expected, agent);
            writeln!(out, "{line}").map_err(MeasureError::Write)?;
        }
        Ok(())
    }

    /// Writes a list with an entry for each agent, by name. Agents without accepted rollouts come last.
    async fn write_agents(
        &self,
        repeats: &Repeats,
        out: &mut impl Write,
    ) -> Result<(), MeasureError> {
        let agents = AgentStatistics::read(&self.sessions.measuring).await?;
        let layout = agents.run_layout();
        let order = repeats.metrics();
        let (mut entries, mut unmeasured) = (Vec::new(), Vec::new());
        for (name, agent) in agents.iter() {
            let mut entry = JsonObject::default();
            layout.write(&agent.statistics, &mut entry);
            entry.raw("agent_ref", &agent_ref(name));
            let (of_agent, mut more) = (repeats.of(name), IndexMap::new());
            of_agent.write_across(&order, &mut more);
            of_agent.write_coverage(&mut more);
            let of_kind = if agent.is_measured {
                &mut entries
            } else {
                &mut unmeasured
            };
            of_kind.push(entry.merged(&more));
        }
        entries.append(&mut unmeasured);
        write!(out, "[{}]", entries.join(",")).map_err(MeasureError::Write)
    }
}

/// Writes a list with an entry for each repeat of each agent.
fn write_repeats(repeats: &Repeats, out: &mut impl Write) -> Result<(), MeasureError> {
    let entries = repeats.iter().flat_map(|(name, of_agent)| {
        let agent = agent_ref(name);
        of_agent.to_json(Some(("agent_ref", &agent)))
    });
    let entries = entries.collect::<Vec<_>>().join(",");
    write!(out, "[{entries}]").map_err(MeasureError::Write)
}
