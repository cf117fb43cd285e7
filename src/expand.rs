//! From tasks to rollouts: the relational expansion, as SQL over the tables of a run.
//!
//! [`prepare`] makes the views that say which rollouts are done and which failed; then [`pending`] has one row per rollout
//! that is still to be sent, [`prior`] tells what went wrong with them before, and [`counts`] counts them per agent. The
//! sweep sends what is pending, and the status of a run counts it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringViewArray,
};
use arrow::datatypes::DataType;
use datafusion::common::cast::{as_boolean_array, as_int32_array, as_string_view_array};
use datafusion::common::{Result, ScalarValue};
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;

use crate::config::Settings;
use crate::json::{Object, unquote};
use crate::outcome::resume::{self, FAILURE_CLASS};
use crate::progress::{EarlierTask, Progress};
use crate::retry::{Budget, Budgets, FailureClass, FailureCounts, Prior};
use crate::session::{Rows, no_rows, row};

const FAILURES: &str = include_str!("../queries/expand/failures.sql");
const FAILED_ROLLOUTS: &str = include_str!("../queries/expand/failed_rollouts.sql");
const DONE: &str = include_str!("../queries/expand/done.sql");
const PRIOR: &str = include_str!("../queries/expand/prior.sql");
const UNANSWERED: &str = include_str!("../queries/expand/unanswered.sql");
const LOST: &str = include_str!("../queries/expand/lost.sql");
const PENDING: &str = include_str!("../queries/expand/pending.sql");
const EARLIER: &str = include_str!("../queries/expand/earlier.sql");
const FAILED_CLASSES: &str = include_str!("../queries/expand/failed_classes.sql");
const MEANS: &str = include_str!("../queries/expand/means.sql");
const COUNTS: &str = include_str!("../queries/expand/counts.sql");
const REQUEST_BYTES: &str = include_str!("../queries/expand/request_bytes.sql");

row! {
    /// The rollouts that a sweep wants of an agent.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AgentCounts {
        /// The agent.
        pub agent_name: String,
        /// Tasks that are sent to it.
        pub num_tasks: u64,
        /// Rollouts of these tasks.
        pub num_rollouts: u64,
        /// Rollouts that are done already.
        pub num_done: u64,
        /// Rollouts that failed for good.
        pub num_failed: u64,
    }
}

row! {
    /// The failed rollouts of an agent that have one class.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FailedClass {
        /// The agent.
        pub agent_name: String,
        /// The class of their last failure.
        pub class: String,
        /// Rollouts that failed for good.
        pub num_rollouts: u64,
    }
}

row! {
    /// The means over the rollouts of an agent that are done.
    #[derive(Debug, Clone, PartialEq)]
    pub struct AgentMeans {
        /// The agent.
        pub agent_name: String,
        /// Number of the rollouts.
        pub num_done: u64,
        /// Seconds from request to answer.
        pub seconds: Option<f64>,
        /// Tokens of the input; none if no answer says.
        pub input_tokens: Option<f64>,
        /// Tokens of the output; none if no answer says.
        pub output_tokens: Option<f64>,
    }
}

impl AgentCounts {
    /// Rollouts that are still to be sent.
    pub fn num_pending(&self) -> u64 {
        self.num_rollouts
            .saturating_sub(self.num_done + self.num_failed)
    }
}

/// Which of the failures that agents call terminal are terminal for a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminal {
    /// All.
    AsStamped,
    /// All but those that another attempt can mend.
    UnlessMendable,
}

impl Terminal {
    /// What the settings of a resume say.
    pub fn of(settings: &Settings) -> Self {
        if settings.retry_terminal_timeouts {
            Self::UnlessMendable
        } else {
            Self::AsStamped
        }
    }
}

/// Makes the tables `budgets` and `failed_rollouts` and the views `failures` and `done` from `rollouts` and
/// `attempts`. `budgets` are those of each agent. Without `has_attempts`, nothing has failed, and `attempts` is not read.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn prepare<'a>(
    session: &SessionContext,
    budgets: impl IntoIterator<Item = (&'a str, Budgets)>,
    terminal: Terminal,
    has_attempts: bool,
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
    let failed_rollouts = session.sql(FAILED_ROLLOUTS).await?;
    // Cached, so that the plan of a sweep stays readable.
    let failed_rollouts = if has_attempts {
        failed_rollouts.cache().await?
    } else {
        no_rows(session, Arc::new(failed_rollouts.schema().clone()))
    };
    session.register_table("failed_rollouts", failed_rollouts.into_view())?;
    let done = session.sql(DONE).await?;
    session.register_table("done", done.into_view())?;
    Ok(())
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

row! {
    struct Earlier {
        task_index: i64,
        rollout_index: i64,
        attempt: u32,
        infra_failures: u32,
        rate_limited_failures: u32,
        data_failures: u32,
        flagged_failures: u32,
        seconds: Option<f64>,
        reuses_deliverable: bool,
    }
}

/// What went wrong before with the rollouts still pending, by task and rollout.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn prior(session: &SessionContext) -> Result<HashMap<(i64, i64), Prior>> {
    let mut prior = HashMap::new();
    let mut rows = Rows::of(session, PRIOR, Earlier::rows).await?;
    while let Some(row) = rows.next().await? {
        let known = Prior {
            attempt: row.attempt,
            failures: FailureCounts {
                infra: row.infra_failures,
                rate_limit: row.rate_limited_failures,
                data: row.data_failures,
                attempts: row.flagged_failures,
                ..FailureCounts::default()
            },
            seconds: row.seconds,
            reuses_deliverable: row.reuses_deliverable,
        };
        prior.insert((row.task_index, row.rollout_index), known);
    }
    Ok(prior)
}

/// Adds what earlier processes collected to the progress. `masks` leaves out the rewards of masked rollouts.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn earlier(session: &SessionContext, masks: bool, progress: &Progress) -> Result<()> {
    let masks = [("masks", ScalarValue::from(masks))];
    let mut rows = Rows::with_parameters(session, EARLIER, &masks, EarlierTask::rows).await?;
    while let Some(row) = rows.next().await? {
        progress.found(&row);
    }
    Ok(())
}

/// `failure_budget(outcome, http_status)`: name of the budget that a failed attempt counts against, if any.
fn failure_budget() -> ScalarUDF {
    let given = vec![DataType::Utf8View, DataType::Int32];
    function("failure_budget", given, DataType::Utf8View, |columns| {
        let outcomes = as_string_view_array(&columns[0])?.iter();
        let budgets = outcomes
            .zip(as_int32_array(&columns[1])?)
            .map(|(outcome, status)| {
                let status = status.and_then(|status| u16::try_from(status).ok());
                Budget::of(FailureClass::of_name(outcome?)?, status).map(Budget::name)
            });
        Ok(Arc::new(budgets.collect::<StringViewArray>()))
    })
}

/// `is_terminal(answer, failure_terminal)`: whether a resume that retries terminal timeouts takes a failure for
/// terminal.
fn is_terminal() -> ScalarUDF {
    let given = vec![DataType::Utf8View, DataType::Boolean];
    function("is_terminal", given, DataType::Boolean, |columns| {
        let stamped = as_boolean_array(&columns[1])?;
        let terminal = answers(columns)?.zip(stamped).map(|(answer, stamped)| {
            let class = answer.as_ref().and_then(|answer| answer.get(FAILURE_CLASS));
            let class = class.and_then(unquote);
            Some(resume::is_terminal(
                class.as_deref(),
                stamped.unwrap_or_default(),
            ))
        });
        Ok(Arc::new(terminal.collect::<BooleanArray>()))
    })
}

/// `attempt_seconds(answer)`: how long an attempt took by its own account; null where it says nothing.
fn attempt_seconds() -> ScalarUDF {
    let given = vec![DataType::Utf8View];
    function("attempt_seconds", given, DataType::Float64, |columns| {
        let seconds = answers(columns)?.map(|answer| resume::elapsed_seconds(&answer?));
        Ok(Arc::new(seconds.collect::<Float64Array>()))
    })
}

/// `reuses_deliverable(answer)`: whether the next attempt is to have judged what this one left.
fn reuses_deliverable() -> ScalarUDF {
    let given = vec![DataType::Utf8View];
    function("reuses_deliverable", given, DataType::Boolean, |columns| {
        let reuses = answers(columns)?.map(|answer| Some(resume::reuses_deliverable(&answer?)));
        Ok(Arc::new(reuses.collect::<BooleanArray>()))
    })
}

/// The objects of the first column; none where there is no answer, or it is another value.
fn answers(columns: &[ArrayRef]) -> Result<impl Iterator<Item = Option<Object<'_>>>> {
    let answers = as_string_view_array(&columns[0])?.iter();
    Ok(answers.map(|answer| Object::parse(answer?).ok()))
}

fn function(
    name: &str,
    given: Vec<DataType>,
    gives: DataType,
    of: fn(&[ArrayRef]) -> Result<ArrayRef>,
) -> ScalarUDF {
    let function = move |columns: &[ColumnarValue]| {
        let columns = ColumnarValue::values_to_arrays(columns)?;
        Ok(ColumnarValue::Array(of(&columns)?))
    };
    create_udf(
        name,
        given,
        gives,
        Volatility::Immutable,
        Arc::new(function),
    )
}

row! {
    struct LostAnswer {
        task_index: i64,
        rollout_index: i64,
        attempt: u32,
    }
}

/// Adds to `prior` the rollouts whose answers are lost though their attempts are on record: damage took the answers.
///
/// # Errors
/// The session lacks a view, or a table can't be read.
pub async fn add_lost(
    session: &SessionContext,
    prior: &mut HashMap<(i64, i64), Prior>,
) -> Result<()> {
    let mut rows = Rows::of(session, LOST, LostAnswer::rows).await?;
    while let Some(row) = rows.next().await? {
        let known = prior
            .entry((row.task_index, row.rollout_index))
            .or_default();
        known.attempt = known.attempt.max(row.attempt);
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
    Rows::of(session, COUNTS, AgentCounts::rows)
        .await?
        .collect()
        .await
}

row! {
    struct AgentBytes {
        agent_name: String,
        num_bytes: u64,
    }
}

/// The bytes of the requests of each agent's rollouts, about. Reads all requests.
///
/// # Errors
/// The session lacks a table, or it can't be read.
pub async fn request_bytes(session: &SessionContext) -> Result<BTreeMap<String, u64>> {
    let rows = Rows::of(session, REQUEST_BYTES, AgentBytes::rows).await?;
    let rows = rows.collect().await?.into_iter();
    Ok(rows.map(|row| (row.agent_name, row.num_bytes)).collect())
}

/// The failed rollouts of each agent, by the class of their last failure.
///
/// # Errors
/// The session lacks a table, or it can't be read.
pub async fn failed_classes(session: &SessionContext) -> Result<Vec<FailedClass>> {
    Rows::of(session, FAILED_CLASSES, FailedClass::rows)
        .await?
        .collect()
        .await
}

/// What the rollouts that are done took on average, for each agent that has any.
///
/// # Errors
/// The session lacks a table, or it can't be read.
pub async fn means(session: &SessionContext) -> Result<Vec<AgentMeans>> {
    Rows::of(session, MEANS, AgentMeans::rows)
        .await?
        .collect()
        .await
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int32Array};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::retry::{AfterFailure, Failure, FailureClass};
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

    /// An attempt of every class and status that there can be.
    fn every_attempt() -> Vec<Attempt> {
        let statuses = (100..600).map(Some).chain([None]);
        statuses
            .flat_map(|status| FailureClass::ALL.map(|class| (class, status)))
            .flat_map(|(class, status)| [true, false].map(|connected| (class, status, connected)))
            // Only a failure of the network can leave an attempt without a connection, and then there is no status.
            .filter(|(class, status, connected)| {
                *connected || *class == FailureClass::Infra && status.is_none()
            })
            .collect()
    }

    async fn prepared(rows: &[Attempt], budgets: Budgets) -> SessionContext {
        let session = SessionContext::new();
        session.register_batch("attempts", attempts(rows)).unwrap();
        let none = RecordBatch::new_empty(schema::rollouts());
        session.register_batch("rollouts", none).unwrap();
        prepare(&session, [("a", budgets)], Terminal::AsStamped, true)
            .await
            .unwrap();
        session
    }

    /// What a process counts and decides after a first attempt.
    fn recorded(
        (class, status, connected): Attempt,
        budgets: &Budgets,
    ) -> (FailureCounts, AfterFailure) {
        let failure = Failure {
            unreachable: !connected,
            ..Failure::new(class, "")
        };
        let mut counts = FailureCounts::default();
        let next = counts.record(&failure, status, Some(budgets));
        (counts, next)
    }

    #[tokio::test]
    async fn sql_counts_every_class_and_status_as_a_process_does() {
        let rows = every_attempt();
        let budgets = Budgets {
            infra: u32::MAX,
            rate_limit: u32::MAX,
            data: u32::MAX,
            attempts: u32::MAX,
            all: u32::MAX,
        };
        let prior = prior(&prepared(&rows, budgets).await).await.unwrap();
        for (rollout, row) in (0..).zip(&rows) {
            let (mut expected, _) = recorded(*row, &budgets);
            // A resume begins to count these anew.
            expected.unreachable = 0;
            assert_eq!(prior[&(0, rollout)].failures, expected, "{row:?}");
        }
    }

    #[tokio::test]
    async fn sql_takes_a_rollout_for_failed_when_a_process_does() {
        let rows = every_attempt();
        for spent in 0..4 {
            let most = |budget| if budget == spent { 1 } else { u32::MAX };
            let budgets = Budgets {
                infra: most(0),
                rate_limit: most(1),
                data: most(2),
                attempts: most(3),
                all: u32::MAX,
            };
            let session = prepared(&rows, budgets).await;
            let failed = session.table("failed_rollouts").await.unwrap();
            let mut found: Vec<i64> = Vec::new();
            for batch in failed.collect().await.unwrap() {
                let rollouts = batch.column_by_name(schema::ROLLOUT_INDEX).unwrap();
                found.extend(rollouts.as_primitive::<Int64Type>().values());
            }
            found.sort_unstable();
            let is_failed =
                |row: &&(i64, &Attempt)| recorded(*row.1, &budgets).1 == AfterFailure::Fail;
            let numbered: Vec<(i64, &Attempt)> = (0..).zip(&rows).collect();
            let expected: Vec<i64> = numbered.iter().filter(is_failed).map(|row| row.0).collect();
            assert!(!expected.is_empty());
            assert_eq!(found, expected, "budget {spent}");
        }
    }
}
