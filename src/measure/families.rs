//! Plans metric queries over the tables of a session: [`plan`] returns the [`MetricTable`] of one, [`register_views`]
//! adds the views and functions that they use.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringViewArray};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{DataFrame, SessionContext, col, lit, not, starts_with};

use super::error::MeasureError;
use super::functions;
use super::measurement::Price;
use super::queries::{MetricQueries, MetricQuery};
use super::rows::Decode;
use crate::outcome::MASK_SAMPLE;
use crate::schema;
use crate::session::Spool;

/// Family of the statistics per agent.
pub const AGENT_STATISTICS: &str = "agent_statistics";
/// Family of the statistics per task.
pub const TASK_STATISTICS: &str = "task_statistics";

/// The table of token prices.
pub const PRICES: &str = "prices";
/// The view that counts planned, done, failed and pending rollouts.
pub const COVERAGE: &str = "coverage";
/// The view that holds every score.
pub const SCORES: &str = "scores";
/// The view that holds the statistics of each metric.
pub const TOTALS: &str = "totals";

/// The table that a metric query returns. It is computed when it is read.
#[derive(Debug)]
pub struct MetricTable {
    name: String,
    origin: String,
    frame: DataFrame,
}

impl MetricTable {
    fn new(
        name: String,
        origin: String,
        frame: Result<DataFrame, DataFusionError>,
    ) -> Result<Self, MeasureError> {
        let frame = frame.map_err(|source| failed(&name, &origin, source))?;
        Ok(Self {
            name,
            origin,
            frame,
        })
    }

    /// Returns the name of the family.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::new(self.frame.schema().as_arrow().clone())
    }

    /// Returns the table without the rows that `without_reserved` removes.
    ///
    /// # Errors
    /// The query cannot be planned.
    pub fn unreserved(self) -> Result<Self, MeasureError> {
        Self::new(self.name, self.origin, without_reserved(self.frame))
    }

    /// Returns a view of the table, which computes it anew for each query that reads it.
    pub fn into_view(self) -> Arc<dyn TableProvider> {
        self.frame.into_view()
    }

    /// Computes the table and registers it with a session under its name, as [`Spool::keep`] does.
    ///
    /// # Errors
    /// The query fails, or the file cannot be written.
    pub(super) async fn keep(
        self,
        spool: &Spool,
        ctx: &SessionContext,
    ) -> Result<(), MeasureError> {
        let kept = spool.keep(ctx, &self.name, self.frame).await;
        kept.map_err(|source| failed(&self.name, &self.origin, source))
    }

    /// Starts the query.
    ///
    /// # Errors
    /// The query cannot be planned. Later errors are in the stream.
    pub async fn stream(self) -> Result<SendableRecordBatchStream, MeasureError> {
        let stream = self.frame.execute_stream().await;
        stream.map_err(|source| failed(&self.name, &self.origin, source))
    }

    /// Runs the query and reads its rows.
    pub(super) async fn rows<T>(self, decode: Decode<T>) -> Result<Vec<T>, MeasureError> {
        let mut rows = Vec::new();
        for batch in self.collect().await? {
            rows.extend(decode(&batch)?);
        }
        Ok(rows)
    }

    /// Runs the query and returns all its rows.
    ///
    /// # Errors
    /// The query fails.
    pub async fn collect(self) -> Result<Vec<RecordBatch>, MeasureError> {
        let batches = self.frame.collect().await;
        batches.map_err(|source| failed(&self.name, &self.origin, source))
    }
}

/// Returns whether only files of NeMo Gym 0.5 have a metric of this name, as in `queries/views/scores.sql`.
pub(super) fn is_reserved(name: &str) -> bool {
    name.starts_with('_') || name == MASK_SAMPLE
}

/// Removes the rows of metrics that are reserved ([`is_reserved`]).
///
/// # Errors
/// The table can't be planned.
pub fn without_reserved(table: DataFrame) -> Result<DataFrame, DataFusionError> {
    if !table.schema().has_column_with_unqualified_name("metric") {
        return Ok(table);
    }
    let is_private = starts_with(col("metric"), lit("_"));
    table.filter(not(is_private).and(col("metric").not_eq(lit(MASK_SAMPLE))))
}

fn failed(name: &str, origin: &str, source: DataFusionError) -> MeasureError {
    MeasureError::Query {
        name: name.to_owned(),
        origin: origin.to_owned(),
        error: Box::new(source),
    }
}

/// Plans one query over the tables of a session, which must have the functions and views
/// ([`register_views`]). A parameter that is not in `parameters` has its default.
///
/// # Errors
/// The SQL is invalid, or is not a query.
pub async fn plan(
    ctx: &SessionContext,
    query: &MetricQuery,
    parameters: &HashMap<String, ScalarValue>,
) -> Result<MetricTable, MeasureError> {
    let values: Vec<(String, ScalarValue)> = query
        .parameters
        .iter()
        .map(|parameter| {
            let value = parameters.get(&parameter.name);
            let value = value.unwrap_or(&parameter.default);
            (parameter.name.clone(), value.clone())
        })
        .collect();
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false);
    let frame = ctx.sql_with_options(&query.sql, only_queries).await;
    let frame = frame.and_then(|frame| {
        if values.is_empty() {
            return Ok(frame);
        }
        frame.with_param_values(ParamValues::from(values))
    });
    let (name, origin) = (query.name.clone(), query.origin());
    MetricTable::new(name, origin, frame)
}

/// Registers the views over `tasks`, `rollouts` and `attempts` that the session does not have yet.
/// A view is computed by each query that reads it.
///
/// # Errors
/// A table that they need is missing.
pub async fn register_views(
    ctx: &SessionContext,
    parameters: &HashMap<String, ScalarValue>,
) -> Result<(), MeasureError> {
    functions::register(ctx);
    functions::register_json(ctx)?;
    // Imported files have no attempts, and most agents have no prices.
    if !ctx.table_exist(schema::ATTEMPTS)? {
        let none = EmptyTable::new(schema::attempts());
        ctx.register_table(schema::ATTEMPTS, Arc::new(none))?;
    }
    if !ctx.table_exist(PRICES)? {
        ctx.register_batch(PRICES, price_rows(&BTreeMap::new())?)?;
    }
    // In the order of their names: each view comes after those that it reads.
    for query in MetricQueries::views()?.iter() {
        if !ctx.table_exist(query.name.as_str())? {
            let view = plan(ctx, query, parameters).await?.into_view();
            ctx.register_table(&*query.name, view)?;
        }
    }
    Ok(())
}

/// Returns the rows of the table `prices`: the prices of a million tokens, by agent.
pub(super) fn price_rows(by_agent: &BTreeMap<String, Price>) -> Result<RecordBatch, ArrowError> {
    let names: StringViewArray = by_agent.keys().map(Some).collect();
    let float = |price: fn(&Price) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(by_agent.values().map(price)))
    };
    RecordBatch::try_from_iter_with_nullable([
        (schema::AGENT_NAME, Arc::new(names) as ArrayRef, false),
        ("input_price", float(|price| price.input), false),
        ("output_price", float(|price| price.output), false),
    ])
}

/// Returns one of the views as a table.
///
/// # Errors
/// There is no such view, or a table that it needs is missing.
pub async fn view(
    ctx: &SessionContext,
    name: &str,
    parameters: &HashMap<String, ScalarValue>,
) -> Result<MetricTable, MeasureError> {
    plan(ctx, MetricQueries::views()?.get(name)?, parameters).await
}

/// Computes the view `scores` over the tables of `source` and registers it with `ctx`, which may be
/// the same session.
///
/// # Errors
/// The view cannot be computed.
pub async fn spool_scores(
    spool: &Spool,
    source: &SessionContext,
    ctx: &SessionContext,
    parameters: &HashMap<String, ScalarValue>,
) -> Result<(), MeasureError> {
    source.deregister_table(SCORES)?;
    register_views(source, parameters).await?;
    let table = view(source, SCORES, parameters).await?;
    table.keep(spool, ctx).await
}
