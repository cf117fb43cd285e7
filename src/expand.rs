//! From tasks to rollouts: the relational expansion, as SQL over the tables of a run.
//!
//! [`prepare`] makes the views that say what is done and given up; then [`pending`] is one row per
//! rollout that is still to be sent, [`prior`] what went wrong before with them, and [`counts`] is
//! what that makes per agent.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringViewArray,
};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::cast::{
    as_boolean_array, as_float64_array, as_int32_array, as_string_view_array,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;

use crate::config::Settings;
use crate::json::{Object, unquote};
use crate::outcome::resume::{self, FAILURE_CLASS};
use crate::retry::{Budget, Budgets, FailureClass, FailureCounts, Prior};

const FAILURES: &str = include_str!("../queries/expand/failures.sql");
const GIVEN_UP: &str = include_str!("../queries/expand/given_up.sql");
const DONE: &str = include_str!("../queries/expand/done.sql");
const PRIOR: &str = include_str!("../queries/expand/prior.sql");
const UNANSWERED: &str = include_str!("../queries/expand/unanswered.sql");
const LOST: &str = include_str!("../queries/expand/lost.sql");
const PENDING: &str = include_str!("../queries/expand/pending.sql");
const TASK_NAMES: &str = include_str!("../queries/expand/task_names.sql");
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
    pub fn num_pending(&self) -> u64 {
        self.num_rollouts
            .saturating_sub(self.num_done + self.num_failed)
    }
}

/// Whether failures that agents call terminal are so for a resume, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// They are.
    AsStamped,
    /// Those that another attempt can mend are not.
    UnlessMendable,
}

impl Terminal {
    /// What the settings of a resume say.
    pub fn of(settings: &Settings) -> Self {
        match settings.retry_terminal_timeouts {
            true => Self::UnlessMendable,
            false => Self::AsStamped,
        }
    }
}

/// Makes the tables `budgets` and `given_up` and the views `failures` and `done` from `rollouts` and
/// `attempts`. `budgets` are those of each agent.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn prepare<'a>(
    session: &SessionContext,
    budgets: impl IntoIterator<Item = (&'a str, Budgets)>,
    terminal: Terminal,
) -> Result<()> {
    session.register_batch("budgets", budgets_table(budgets)?)?;
    session.register_udf(failure_budget());
    session.register_udf(is_terminal());
    session.register_udf(attempt_seconds());
    session.register_udf(reuses_deliverable());
    let is_mendable = ScalarValue::from(terminal == Terminal::UnlessMendable);
    let failures = session.sql(FAILURES).await?;
    let failures = failures.with_param_values(vec![("retry_terminal_timeouts", is_mendable)])?;
    session.register_table("failures", failures.into_view())?;
    // Found out at once, and not within each plan that asks: the plan of a sweep stays readable.
    let given_up = session.sql(GIVEN_UP).await?.cache().await?;
    session.register_table("given_up", given_up.into_view())?;
    let done = session.sql(DONE).await?;
    session.register_table("done", done.into_view())?;
    Ok(())
}

/// The kinds of tasks of each agent, and where the first of each stands. The session has the functions that
/// read JSON.
///
/// # Errors
/// The session lacks the tasks.
pub async fn task_names(session: &SessionContext) -> Result<DataFrame> {
    session.sql(TASK_NAMES).await
}

fn budgets_table<'a>(budgets: impl IntoIterator<Item = (&'a str, Budgets)>) -> Result<RecordBatch> {
    let (names, budgets): (Vec<&str>, Vec<Budgets>) = budgets.into_iter().unzip();
    let column = |of: fn(&Budgets) -> u32| -> ArrayRef {
        let values = budgets.iter().map(|budgets| i64::from(of(budgets)));
        Arc::new(values.collect::<Int64Array>())
    };
    let names: ArrayRef = Arc::new(StringViewArray::from(names));
    Ok(RecordBatch::try_from_iter([
        ("agent_name", names),
        ("infra", column(|budgets| budgets.infra)),
        ("rate_limit", column(|budgets| budgets.rate_limit)),
        ("data", column(|budgets| budgets.data)),
        ("attempts", column(|budgets| budgets.attempts)),
    ])?)
}

/// The rollouts still pending, in the order of the input.
///
/// # Errors
/// The session lacks a view.
pub async fn pending(session: &SessionContext) -> Result<DataFrame> {
    session.sql(PENDING).await
}

/// What went wrong before with the rollouts still pending, by task and rollout.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn prior(session: &SessionContext) -> Result<HashMap<(i64, i64), Prior>> {
    let mut prior = HashMap::new();
    for batch in session.sql(PRIOR).await?.collect().await? {
        let integers = |column: usize| -> Result<Vec<i64>> {
            let column = batch.columns().get(column);
            let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
            let column =
                column.ok_or_else(|| exec_datafusion_err!("prior.sql gives other columns"));
            Ok(column?.values().to_vec())
        };
        let (tasks, rollouts, attempts) = (integers(0)?, integers(1)?, integers(2)?);
        let (infra, rate_limit) = (integers(3)?, integers(4)?);
        let (data, flagged) = (integers(5)?, integers(6)?);
        let seconds = as_float64_array(batch.column(7))?;
        let reuses = as_boolean_array(batch.column(8))?;
        for row in 0..batch.num_rows() {
            let at = |values: &[i64]| values.get(row).copied().unwrap_or_default();
            let count = |values: &[i64]| u32::try_from(at(values)).unwrap_or(u32::MAX);
            let failures = FailureCounts {
                infra: count(&infra),
                rate_limit: count(&rate_limit),
                data: count(&data),
                attempts: count(&flagged),
                ..FailureCounts::default()
            };
            let attempt = count(&attempts);
            let known = Prior {
                attempt,
                failures,
                seconds: seconds.is_valid(row).then(|| seconds.value(row)),
                reuses_deliverable: reuses.is_valid(row) && reuses.value(row),
            };
            prior.insert((at(&tasks), at(&rollouts)), known);
        }
    }
    Ok(prior)
}

/// `failure_budget(outcome, http_status)`: name of the budget that a failed attempt counts against, if any.
fn failure_budget() -> ScalarUDF {
    let given = vec![DataType::Utf8View, DataType::Int32];
    let function = |columns: &[ColumnarValue]| -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let [outcomes, statuses] = columns.as_slice() else {
            return Err(exec_datafusion_err!("failure_budget takes two columns"));
        };
        let rows = as_string_view_array(outcomes)?.iter();
        let budgets = rows
            .zip(as_int32_array(statuses)?)
            .map(|(outcome, status)| {
                let status = status.and_then(|status| u16::try_from(status).ok());
                Budget::of(FailureClass::of_name(outcome?)?, status).map(Budget::name)
            });
        let budgets: StringViewArray = budgets.collect();
        Ok(ColumnarValue::Array(Arc::new(budgets)))
    };
    create_udf(
        "failure_budget",
        given,
        DataType::Utf8View,
        Volatility::Immutable,
        Arc::new(function),
    )
}

/// `is_terminal(answer, failure_terminal)`: whether a resume that tries terminal timeouts again takes a failure for
/// terminal.
fn is_terminal() -> ScalarUDF {
    let given = vec![DataType::Utf8View, DataType::Boolean];
    let function = |columns: &[ColumnarValue]| -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let [answers, stamped] = columns.as_slice() else {
            return Err(exec_datafusion_err!("is_terminal takes two columns"));
        };
        let rows = as_string_view_array(answers)?.iter();
        let terminal = rows
            .zip(as_boolean_array(stamped)?)
            .map(|(answer, stamped)| {
                let answer = answer.and_then(|answer| Object::parse(answer).ok());
                let class = answer.as_ref().and_then(|answer| answer.get(FAILURE_CLASS));
                let class = class.and_then(unquote);
                resume::is_terminal(class.as_deref(), stamped.unwrap_or_default())
            });
        let terminal: BooleanArray = terminal.map(Some).collect();
        Ok(ColumnarValue::Array(Arc::new(terminal)))
    };
    let function = Arc::new(function);
    create_udf(
        "is_terminal",
        given,
        DataType::Boolean,
        Volatility::Immutable,
        function,
    )
}

/// `attempt_seconds(answer)`: how long an attempt took by its own account; null where it says nothing.
fn attempt_seconds() -> ScalarUDF {
    of_answer("attempt_seconds", DataType::Float64, |answers| {
        let seconds: Float64Array = answers
            .map(|answer| resume::elapsed_seconds(&answer?))
            .collect();
        Arc::new(seconds)
    })
}

/// `reuses_deliverable(answer)`: whether the next attempt is to have judged what this one left.
fn reuses_deliverable() -> ScalarUDF {
    of_answer("reuses_deliverable", DataType::Boolean, |answers| {
        let reuses: BooleanArray = answers
            .map(|answer| Some(resume::reuses_deliverable(&answer?)))
            .collect();
        Arc::new(reuses)
    })
}

/// The objects of a column, none where there is no answer or it is another value.
type Answers<'a> = Box<dyn Iterator<Item = Option<Object<'a>>> + 'a>;

fn of_answer(name: &str, gives: DataType, of: fn(Answers<'_>) -> ArrayRef) -> ScalarUDF {
    let function = move |columns: &[ColumnarValue]| -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        let Some(answers) = columns.first() else {
            return Err(exec_datafusion_err!("there is no column of answers"));
        };
        let rows = as_string_view_array(answers)?.iter();
        let answers = rows.map(|answer| Object::parse(answer?).ok());
        Ok(ColumnarValue::Array(of(Box::new(answers))))
    };
    let function = Arc::new(function);
    create_udf(
        name,
        vec![DataType::Utf8View],
        gives,
        Volatility::Immutable,
        function,
    )
}

/// Adds to `prior` the rollouts whose answers are lost though their attempts are on record: damage took the answers.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn add_lost(
    session: &SessionContext,
    prior: &mut HashMap<(i64, i64), Prior>,
) -> Result<()> {
    for batch in session.sql(LOST).await?.collect().await? {
        let column = |column: usize| batch.column(column).as_primitive::<Int64Type>().values();
        for ((task, rollout), attempt) in column(0).iter().zip(column(1)).zip(column(2)) {
            let known = prior.entry((*task, *rollout)).or_default();
            let attempt = u32::try_from(*attempt).unwrap_or(u32::MAX);
            known.attempt = known.attempt.max(attempt);
        }
    }
    Ok(())
}

/// The calls among `dispatches` whose end is not known: what was sent, and when.
///
/// # Errors
/// The session lacks `dispatches`, `attempts` or `tasks`.
pub async fn unanswered(session: &SessionContext) -> Result<DataFrame> {
    session.sql(UNANSWERED).await
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

#[cfg(test)]
mod tests {
    use arrow::array::Int32Array;

    use super::*;
    use crate::retry::{Failure, FailureClass};
    use crate::schema;

    /// A failed attempt: its class, its status, and whether it got a connection.
    type Attempt = (FailureClass, Option<u16>, bool);

    /// One rollout for each attempt, numbered in order.
    fn attempts(rows: &[Attempt]) -> RecordBatch {
        let integers = |of: fn(usize) -> i64| -> ArrayRef {
            Arc::new((0..rows.len()).map(of).collect::<Int64Array>())
        };
        let same =
            |text: &str| -> ArrayRef { Arc::new(StringViewArray::from(vec![text; rows.len()])) };
        let outcomes = rows.iter().map(|row| Some(row.0.name()));
        let statuses = rows.iter().map(|row| row.1.map(i32::from));
        let server = rows.iter().map(|row| row.2.then_some(1.0));
        RecordBatch::try_from_iter([
            (schema::TASK_INDEX, integers(|_| 0)),
            (schema::ROLLOUT_INDEX, integers(|row| row as i64)),
            (schema::ATTEMPT, integers(|_| 0)),
            (schema::AGENT_NAME, same("a")),
            (
                schema::OUTCOME,
                Arc::new(outcomes.collect::<StringViewArray>()),
            ),
            (
                schema::HTTP_STATUS,
                Arc::new(statuses.collect::<Int32Array>()),
            ),
            (
                schema::SERVER_MS,
                Arc::new(server.collect::<Float64Array>()),
            ),
            (
                schema::FAILURE_TERMINAL,
                Arc::new(BooleanArray::from(vec![false; rows.len()])),
            ),
            (schema::ANSWER, same("{}")),
        ])
        .unwrap()
    }

    #[tokio::test]
    async fn sql_counts_every_class_and_status_as_a_process_does() {
        let statuses = (100..600).map(Some).chain([None]);
        let rows: Vec<Attempt> = statuses
            .flat_map(|status| FailureClass::ALL.map(|class| (class, status)))
            .flat_map(|(class, status)| [true, false].map(|connected| (class, status, connected)))
            // Only a failure of the network can leave an attempt without a connection, and then there is no status.
            .filter(|(class, status, connected)| {
                *connected || *class == FailureClass::Infra && status.is_none()
            })
            .collect();
        let session = SessionContext::new();
        session.register_batch("attempts", attempts(&rows)).unwrap();
        let none = RecordBatch::new_empty(schema::rollouts());
        session.register_batch("rollouts", none).unwrap();
        let budgets = Budgets {
            infra: u32::MAX,
            rate_limit: u32::MAX,
            data: u32::MAX,
            attempts: u32::MAX,
        };
        prepare(&session, [("a", budgets)], Terminal::AsStamped)
            .await
            .unwrap();
        let prior = prior(&session).await.unwrap();
        for (rollout, (class, status, connected)) in (0..).zip(&rows) {
            let failure = Failure {
                unreachable: !connected,
                ..Failure::new(*class, "")
            };
            let mut expected = FailureCounts::default();
            expected.record(&failure, *status, Some(&budgets));
            // A resume begins to count these anew.
            expected.unreachable = 0;
            let found = prior[&(0, rollout)].failures;
            assert_eq!(found, expected, "{class} {status:?} {connected}");
        }
    }
}
