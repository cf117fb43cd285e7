//! How much of a sweep is done: [`CompletionSummary`].

use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use serde::Serialize;

use crate::gym::GymRules;
use crate::import::TaskLabels;
use crate::measure::error::MeasureError;
use crate::measure::rows::{Rows, row};

row! {
    /// The numbers of planned rollouts and of those that are done.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub struct CompletionSummary {
        /// Planned rollouts.
        pub expected_rollout_rows: i64,
        /// Planned rollouts that are done.
        pub completed_rollout_rows: i64,
        /// Planned rollouts that are missing.
        pub missing_rollout_rows: i64,
        /// Rollouts that were not planned.
        pub extra_rollout_rows: i64,
        /// Completed rollouts as a percentage of expected ones; 100 if none are expected.
        pub reward_profile_completion_pct: f64,
        /// Tasks.
        pub total_input_rows: i64,
        /// Tasks with all their rollouts.
        pub complete_input_rows: i64,
        /// Tasks with some of their rollouts, but not all.
        pub partial_input_rows: i64,
        /// Tasks with none of their rollouts.
        pub missing_input_rows: i64,
        /// Masked rollouts; `None` if the rules do not mask rollouts.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub masked_rollout_rows: Option<i64>,
    }
}

/// Returns `part` of `whole` in percent; 100 if `whole` is zero.
pub(super) fn percent(part: i64, whole: i64) -> f64 {
    match whole {
        0 => 100.0,
        _ => 100.0 * part as f64 / whole as f64,
    }
}

row! {
    struct Key {
        task_index: i64,
        rollout_index: i64,
    }
}

impl CompletionSummary {
    /// Counts the planned and the existing rollouts in the tables `tasks` and `rollouts` of a session.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub async fn of(ctx: &SessionContext, rules: &'static GymRules) -> Result<Self, MeasureError> {
        let sql = include_str!("../../../queries/nemo_gym/completion.sql");
        let by_agent = [("by_agent", ScalarValue::from(rules.lines_by_agent))];
        let mut rows = Rows::with_parameters(ctx, sql, &by_agent, Self::rows).await?;
        let summary = rows.next().await?;
        let mut summary = summary.ok_or_else(|| MeasureError::Column {
            column: "completed_rollout_rows".into(),
            expected: "BIGINT",
        })?;
        summary.masked_rollout_rows = summary.masked_rollout_rows.filter(|_| rules.masks);
        Ok(summary)
    }

    /// Fails if there are unplanned rollouts or, unless `allow_partial`, missing ones.
    ///
    /// # Errors
    /// There are such rollouts, or the tables cannot be read.
    pub async fn check(
        &self,
        ctx: &SessionContext,
        labels: &TaskLabels,
        allow_partial: bool,
    ) -> Result<(), MeasureError> {
        let spelled = |keys: Vec<Key>| {
            let keys = keys.iter();
            let keys = keys.map(|key| labels.key(key.task_index, key.rollout_index));
            keys.collect::<Vec<String>>().join(", ")
        };
        if self.extra_rollout_rows > 0 {
            let sql = include_str!("../../../queries/nemo_gym/extra.sql");
            return Err(MeasureError::Extra {
                count: self.extra_rollout_rows,
                keys: spelled(Rows::of(ctx, sql, Key::rows).await?.collect().await?),
            });
        }
        if self.missing_rollout_rows > 0 && !allow_partial {
            let sql = include_str!("../../../queries/nemo_gym/missing.sql");
            return Err(MeasureError::Missing {
                count: self.missing_rollout_rows,
                keys: spelled(Rows::of(ctx, sql, Key::rows).await?.collect().await?),
            });
        }
        Ok(())
    }
}
