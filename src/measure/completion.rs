//! How much of a sweep is done: [`CompletionSummary`].

use arrow::array::RecordBatch;
use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use serde::Serialize;

use super::error::MeasureError;
use super::rows::{Rows, counts};
use super::task_labels::TaskLabels;
use crate::gym::GymRules;

/// What was asked for against what is there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionSummary {
    /// Rollouts that were asked for.
    pub expected_rollout_rows: i64,
    /// Of these, the ones that are there.
    pub completed_rollout_rows: i64,
    /// Of these, the ones that are not.
    pub missing_rollout_rows: i64,
    /// Rollouts that nobody asked for.
    pub extra_rollout_rows: i64,
    /// Completed of expected, in percent; 100 where nothing is expected.
    pub reward_profile_completion_pct: f64,
    /// Tasks.
    pub total_input_rows: i64,
    /// Tasks with all their rollouts.
    pub complete_input_rows: i64,
    /// Tasks with some of their rollouts.
    pub partial_input_rows: i64,
    /// Tasks with none.
    pub missing_input_rows: i64,
    /// Rollouts that are masked, where rules have such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masked_rollout_rows: Option<i64>,
}

/// `part` of `whole` in percent; 100 where there is no whole.
pub(super) fn percent(part: i64, whole: i64) -> f64 {
    match whole {
        0 => 100.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}

fn summaries(batch: &RecordBatch) -> Result<Vec<CompletionSummary>, MeasureError> {
    let mut expected = counts(batch, "expected")?.into_iter();
    let mut extra = counts(batch, "extra")?.into_iter();
    let mut tasks = counts(batch, "tasks")?.into_iter();
    let mut complete = counts(batch, "complete_tasks")?.into_iter();
    let mut partial = counts(batch, "partial_tasks")?.into_iter();
    let mut masked = counts(batch, "masked")?.into_iter();
    let completed = counts(batch, "completed")?.into_iter();
    let next = |column: &mut std::vec::IntoIter<i64>| column.next().unwrap_or_default();
    Ok(completed
        .map(|completed| {
            let (expected, tasks) = (next(&mut expected), next(&mut tasks));
            let (complete, partial) = (next(&mut complete), next(&mut partial));
            CompletionSummary {
                expected_rollout_rows: expected,
                completed_rollout_rows: completed,
                missing_rollout_rows: expected - completed,
                extra_rollout_rows: next(&mut extra),
                reward_profile_completion_pct: percent(completed, expected),
                total_input_rows: tasks,
                complete_input_rows: complete,
                partial_input_rows: partial,
                missing_input_rows: tasks - complete - partial,
                masked_rollout_rows: Some(next(&mut masked)),
            }
        })
        .collect())
}

fn keys(batch: &RecordBatch) -> Result<Vec<(i64, i64)>, MeasureError> {
    let tasks = counts(batch, "task_index")?;
    Ok(tasks
        .into_iter()
        .zip(counts(batch, "rollout_index")?)
        .collect())
}

impl CompletionSummary {
    /// Compares the views `tasks` and `rollouts` of a session.
    ///
    /// # Errors
    /// They cannot be read.
    pub async fn of(ctx: &SessionContext, rules: &'static GymRules) -> Result<Self, MeasureError> {
        let sql = include_str!("../../queries/artifacts/completion.sql");
        let by_agent = [("by_agent", ScalarValue::from(rules.lines_by_agent))];
        let rows = Rows::with_parameters(ctx, sql, &by_agent, summaries).await?;
        let summary = rows.collect().await?.into_iter().next();
        let summary = summary.map(|summary| Self {
            masked_rollout_rows: summary.masked_rollout_rows.filter(|_| rules.masks),
            ..summary
        });
        summary.ok_or_else(|| MeasureError::Column {
            column: "completed".into(),
            expected: "BIGINT",
        })
    }

    /// Refuses rollouts that nobody asked for and, unless `allow_partial`, rollouts that are missing.
    ///
    /// # Errors
    /// There are such, or the tables cannot be read.
    pub async fn check(
        &self,
        ctx: &SessionContext,
        labels: &TaskLabels,
        allow_partial: bool,
    ) -> Result<(), MeasureError> {
        let spelled = |keys: Vec<(i64, i64)>| {
            let keys = keys.into_iter();
            let keys: Vec<String> = keys
                .map(|(task, rollout)| labels.key(task, rollout))
                .collect();
            keys.join(", ")
        };
        if self.extra_rollout_rows > 0 {
            let sql = include_str!("../../queries/artifacts/extra.sql");
            return Err(MeasureError::Extra {
                count: self.extra_rollout_rows,
                keys: spelled(Rows::of(ctx, sql, keys).await?.collect().await?),
            });
        }
        if self.missing_rollout_rows > 0 && !allow_partial {
            let sql = include_str!("../../queries/artifacts/missing.sql");
            return Err(MeasureError::Missing {
                count: self.missing_rollout_rows,
                keys: spelled(Rows::of(ctx, sql, keys).await?.collect().await?),
            });
        }
        Ok(())
    }
}
