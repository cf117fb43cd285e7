//! From tasks to rollouts: the relational expansion, as SQL over the tables of a run.
//!
//! [`owed`] is one row per rollout that is still to be sent, [`counts`] is what that makes per
//! agent. Both read the views `tasks`, `rollouts` and `attempts` of a session.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::dataframe::DataFrame;
use datafusion::prelude::SessionContext;

const DONE: &str = include_str!("../queries/expand/done.sql");
const OWED: &str = include_str!("../queries/expand/owed.sql");
const COUNTS: &str = include_str!("../queries/expand/counts.sql");

/// What a sweep asks of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCounts {
    /// The agent.
    pub agent_name: String,
    /// Tasks that are sent to it.
    pub num_tasks: u64,
    /// Rollouts of these tasks.
    pub num_rollouts: u64,
    /// Bytes of their requests, about.
    pub request_bytes: u64,
    /// Those that are done already.
    pub num_done: u64,
    /// Those that were given up for good.
    pub num_failed: u64,
}

impl AgentCounts {
    /// Rollouts that are still to be sent.
    pub fn num_owed(&self) -> u64 {
        self.num_rollouts
            .saturating_sub(self.num_done + self.num_failed)
    }
}

/// The rollouts still owed, in the order of the input.
///
/// # Errors
/// The session lacks a view.
pub async fn owed(session: &SessionContext) -> Result<DataFrame> {
    let done = session.sql(DONE).await?;
    session.register_table("done", done.into_view())?;
    session.sql(OWED).await
}

/// What the sweep asks of each agent, by name.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn counts(session: &SessionContext) -> Result<Vec<AgentCounts>> {
    let mut counts = Vec::new();
    for batch in session.sql(COUNTS).await?.collect().await? {
        let column = |name: &str| {
            batch
                .column_by_name(name)
                .ok_or_else(|| exec_datafusion_err!("counts.sql gives no column '{name}'"))
        };
        let integers = |name: &str| -> Result<Vec<i64>> {
            Ok(column(name)?.as_primitive::<Int64Type>().values().to_vec())
        };
        let (tasks, rollouts) = (integers("num_tasks")?, integers("num_rollouts")?);
        let (bytes, done) = (integers("request_bytes")?, integers("num_done")?);
        let failed = integers("num_failed")?;
        let names = column("agent_name")?.as_string_view();
        for (row, name) in names.iter().enumerate() {
            let at = |values: &[i64]| values.get(row).copied().unwrap_or_default().unsigned_abs();
            counts.push(AgentCounts {
                agent_name: name.unwrap_or_default().to_owned(),
                num_tasks: at(&tasks),
                num_rollouts: at(&rollouts),
                request_bytes: at(&bytes),
                num_done: at(&done),
                num_failed: at(&failed),
            });
        }
    }
    Ok(counts)
}
