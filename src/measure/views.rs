//! The views that metrics are written over: [`register_views`] plans them where they are not there,
//! [`spool_scores`] computes the largest of them once for all metrics.

use std::collections::HashMap;

use datafusion::prelude::SessionContext;

use super::error::MeasureError;
use super::families::plan;
use super::functions;
use super::parameter::ParameterValue;
use super::queries::MetricQueries;
use super::spool::Spool;

/// The view that holds every score.
const SCORES: &str = "scores";
/// What its rows are sorted by.
const SCORES_ORDER: [&str; 3] = ["agent_name", "metric", "task_index"];

/// Registers the views over `tasks`, `rollouts` and `attempts` that the session does not have yet.
/// A view is computed by each query that reads it.
///
/// # Errors
/// A table that they need is not there.
pub async fn register_views(
    ctx: &SessionContext,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<(), MeasureError> {
    register_functions(ctx)?;
    for query in MetricQueries::views()?.iter() {
        let is_there = ctx.table_exist(&*query.name);
        if !is_there.map_err(MeasureError::tables)? {
            let view = plan(ctx, query, parameters).await?.into_view();
            ctx.register_table(&*query.name, view)
                .map_err(MeasureError::tables)?;
        }
    }
    Ok(())
}

/// Computes the view `scores` over the tables of `source` and makes it known to `ctx`, which may be
/// the same session.
///
/// # Errors
/// The view cannot be computed.
pub async fn spool_scores(
    spool: &Spool,
    source: &SessionContext,
    ctx: &SessionContext,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<(), MeasureError> {
    register_functions(source)?;
    let views = MetricQueries::views()?;
    let table = plan(source, views.get(SCORES)?, parameters).await?;
    spool.keep(ctx, table, &SCORES_ORDER).await
}

fn register_functions(ctx: &SessionContext) -> Result<(), MeasureError> {
    functions::register(ctx);
    functions::register_json(ctx).map_err(MeasureError::tables)
}
