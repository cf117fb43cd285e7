//! Adds the rollouts of runs that count as zero without a score, by the same rules as for files of NeMo Gym:
//! [`ZeroRows`] finds them in the tables of a session.

use std::collections::BTreeMap;

use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;

use super::rows::{Rows, row};
use crate::config::{ConfigError, Settings};
use crate::error::Error;
use crate::export::failed_attempts;
use crate::gym::GymRules;
use crate::import::{RowKey, ZeroRows, Zeros, outcome};
use crate::json::{Object, quote};
use crate::outcome::resume::FAILURE_CLASS;
use crate::outcome::{Answer, OutcomeBatchBuilder, Verdict, rollouts_of};
use crate::retry::gym_class;
use crate::schema::ROLLOUTS;

/// Returns which rollouts count as zero in the metrics at the end of a sweep.
///
/// # Errors
/// The settings count some as zero, but the rules count none.
pub(crate) fn of_settings(settings: &Settings, rules: &GymRules) -> Result<Zeros, ConfigError> {
    let zeros = Zeros {
        failure_classes: settings.count_failure_classes_as_zero.clone(),
        missing: settings.count_missing_rollouts_as_zero,
    };
    if !zeros.any() || rules.servers {
        return Ok(zeros);
    }
    let key = if zeros.missing {
        "count_missing_rollouts_as_zero"
    } else {
        "count_failure_classes_as_zero"
    };
    Err(ConfigError::Gym { key })
}

/// The result of counting zeros in a session.
pub(crate) struct Found {
    /// Rollouts that count as zero.
    pub(crate) num_zeros: usize,
    /// Rollouts that failed, by the class of their last failure.
    pub(crate) classes: BTreeMap<String, u64>,
    /// Warnings for the user.
    pub(crate) notes: Vec<String>,
}

/// Adds the rollouts that count as zero to the rollouts of a session.
pub(crate) async fn add(
    session: &SessionContext,
    zeros: &Zeros,
    rules: &GymRules,
) -> Result<Found, Error> {
    let mut rows = ZeroRows::default();
    if zeros.any() {
        done(session, &mut rows).await?;
    }
    failed(session, &mut rows, zeros, rules).await?;
    rows.count_failures(0);
    if zeros.any() {
        planned(session, &mut rows, zeros).await?;
    }
    let mut batch = OutcomeBatchBuilder::new();
    for ((agent_name, key), text) in rows.take(0) {
        let answer = Answer::parse(text).map_err(Error::defect)?;
        let outcome = outcome(key, 0, &agent_name, Verdict::Ok(answer));
        batch.append(outcome).map_err(DataFusionError::from)?;
    }
    let num_zeros = batch.len();
    if num_zeros > 0 {
        let batch = batch.finish().and_then(|batch| rollouts_of(&batch));
        let batch = session.read_batch(batch.map_err(DataFusionError::from)?)?;
        let all = session.table(ROLLOUTS).await?.union_by_name(batch)?;
        session.deregister_table(ROLLOUTS)?;
        session.register_table(ROLLOUTS, all.into_view())?;
    }
    Ok(Found {
        num_zeros,
        classes: rows.failure_classes(),
        notes: rows.notes(),
    })
}

row! {
    struct Done {
        agent_name: String,
        task_index: i64,
        rollout_index: i64,
        result: String,
    }
}

async fn done(session: &SessionContext, rows: &mut ZeroRows) -> Result<(), Error> {
    let sql = "SELECT agent_name, task_index, rollout_index, result FROM rollouts";
    let mut rollouts = Rows::of(session, sql, Done::rows).await?;
    while let Some(row) = rollouts.next().await? {
        let key = RowKey::new(row.task_index, row.rollout_index);
        let answer = Object::parse(&row.result).unwrap_or_default();
        rows.done(0, &row.agent_name, key, &answer);
    }
    Ok(())
}

row! {
    struct Failed {
        agent_name: String,
        task_index: i64,
        rollout_index: i64,
        attempt: i64,
        answer: Option<String>,
        outcome: String,
        http_status: Option<i64>,
    }
}

async fn failed(
    session: &SessionContext,
    rows: &mut ZeroRows,
    zeros: &Zeros,
    rules: &GymRules,
) -> Result<(), Error> {
    let attempts = failed_attempts(session, rules).await?;
    let mut attempts = Rows::start(attempts, Failed::rows).await?;
    while let Some(row) = attempts.next().await? {
        let key = RowKey::new(row.task_index, row.rollout_index);
        let is_answered = row.outcome == "agent_flagged";
        let answer = row.answer.filter(|_| is_answered).unwrap_or_else(|| {
            let class = gym_class(row.http_status);
            format!("{{\"{FAILURE_CLASS}\":{}}}", quote(class))
        });
        let attempt = row.attempt.unsigned_abs();
        rows.failed(0, (row.agent_name, key), attempt, &answer, zeros);
    }
    Ok(())
}

row! {
    struct Planned {
        agent_name: String,
        task_index: i64,
        first_rollout_index: i64,
        num_repeats: i64,
        request: String,
    }
}

async fn planned(
    session: &SessionContext,
    rows: &mut ZeroRows,
    zeros: &Zeros,
) -> Result<(), Error> {
    let sql = "SELECT agent_name, task_index, first_rollout_index, num_repeats, request FROM tasks";
    let mut tasks = Rows::of(session, sql, Planned::rows).await?;
    while let Some(row) = tasks.next().await? {
        let request = Object::parse(&row.request).unwrap_or_default();
        let first = row.first_rollout_index;
        for rollout_index in first..first.saturating_add(row.num_repeats) {
            let key = RowKey::new(row.task_index, rollout_index);
            rows.planned(0, (row.agent_name.clone(), key), &request, zeros);
        }
    }
    Ok(())
}
