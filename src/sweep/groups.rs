//! The rollouts of each prompt as one record, for agents that take turns with environments.

use std::collections::BTreeMap;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::{SessionContext, col, lit};
use futures::TryStreamExt;
use serde_json::Value;

use crate::agent::multi_turn::Prompt;
use crate::config::{AgentKind, GroupFailure, Settings};
use crate::error::Error;
use crate::group::{self, GROUPS, GroupAnswer, GroupPrompt, PromptGroup};
use crate::report::GroupReport;
use crate::schema::{
    AGENT_NAME, ATTEMPT, FIRST_ROLLOUT_INDEX, NUM_REPEATS, REQUEST, RESULT, ROLLOUT_INDEX,
    ROLLOUTS, TASK_INDEX, TASKS,
};
use crate::session::{self, RunTables};
use crate::store::{PartWriter, RunStore, part_name};
use crate::turn::RolloutKey;

/// Name of the one part of the table.
const PART: &str = "groups";

/// Bytes of answers that are put together before they are written.
const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// The agents whose rollouts are put together, and whether a group needs all of its rollouts.
pub(super) fn agents(settings: &Settings, names: &[String]) -> BTreeMap<String, GroupFailure> {
    let named = names.iter().filter_map(|name| {
        let own = settings.agents.get(name)?;
        let is_meant = own.kind == Some(AgentKind::MultiTurn);
        is_meant.then(|| (name.clone(), own.group.unwrap_or_default()))
    });
    named.collect()
}

/// Writes the table of groups anew, from what has landed.
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
    let mut prompts = Rows::begin(sorted(&session, &tables, TASKS, agents).await?).await?;
    let mut answers = Rows::begin(sorted(&session, &tables, ROLLOUTS, agents).await?).await?;
    let name = part_name(GROUPS, PART);
    let mut writer = PartWriter::new(run, GROUPS, &name, group::groups())?;
    let mut report = GroupReport::default();
    let mut ready = Vec::new();
    let mut bytes = 0;
    while let Some((task_index, agent)) = prompts.key() {
        let agent = agent.to_owned();
        let lines = prompts.take_all((task_index, &agent)).await?;
        let own = answers.take_all((task_index, &agent)).await?;
        // A task that was given up since it is no prompt must not take the others along.
        let Ok(prompt) = prompt(task_index, &agent, &lines) else {
            report.skipped += 1;
            continue;
        };
        let Ok(group) = together(prompt, &own) else {
            report.skipped += 1;
            continue;
        };
        let needs_all = agents.get(&agent) == Some(&GroupFailure::All);
        if group.completions.is_empty() || (needs_all && !group.is_complete()) {
            report.skipped += 1;
            continue;
        }
        report.committed += 1;
        bytes += own.iter().map(|row| row.text(RESULT).len()).sum::<usize>();
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

/// What the lines of a task ask for. They are the same task, and go on in its rollouts.
fn prompt(task_index: i64, agent: &str, lines: &[Row]) -> Result<GroupPrompt, Error> {
    let request = lines.first().map_or("", |line| line.text(REQUEST));
    let row: Value = serde_json::from_str(request).map_err(Error::defect)?;
    let own = Prompt::of(&row, None).map_err(Error::defect)?;
    let repeats = lines.iter().map(|line| line.integer(NUM_REPEATS));
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

fn together(prompt: GroupPrompt, rows: &[Row]) -> Result<PromptGroup, Error> {
    let answers = rows.iter().map(|row| {
        let attempt = u32::try_from(row.integer(ATTEMPT)).unwrap_or(u32::MAX);
        GroupAnswer {
            key: RolloutKey::new(prompt.task_index, row.integer(ROLLOUT_INDEX), attempt),
            text: row.text(RESULT),
        }
    });
    let answers: Vec<GroupAnswer<'_>> = answers.collect();
    PromptGroup::new(prompt, &answers).map_err(Error::defect)
}

/// The rows of a table that belong to these agents, by task.
async fn sorted(
    session: &SessionContext,
    tables: &RunTables,
    table: &'static str,
    agents: &BTreeMap<String, GroupFailure>,
) -> Result<SendableRecordBatchStream, Error> {
    let names = agents.keys().map(|name| lit(name.as_str())).collect();
    let (columns, last): (&[&str], &str) = match table {
        TASKS => (
            &[
                TASK_INDEX,
                AGENT_NAME,
                FIRST_ROLLOUT_INDEX,
                NUM_REPEATS,
                REQUEST,
            ],
            FIRST_ROLLOUT_INDEX,
        ),
        _ => (
            &[TASK_INDEX, AGENT_NAME, ROLLOUT_INDEX, ATTEMPT, RESULT],
            ROLLOUT_INDEX,
        ),
    };
    let order = [TASK_INDEX, AGENT_NAME, last].map(|name| col(name).sort(true, false));
    let frame = tables.table(session, table).await?;
    let frame = frame.filter(col(AGENT_NAME).in_list(names, false))?;
    let frame = frame.select_columns(columns)?.sort(order.to_vec())?;
    Ok(frame.execute_stream().await?)
}

/// A row of a batch.
struct Row {
    batch: RecordBatch,
    index: usize,
}

impl Row {
    fn integer(&self, name: &str) -> i64 {
        let column = self.batch.column_by_name(name);
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        column.map_or(0, |column| column.value(self.index))
    }

    fn text(&self, name: &str) -> &str {
        let column = self.batch.column_by_name(name);
        let column = column.and_then(|column| column.as_string_view_opt());
        column.map_or("", |column| column.value(self.index))
    }
}

/// The rows of a stream, one after the other.
struct Rows {
    stream: SendableRecordBatchStream,
    next: Option<Row>,
}

impl Rows {
    async fn begin(stream: SendableRecordBatchStream) -> Result<Self, Error> {
        let mut rows = Self { stream, next: None };
        rows.take().await?;
        Ok(rows)
    }

    /// Task and agent of the row that comes next; none at the end.
    fn key(&self) -> Option<(i64, &str)> {
        let row = self.next.as_ref()?;
        Some((row.integer(TASK_INDEX), row.text(AGENT_NAME)))
    }

    /// The row that comes next.
    async fn take(&mut self) -> Result<Option<Row>, Error> {
        let mut next = self.next.as_ref().map(|row| Row {
            batch: row.batch.clone(),
            index: row.index + 1,
        });
        while next
            .as_ref()
            .is_none_or(|row| row.index >= row.batch.num_rows())
        {
            next = self
                .stream
                .try_next()
                .await?
                .map(|batch| Row { batch, index: 0 });
            if next.is_none() {
                break;
            }
        }
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// The rows of `key`, after those that come before it.
    async fn take_all(&mut self, key: (i64, &str)) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        while let Some(of) = self.key() {
            if of > key {
                break;
            }
            let is_meant = of == key;
            rows.extend(self.take().await?.filter(|_| is_meant));
        }
        Ok(rows)
    }
}
