use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use datafusion::prelude::SessionContext;

use crate::agent::{AgentError, Agents};
use crate::error::Error;
use crate::expand;

/// Refuses tasks of a kind that their agent does not take, before anything is sent. `session` has the tasks.
pub(super) async fn check(session: &SessionContext, agents: &Agents) -> Result<(), Error> {
    for batch in expand::task_names(session).await?.collect().await? {
        let text = |name: &str| batch.column_by_name(name)?.as_string_view_opt();
        let lines = batch.column_by_name("source_line");
        let lines = lines.and_then(|column| column.as_primitive_opt::<Int64Type>());
        for row in 0..batch.num_rows() {
            let value = |name: &str| {
                let column = text(name).filter(|column| column.is_valid(row))?;
                Some(column.value(row))
            };
            let agent = value("agent_name").unwrap_or_default();
            let Some(member) = agents.get(agent) else {
                continue;
            };
            let taken = member.agent.check_task_name(value("task_name"));
            taken.map_err(|reason| AgentError::TaskName {
                agent: agent.to_owned(),
                place: value("source_file").unwrap_or_default().to_owned(),
                line: lines.map_or(0, |lines| lines.value(row)),
                reason,
            })?;
        }
    }
    Ok(())
}
