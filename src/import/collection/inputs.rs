//! Materialized inputs as rows of `tasks`.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::error::{ImportError, RowProblem};
use super::super::keys::{ROLLOUT, TASK, TaskKeys, agent_name};
use super::ledger::Collection;
use super::rows::Line;
use crate::json::{Object, unquote};
use crate::read::TaskRow;
use crate::request::{ATTEMPT_INDEX, ENVIRONMENT_SERVER};

/// Joins the inputs of a task that differ in nothing but the rollout's index, where they follow each other.
pub(super) struct Inputs {
    file: Arc<str>,
    open: Option<Open>,
}

struct Open {
    task: TaskRow,
    /// Its text with another rollout's index.
    shape: String,
}

impl Inputs {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            open: None,
        }
    }

    /// Takes a line; gives the task that ended before it. A second reading leaves out the further inputs of a
    /// rollout that is settled.
    pub(super) fn add(
        &mut self,
        line: &Line<'_>,
        keys: &mut TaskKeys,
        collection: &mut Collection,
        is_second_reading: bool,
    ) -> Result<Option<TaskRow>, ImportError> {
        let mut row = line.row()?;
        let key = keys.key(&row).map_err(|problem| line.problem(problem))?;
        // Rows of tasksets name the environment server that they go to, and no agent.
        let server = || row.get(ENVIRONMENT_SERVER).and_then(unquote);
        let name = agent_name(&row).or_else(|| server().map(Cow::into_owned));
        let name = name.ok_or_else(|| line.problem(RowProblem::NoAgent))?;
        if is_second_reading {
            if !collection.keeps(key) {
                return Ok(None);
            }
        } else {
            collection.plan(key, &name);
        }
        let request = row.to_string();
        let task_digest = digest(&row);
        row.set(ROLLOUT, "0");
        let shape = row.to_string();
        if let Some(Open { task, shape: open }) = &mut self.open
            && task.task_index == key.task_index
            && task
                .first_rollout_index
                .checked_add(task.num_repeats.into())
                == Some(key.rollout_index)
            && task.num_repeats < u32::MAX
            && *open == shape
        {
            task.num_repeats += 1;
            return Ok(None);
        }
        let task = TaskRow {
            task_index: key.task_index,
            first_rollout_index: key.rollout_index,
            num_repeats: 1,
            agent_name: Arc::from(name),
            source_file: Arc::clone(&self.file),
            source_line: line.number,
            task_digest,
            request,
        };
        Ok(self
            .open
            .replace(Open { task, shape })
            .map(|open| open.task))
    }

    /// The last task.
    pub(super) fn finish(self) -> Option<TaskRow> {
        self.open.map(|open| open.task)
    }
}

/// The digest that reading a task file gives the same task.
fn digest(row: &Object<'_>) -> [u8; 16] {
    let mut content = String::new();
    row.write_without(&[TASK, ROLLOUT, ATTEMPT_INDEX], &mut content);
    let hash = blake3::hash(content.as_bytes());
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}
