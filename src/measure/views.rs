//! The views that metrics are written over: [`register_views`] plans them where they are not there,
//! [`spool_scores`] computes the largest of them once for all metrics.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::empty::EmptyTable;
use datafusion::prelude::SessionContext;

use super::error::MeasureError;
use super::families::{MetricTable, plan};
use super::functions;
use super::parameter::ParameterValue;
use super::queries::MetricQueries;
use super::spool::Spool;
use crate::schema;

/// The table of what tokens cost.
pub const PRICES: &str = "prices";
/// The view that says how much of a run is there.
pub const COVERAGE: &str = "coverage";
/// The view that holds every score.
pub const SCORES: &str = "scores";
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
    // Files of others have no attempts, and most agents no prices.
    for (name, schema) in [(schema::ATTEMPTS, schema::attempts()), (PRICES, prices())] {
        if !is_there(ctx, name)? {
            ctx.register_table(name, Arc::new(EmptyTable::new(schema)))
                .map_err(MeasureError::tables)?;
        }
    }
    // In the order of their names, in which each comes after those that it reads.
    for query in MetricQueries::views()?.iter() {
        if !is_there(ctx, &query.name)? {
            let view = plan(ctx, query, parameters).await?.into_view();
            ctx.register_table(&*query.name, view)
                .map_err(MeasureError::tables)?;
        }
    }
    Ok(())
}

fn is_there(ctx: &SessionContext, table: &str) -> Result<bool, MeasureError> {
    ctx.table_exist(table).map_err(MeasureError::tables)
}

/// The table `prices`: what a million tokens cost, by agent.
pub fn prices() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(schema::AGENT_NAME, DataType::Utf8View, false),
        Field::new("input_price", DataType::Float64, false),
        Field::new("output_price", DataType::Float64, false),
    ]))
}

/// One of the views as a table that can be kept.
///
/// # Errors
/// There is no such view, or a table that it needs is not there.
pub async fn view(
    ctx: &SessionContext,
    name: &str,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<MetricTable, MeasureError> {
    plan(ctx, MetricQueries::views()?.get(name)?, parameters).await
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
    source
        .deregister_table(SCORES)
        .map_err(MeasureError::tables)?;
    register_views(source, parameters).await?;
    let table = view(source, SCORES, parameters).await?;
    spool.keep(ctx, table, &SCORES_ORDER).await
}

/// Computes the views that many metrics read once for all of them: `scores` over the tables of
/// `source`, `coverage` over those of `ctx`, to which both are made known.
///
/// # Errors
/// A view cannot be computed.
pub async fn spool_views(
    spool: &Spool,
    source: &SessionContext,
    ctx: &SessionContext,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<(), MeasureError> {
    spool_scores(spool, source, ctx, parameters).await?;
    register_views(ctx, parameters).await?;
    let coverage = view(ctx, COVERAGE, parameters).await?;
    spool.keep(ctx, coverage, &[]).await
}

fn register_functions(ctx: &SessionContext) -> Result<(), MeasureError> {
    functions::register(ctx);
    functions::register_json(ctx).map_err(MeasureError::tables)
}
