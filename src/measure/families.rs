//! Runs the metric queries: [`run_families`] gives a [`MetricTable`] for each.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{DataFrame, SessionContext, col, lit, not, starts_with};

use super::error::MeasureError;
use super::parameter::ParameterValue;
use super::queries::{MetricQueries, MetricQuery};
use super::views::register_views;
use crate::outcome::MASK_SAMPLE;

/// Family of the statistics per agent.
pub const AGENT_STATISTICS: &str = "agent_statistics";
/// Family of the statistics per task.
pub const TASK_STATISTICS: &str = "task_statistics";

/// The table that a metric query gives. It is computed when it is read, once.
#[derive(Debug)]
pub struct MetricTable {
    name: String,
    origin: String,
    frame: DataFrame,
}

impl MetricTable {
    /// Name of the family.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(self.frame.schema().as_arrow().clone())
    }

    /// The optimised plan, as text.
    ///
    /// # Errors
    /// The query cannot be planned.
    pub fn explain(&self) -> Result<String, MeasureError> {
        let plan = self.frame.clone().into_optimized_plan();
        let plan = plan.map(|plan| plan.display_indent().to_string());
        plan.map_err(|source| failed(self.name.clone(), self.origin.clone(), source))
    }

    /// The same without what [`without_reserved`] leaves out.
    ///
    /// # Errors
    /// The query cannot be planned.
    pub fn unreserved(self) -> Result<Self, MeasureError> {
        let Self {
            name,
            origin,
            frame,
        } = self;
        match without_reserved(frame) {
            Ok(frame) => Ok(Self {
                name,
                origin,
                frame,
            }),
            Err(source) => Err(failed(name, origin, source)),
        }
    }

    /// As a view, which computes it anew for each query that reads it.
    pub fn into_view(self) -> Arc<dyn TableProvider> {
        self.frame.into_view()
    }

    /// Starts the query.
    ///
    /// # Errors
    /// The query cannot be planned; what fails later fails in the stream.
    pub async fn stream(self) -> Result<SendableRecordBatchStream, MeasureError> {
        let Self {
            name,
            origin,
            frame,
        } = self;
        let stream = frame.execute_stream().await;
        stream.map_err(|source| failed(name, origin, source))
    }

    /// Runs the query and holds its rows.
    ///
    /// # Errors
    /// The query fails.
    pub async fn collect(self) -> Result<Vec<RecordBatch>, MeasureError> {
        let Self {
            name,
            origin,
            frame,
        } = self;
        let batches = frame.collect().await;
        batches.map_err(|source| failed(name, origin, source))
    }
}

/// Whether only files of NeMo Gym 0.5 have a metric of this name. The same rule as in `queries/views/scores.sql`.
pub(super) fn is_reserved(name: &str) -> bool {
    name.starts_with('_') || name == MASK_SAMPLE
}

/// The rows of a table but those of metrics that [`is_reserved`] is true of.
///
/// # Errors
/// The table can't be planned.
pub fn without_reserved(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    match table.schema().has_column_with_unqualified_name("metric") {
        true => {
            let is_private = starts_with(col("metric"), lit("_"));
            table.filter(not(is_private).and(col("metric").not_eq(lit(MASK_SAMPLE))))
        }
        false => Ok(table),
    }
}

fn failed(name: String, origin: String, source: DataFusionError) -> MeasureError {
    MeasureError::Query {
        name,
        origin,
        source: Box::new(source),
    }
}

/// Plans every query over the tables of a session, `tasks`, `rollouts` and `attempts`, and registers
/// the functions and views that they need where they are not there. A parameter that is not in `parameters` has its default.
///
/// # Errors
/// A query is no valid SQL, or is something else than a query.
pub async fn run_families(
    ctx: &SessionContext,
    queries: &MetricQueries,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<Vec<MetricTable>, MeasureError> {
    register_views(ctx, parameters).await?;
    let mut tables = Vec::new();
    for query in queries.iter() {
        tables.push(plan(ctx, query, parameters).await?);
    }
    Ok(tables)
}

/// Plans one query over the tables of a session, which has the functions and views already
/// ([`register_views`]). A parameter that is not in `parameters` has its default.
///
/// # Errors
/// The query is no valid SQL, or is something else than a query.
pub async fn plan(
    ctx: &SessionContext,
    query: &MetricQuery,
    parameters: &HashMap<String, ParameterValue>,
) -> Result<MetricTable, MeasureError> {
    let values: Vec<(String, ScalarValue)> = query
        .parameters
        .iter()
        .map(|parameter| {
            let value = parameters.get(&parameter.name);
            let value = value.unwrap_or(&parameter.default);
            (parameter.name.clone(), value.into())
        })
        .collect();
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let frame = ctx.sql_with_options(&query.sql, only_queries).await;
    let frame = frame.and_then(|frame| match values.is_empty() {
        true => Ok(frame),
        false => frame.with_param_values(ParamValues::from(values)),
    });
    let (name, origin) = (query.name.clone(), query.origin());
    match frame {
        Ok(frame) => Ok(MetricTable {
            name,
            origin,
            frame,
        }),
        Err(source) => Err(failed(name, origin, source)),
    }
}
