//! Writes the table of groups: the rollouts of each prompt as one record, for multi-turn agents.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use datafusion::prelude::{DataFrame, SessionContext, col, lit};
use serde_json::Value;

use crate::agent::multi_turn::Prompt;
use crate::call::RolloutKey;
use crate::config::{AgentKind, GroupFailure, Settings};
use crate::error::Error;
use crate::group::{self, GROUPS, GroupAnswer, GroupPrompt, PromptGroup};
use crate::report::GroupReport;
use crate::schema::{
    AGENT_NAME, ATTEMPT, FIRST_ROLLOUT_INDEX, NUM_REPEATS, REQUEST, RESULT, ROLLOUT_INDEX,
    ROLLOUTS, TASK_INDEX, TASKS,
};
use crate::session::{self, Rows, RunTables, row};
use crate::store::{PartWriter, RunStore, part_name};

/// Bytes of answers in a batch of groups.
const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Returns the agents whose rollouts become groups, and whether a group needs all of its rollouts.
pub(super) fn agents(settings: &Settings, names: &[String]) -> BTreeMap<String, GroupFailure> {
    let named = names.iter().filter_map(|name| {
        let own = settings.agents.get(name)?;
        let is_meant = own.kind == Some(AgentKind::MultiTurn);
        is_meant.then(|| (name.clone(), own.group.unwrap_or_default()))
    });
    named.collect()
}

/// Writes the table of groups from the rollouts that have landed.
///
/// # Errors
/// The run can't be read or written.
pub(super) async fn write(
    run: &RunStore,
    agents: &BTreeMap<String, GroupFailure>,
    memory: usize,
) -> Result<GroupReport, Error> {
    let session = session::measuring(memory)?;
    let tables = RunTables::look(run).await?;
    let frame = sorted(&session, &tables, TASKS, agents, FIRST_ROLLOUT_INDEX).await?;
    let frame = frame.select_columns(&[TASK_INDEX, AGENT_NAME, NUM_REPEATS, REQUEST])?;
    let mut prompts = Rows::start(frame, Line::rows).await?;
    let frame = sorted(&session, &tables, ROLLOUTS, agents, ROLLOUT_INDEX).await?;
    let columns = [TASK_INDEX, AGENT_NAME, ROLLOUT_INDEX, ATTEMPT, RESULT];
    let mut answers = Rows::start(frame.select_columns(&columns)?, Answer::rows).await?;
    // The one part of the table has its name.
    let name = part_name(GROUPS, GROUPS);
    let mut writer = PartWriter::new(run, GROUPS, &name, group::groups())?;
    let mut report = GroupReport::default();
    let mut ready = Vec::new();
    let mut bytes = 0;
    while let Some(first) = prompts.next().await? {
        let key = (first.task_index, first.agent_name.clone());
        let key = (key.0, key.1.as_str());
        let mut lines = vec![first];
        while let Some(line) = prompts.next_if(|line| line.key() == key).await? {
            lines.push(line);
        }
        while answers
            .next_if(|answer| answer.key() < key)
            .await?
            .is_some()
        {}
        let mut own = Vec::new();
        while let Some(answer) = answers.next_if(|answer| answer.key() == key).await? {
            own.push(answer);
        }
        // A task that is no prompt is skipped, so that the others are still written.
        let group = prompt(key, &lines).and_then(|prompt| together(prompt, &own));
        let needs_all = agents.get(key.1) == Some(&GroupFailure::All);
        let group = group
            .ok()
            .filter(|group| !group.completions.is_empty() && (!needs_all || group.is_complete()));
        let Some(group) = group else {
            report.skipped += 1;
            continue;
        };
        report.committed += 1;
        bytes += own.iter().map(|answer| answer.result.len()).sum::<usize>();
        ready.push(group);
        if bytes >= BATCH_BYTES {
            writer.write(&batch(&ready)?).await?;
            ready.clear();
            bytes = 0;
        }
    }
    writer.write(&batch(&ready)?).await?;
    report.written = writer.finish().await?.path;
    Ok(report)
}

fn batch(groups: &[PromptGroup]) -> Result<RecordBatch, Error> {
    group::batch(groups).map_err(Error::defect)
}

row! {
    /// A line of a task.
    struct Line {
        task_index: i64,
        agent_name: String,
        num_repeats: i64,
        request: String,
    }
}

row! {
    /// A rollout that is done.
    struct Answer {
        task_index: i64,
        agent_name: String,
        rollout_index: i64,
        attempt: i64,
        result: String,
    }
}

impl Line {
    fn key(&self) -> (i64, &str) {
        (self.task_index, &self.agent_name)
    }
}

impl Answer {
    fn key(&self) -> (i64, &str) {
        (self.task_index, &self.agent_name)
    }
}

/// Returns the prompt of a task from its lines: they share one request, and each asks for other rollouts of it.
fn prompt((task_index, agent): (i64, &str), lines: &[Line]) -> Result<GroupPrompt, Error> {
    let request = lines.first().map_or("", |line| &line.request);
    let row: Value = serde_json::from_str(request).map_err(Error::defect)?;
    let own = Prompt::of(&row, None).map_err(Error::defect)?;
    let repeats = lines.iter().map(|line| line.num_repeats);
    Ok(GroupPrompt {
        task_index,
        agent_name: agent.to_owned(),
        prompt_idx: own.idx,
        task_name: own.task_name,
        message_log: own.message_log,
        extra_env_info: own.extra_env_info,
        num_rollouts: u64::try_from(repeats.sum::<i64>()).unwrap_or_default(),
    })
}

fn together(prompt: GroupPrompt, answers: &[Answer]) -> Result<PromptGroup, Error> {
    let answers = answers.iter().map(|answer| {
        let attempt = u32::try_from(answer.attempt).unwrap_or(u32::MAX);
        GroupAnswer {
            key: RolloutKey::new(prompt.task_index, answer.rollout_index, attempt),
            text: &answer.result,
        }
    });
    let answers: Vec<GroupAnswer<'_>> = answers.collect();
    PromptGroup::new(prompt, &answers).map_err(Error::defect)
}

/// Returns the rows of a table that belong to these agents, sorted by task, agent and the column `last`.
async fn sorted(
    session: &SessionContext,
    tables: &RunTables,
    table: &'static str,
    agents: &BTreeMap<String, GroupFailure>,
    last: &str,
) -> Result<DataFrame, Error> {
    let names = agents.keys().map(|name| lit(name.as_str())).collect();
    let order = [TASK_INDEX, AGENT_NAME, last].map(|name| col(name).sort(true, false));
    let frame = tables.table(session, table).await?;
    let frame = frame.filter(col(AGENT_NAME).in_list(names, false))?;
    Ok(frame.sort(order.to_vec())?)
}
