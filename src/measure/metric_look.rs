use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionContext;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, TryStreamExt, stream};

use super::metric_tables::{MetricTables, external};
use crate::measure::{COVERAGE, SCORES, Spool, plan, register_views, spool_scores, view};
use crate::session::{self, RunTables};

/// What a run held at one look, and what was computed of it since.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) metrics: Arc<MetricTables>,
    /// The session that computes. Temporary files are there as long as this is.
    opened: Once<Opened>,
    /// The views that are computed once for all tables that read them, by name.
    kept: [(&'static str, Once<()>); 2],
}

/// What is computed when it is first waited for. Whoever waits moves it on, so that a reader that was
/// left in the middle of it holds up no other.
type Once<T> = Shared<BoxFuture<'static, Result<T, Arc<DataFusionError>>>>;

fn once<T: Clone>(computed: impl Future<Output = Result<T>> + Send + 'static) -> Once<T> {
    computed.map(|done| done.map_err(Arc::new)).boxed().shared()
}

impl Look {
    /// Nothing is computed yet.
    pub(super) fn new(metrics: Arc<MetricTables>, run: &RunTables) -> Self {
        // These hold no look, which would never be dropped then.
        let opened = once(open(Arc::clone(&metrics), run.clone()));
        let scores = keep_scores(Arc::clone(&metrics), opened.clone(), run.clone());
        let coverage = keep_coverage(Arc::clone(&metrics), opened.clone());
        Self {
            metrics,
            opened,
            kept: [(SCORES, once(scores)), (COVERAGE, once(coverage))],
        }
    }

    /// Computes the rows of a table that meet all of the conditions.
    async fn rows(&self, name: &str, filters: Vec<Expr>) -> Result<SendableRecordBatchStream> {
        let (session, _) = self.opened.clone().await.map_err(DataFusionError::Shared)?;
        let Some(query) = self.metrics.query(name) else {
            return session.table(name).await?.execute_stream().await;
        };
        let read = references(&session, &query.sql)?;
        for (view, kept) in &self.kept {
            if name == *view || read.contains(*view) {
                kept.clone().await.map_err(DataFusionError::Shared)?;
            }
        }
        // A view that is kept is read; the query of another gives its rows.
        let table = match query.name == SCORES && query.path.is_none() {
            true => session.table(SCORES).await?.into_view(),
            false => {
                let table = plan(&session, query, &self.metrics.parameters).await;
                table.map_err(external)?.into_view()
            }
        };
        let rows = filters
            .into_iter()
            .try_fold(session.read_table(table)?, |rows, filter| {
                rows.filter(filter)
            })?;
        rows.execute_stream().await
    }
}

/// The tables that a query names.
fn references(session: &SessionContext, sql: &str) -> Result<BTreeSet<String>> {
    let state = session.state();
    let dialect = state.config().options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect)?;
    let tables = state.resolve_table_references(&statement)?;
    Ok(tables
        .iter()
        .map(|table| table.table().to_owned())
        .collect())
}

type Opened = (SessionContext, Arc<Spool>);

/// A session that computes as `aggregate` does, and where it keeps things.
async fn open(metrics: Arc<MetricTables>, run: RunTables) -> Result<Opened> {
    let session = session::measuring(metrics.memory)?;
    run.register(&session).await?;
    let registered = register_views(&session, &metrics.parameters).await;
    registered.map_err(external)?;
    Ok((session, Arc::new(Spool::new().map_err(external)?)))
}

async fn keep_scores(
    metrics: Arc<MetricTables>,
    opened: Once<Opened>,
    run: RunTables,
) -> Result<()> {
    let (session, spool) = opened.await.map_err(DataFusionError::Shared)?;
    let gathering = session::gathering(metrics.memory)?;
    run.register(&gathering).await?;
    let spooled = spool_scores(&spool, &gathering, &session, &metrics.parameters).await;
    spooled.map_err(external)
}

async fn keep_coverage(metrics: Arc<MetricTables>, opened: Once<Opened>) -> Result<()> {
    let (session, spool) = opened.await.map_err(DataFusionError::Shared)?;
    let coverage = view(&session, COVERAGE, &metrics.parameters).await;
    let coverage = coverage.map_err(external)?;
    spool.keep(&session, coverage, &[]).await.map_err(external)
}

/// The rows of a metric table, computed when they are asked for.
#[derive(Debug)]
pub(super) struct MetricRows {
    pub(super) look: Arc<Look>,
    pub(super) name: String,
    pub(super) schema: SchemaRef,
    pub(super) filters: Vec<Expr>,
}

impl PartitionStream for MetricRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (look, name, filters) = (
            Arc::clone(&self.look),
            self.name.clone(),
            self.filters.clone(),
        );
        let schema = Arc::clone(&self.schema);
        let rows = async move {
            let rows = look.rows(&name, filters).await?;
            // With the look go the temporary files that the rows are read from.
            Ok::<_, DataFusionError>(rows.map_ok(move |batch| (Arc::clone(&look), batch)))
        };
        let rows = stream::once(rows).try_flatten().and_then({
            let schema = Arc::clone(&schema);
            move |(_, batch)| {
                let columns = batch.columns().to_vec();
                let batch = RecordBatch::try_new(Arc::clone(&schema), columns);
                std::future::ready(batch.map_err(DataFusionError::from))
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}
