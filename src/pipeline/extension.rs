//! A run that gets more tasks, or more rollouts per task: legal as long as nothing that was asked
//! before is asked differently.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use datafusion::prelude::SessionContext;
use serde_json::Value;

use super::identity::{self, NotResumable};
use super::spool::Spool;
use crate::error::Error;
use crate::schema::TASKS;
use crate::session::{self, RunTables};
use crate::store::{RunRecord, RunStore};

const EXTENSION: &str = include_str!("../../queries/expand/extension.sql");

/// What may differ: it only says how much is asked.
const MAY_DIFFER: [&str; 3] = ["input", "limit", "num_repeats"];

/// Whether the run gets other tasks than it has; an error where that would not be an extension.
pub(super) async fn check(
    record: &RunRecord,
    now: &Value,
    run: &RunStore,
    spool: &Spool,
) -> Result<bool, Error> {
    let place = run.display("");
    let differences = identity::differences(record, now);
    let others: Vec<String> = differences
        .iter()
        .filter(|(key, _)| !MAY_DIFFER.contains(&key.as_str()))
        .map(|(_, text)| text.clone())
        .collect();
    if !others.is_empty() {
        let difference = format!("--extend adds tasks and repeats, but {}", others.join("; "));
        return Err(NotResumable { place, difference }.into());
    }
    if differences.is_empty() {
        return Ok(false);
    }
    let lost = lost(run, spool).await?;
    if lost.is_empty() {
        return Ok(true);
    }
    let difference = format!("--extend keeps what there is, but {}", lost.join("; "));
    Err(NotResumable { place, difference }.into())
}

/// Tasks and rollouts that the run has and the input no longer asks for, in words.
///
/// # Errors
/// A table can't be read.
pub(super) async fn lost(run: &RunStore, spool: &Spool) -> Result<Vec<String>, Error> {
    let session = SessionContext::new_with_config(session::config());
    let before = RunTables::look(run).await?;
    let before = before.table(&session, TASKS).await?;
    session.register_table("tasks_before", before.into_view())?;
    let tasks = RunTables::look(spool.store()).await?;
    let tasks = tasks.table(&session, TASKS).await?;
    session.register_table(TASKS, tasks.into_view())?;
    let mut lost = Vec::new();
    for batch in session.sql(EXTENSION).await?.collect().await? {
        let (Some(files), [lines, repeats, now]) = (
            batch.column(0).as_string_view_opt(),
            [1, 3, 4].map(|column| batch.column(column).as_primitive::<Int64Type>()),
        ) else {
            return Err(Error::defect("extension.sql gives other columns"));
        };
        for row in 0..batch.num_rows() {
            let what = match now.is_null(row) {
                true => "is not there any more, or not the same".to_owned(),
                false => format!(
                    "had {} rollouts and has {}",
                    repeats.value(row),
                    now.value(row)
                ),
            };
            let (file, line) = (files.value(row), lines.value(row));
            lost.push(format!("the task of {file} line {line} {what}"));
        }
    }
    Ok(lost)
}
