//! Adds the metrics of runs to their other tables, for `rollstream sql` and the gates of `check`: [`MetricTables`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session, TableProvider};
use datafusion::common::Result;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::TableType;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::prelude::SessionContext;
use futures::{TryStreamExt, stream};
use tokio::sync::{Mutex, OnceCell};

use super::catalog::{MetricCatalog, Once, once};
use super::error::MeasureError;
use super::families::{SCORES, plan, register_views};
use super::queries::{MetricQueries, MetricQuery};
use super::source::Source;
use crate::error::Error;
use crate::schema;
use crate::session::{self, RunTables};

/// The metric families, and the views that they read, as tables of a session.
///
/// A `MetricCatalog` computes them when a query reads them, so they hold the numbers that `aggregate` writes.
pub struct MetricTables {
    queries: MetricQueries,
    views: MetricQueries,
    parameters: HashMap<String, ScalarValue>,
    /// Memory in bytes that queries may use before they spill to temporary files.
    memory: usize,
    empty: OnceCell<SessionContext>,
    schemas: Mutex<HashMap<String, SchemaRef>>,
}

impl MetricTables {
    /// Creates the tables of `queries`. A parameter that is not in `parameters` has its default. Queries spill
    /// to temporary files beyond `memory` bytes.
    ///
    /// # Errors
    /// A view has a header that is not understood, which would be a defect.
    pub fn new(
        queries: MetricQueries,
        parameters: HashMap<String, ScalarValue>,
        memory: usize,
    ) -> std::result::Result<Self, Error> {
        Ok(Self {
            queries,
            views: MetricQueries::views()?,
            parameters,
            memory,
            empty: OnceCell::new(),
            schemas: Mutex::default(),
        })
    }

    /// Returns whether this is a metric table. A run's own tables keep their names.
    pub fn has(&self, name: &str) -> bool {
        !schema::TABLES.contains(&name) && self.query(name).is_some()
    }

    /// Adds the metric tables of a run to those in `schemas`. They read `run`, whatever the other tables
    /// of their schema read.
    pub fn beside(
        self: &Arc<Self>,
        run: &RunTables,
        schemas: Vec<Arc<dyn SchemaProvider>>,
    ) -> Vec<Arc<dyn SchemaProvider>> {
        let look = Arc::new(Look {
            catalog: once(open(Arc::clone(self), run.clone())),
            metrics: Arc::clone(self),
        });
        let beside = |others| {
            let look = Arc::clone(&look);
            Arc::new(MetricSchema { look, others }) as Arc<dyn SchemaProvider>
        };
        schemas.into_iter().map(beside).collect()
    }

    /// Returns the query of a table. If a family and a view have the same name, such as `coverage`, returns
    /// the family.
    fn query(&self, name: &str) -> Option<&MetricQuery> {
        let found = self.queries.get(name).or_else(|_| self.views.get(name));
        found.ok()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let queries = self.queries.iter().chain(self.views.iter());
        let names = queries.map(|query| query.name.as_str());
        names.filter(|name| self.has(name))
    }

    /// Returns the columns of a table. They do not depend on a run, so nothing is read.
    async fn schema(&self, query: &MetricQuery) -> Result<SchemaRef> {
        let mut schemas = self.schemas.lock().await;
        if let Some(schema) = schemas.get(&query.name) {
            return Ok(Arc::clone(schema));
        }
        let empty = self.empty.get_or_try_init(|| self.empty()).await?;
        let table = plan(empty, query, &self.parameters).await;
        let schema = table.map_err(external)?.schema();
        schemas.insert(query.name.clone(), Arc::clone(&schema));
        Ok(schema)
    }

    async fn empty(&self) -> Result<SessionContext> {
        let empty = session::measuring(self.memory)?;
        for (name, schema) in [
            (schema::TASKS, schema::tasks()),
            (schema::ROLLOUTS, schema::rollouts()),
            (schema::ATTEMPTS, schema::attempts()),
            (schema::CALLS, schema::calls()),
        ] {
            empty.register_table(name, Arc::new(EmptyTable::new(schema)))?;
        }
        let registered = register_views(&empty, &self.parameters).await;
        registered.map_err(external)?;
        Ok(empty)
    }
}

impl fmt::Debug for MetricTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The state of a run at one moment, and what has been computed from it.
#[derive(Debug)]
struct Look {
    metrics: Arc<MetricTables>,
    catalog: Once<Arc<MetricCatalog>>,
}

/// Opens the catalog of a run. Holds no `Look`, which would then hold itself and never be dropped.
async fn open(
    metrics: Arc<MetricTables>,
    run: RunTables,
) -> std::result::Result<Arc<MetricCatalog>, MeasureError> {
    let sessions = Source::Look(&run).open(metrics.memory).await?;
    let catalog = MetricCatalog::new(&sessions, metrics.parameters.clone()).await?;
    Ok(Arc::new(catalog))
}

impl Look {
    /// Computes the rows of a table that meet all of the conditions.
    async fn rows(&self, name: &str, filters: Vec<Expr>) -> Result<SendableRecordBatchStream> {
        let catalog = self.catalog.clone().await.map_err(external)?;
        let session = catalog.session();
        let Some(query) = self.metrics.query(name) else {
            return session.table(name).await?.execute_stream().await;
        };
        let is_scores = query.name == SCORES && query.path.is_none();
        let table = if is_scores {
            catalog.keep_views().await.map_err(external)?;
            session.table(SCORES).await?.into_view()
        } else {
            catalog.table(query).await.map_err(external)?.into_view()
        };
        let rows = filters
            .into_iter()
            .try_fold(session.read_table(table)?, |rows, filter| {
                rows.filter(filter)
            })?;
        rows.execute_stream().await
    }
}

/// A schema with the metric tables of a run beside other tables.
#[derive(Debug)]
struct MetricSchema {
    look: Arc<Look>,
    others: Arc<dyn SchemaProvider>,
}

#[async_trait]
impl SchemaProvider for MetricSchema {
    fn table_names(&self) -> Vec<String> {
        let metrics = self.look.metrics.names().map(str::to_owned);
        let names: BTreeSet<String> = metrics.chain(self.others.table_names()).collect();
        names.into_iter().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let metrics = &self.look.metrics;
        match metrics.query(name).filter(|_| metrics.has(name)) {
            None => self.others.table(name).await,
            Some(query) => Ok(Some(Arc::new(Metric {
                look: Arc::clone(&self.look),
                name: query.name.clone(),
                schema: metrics.schema(query).await?,
                filters: Vec::new(),
            }))),
        }
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        if self.look.metrics.has(name) {
            return Ok(Some(TableType::View));
        }
        self.others.table_type(name).await
    }

    fn table_exist(&self, name: &str) -> bool {
        self.look.metrics.has(name) || self.others.table_exist(name)
    }
}

/// A metric table of a run, computed when its rows are asked for.
#[derive(Debug, Clone)]
struct Metric {
    look: Arc<Look>,
    name: String,
    schema: SchemaRef,
    /// Conditions that the rows must meet.
    filters: Vec<Expr>,
}

#[async_trait]
impl TableProvider for Metric {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// Pushes filters down, so that a query for few metrics or agents computes only these.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| {
            Ok(if is_plain(filter)? {
                TableProviderFilterPushDown::Exact
            } else {
                TableProviderFilterPushDown::Unsupported
            })
        };
        filters.iter().map(support).collect()
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = Self {
            filters: unnormalize_cols(filters.iter().cloned()),
            ..self.clone()
        };
        let schema = Arc::clone(&self.schema);
        let rows = vec![Arc::new(rows) as _];
        let scan = StreamingTableExec::try_new(schema, rows, projection, [], false, limit)?;
        Ok(Arc::new(scan))
    }
}

/// Returns whether another session can evaluate a condition: it reads only columns and constants.
fn is_plain(filter: &Expr) -> Result<bool> {
    let needs_more = filter.exists(|part| {
        Ok(matches!(
            part,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Placeholder(_)
        ))
    })?;
    Ok(!needs_more)
}

impl PartitionStream for Metric {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (metric, schema) = (self.clone(), Arc::clone(&self.schema));
        let rows = async move {
            let rows = metric.look.rows(&metric.name, metric.filters).await?;
            // Dropping the look would remove the temporary files that the rows are read from.
            let look = metric.look;
            Ok::<_, DataFusionError>(rows.and_then(move |batch| {
                let (_, schema) = (&look, Arc::clone(&metric.schema));
                let batch = RecordBatch::try_new(schema, batch.columns().to_vec());
                std::future::ready(batch.map_err(DataFusionError::from))
            }))
        };
        let rows = stream::once(rows).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}
