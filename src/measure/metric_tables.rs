use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::TableType;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::prelude::SessionContext;
use tokio::sync::{Mutex, OnceCell};

use super::metric_look::{Look, MetricRows};
use crate::error::Error;
use crate::measure::{MetricQueries, MetricQuery, ParameterValue, plan, register_views};
use crate::schema;
use crate::session::{self, RunTables};

/// The metric families, and the views that they are written over, as tables of a session.
///
/// They are computed when a query reads them, as `aggregate` computes them, and then hold the same
/// numbers: in sessions of their own, over the scores in the order of tasks.
pub struct MetricTables {
    queries: MetricQueries,
    views: MetricQueries,
    pub(super) parameters: HashMap<String, ParameterValue>,
    /// Bytes for what can go to temporary files.
    pub(super) memory: usize,
    empty: OnceCell<SessionContext>,
    schemas: Mutex<HashMap<String, SchemaRef>>,
}

impl MetricTables {
    /// The tables of `queries`. A parameter that is not in `parameters` has its default. What can go
    /// to temporary files is kept below `memory` bytes.
    ///
    /// # Errors
    /// A view has a header that is not understood, which would be a defect.
    pub fn new(
        queries: MetricQueries,
        parameters: HashMap<String, ParameterValue>,
        memory: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            queries,
            views: MetricQueries::views()?,
            parameters,
            memory,
            empty: OnceCell::new(),
            schemas: Mutex::default(),
        })
    }

    /// Whether a table is one of these. A run's own tables keep their names.
    pub fn has(&self, name: &str) -> bool {
        !schema::TABLES.contains(&name) && self.query(name).is_some()
    }

    /// Puts the tables of a run beside those that are in `schemas` already. Each reads `run`, whatever
    /// its neighbours read.
    pub fn beside(
        self: &Arc<Self>,
        run: &RunTables,
        schemas: Vec<Arc<dyn SchemaProvider>>,
    ) -> Vec<Arc<dyn SchemaProvider>> {
        let look = Arc::new(Look::new(Arc::clone(self), run));
        let beside = |others| {
            let look = Arc::clone(&look);
            Arc::new(MetricSchema { look, others }) as Arc<dyn SchemaProvider>
        };
        schemas.into_iter().map(beside).collect()
    }

    /// The query of a table. Of a family and a view of one name, as `coverage`, the family is the one
    /// that people ask for.
    pub(super) fn query(&self, name: &str) -> Option<&MetricQuery> {
        let found = self.queries.get(name).or_else(|_| self.views.get(name));
        found.ok()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let queries = self.queries.iter().chain(self.views.iter());
        let names = queries.map(|query| query.name.as_str());
        names.filter(|name| self.has(name))
    }

    /// The columns of a table. They don't depend on a run, so that nothing is read for them.
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

pub(super) fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
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
            }))),
        }
    }

    async fn table_type(&self, name: &str) -> Result<Option<TableType>> {
        match self.look.metrics.has(name) {
            true => Ok(Some(TableType::View)),
            false => self.others.table_type(name).await,
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        self.look.metrics.has(name) || self.others.table_exist(name)
    }
}

/// A metric table of a run.
#[derive(Debug)]
struct Metric {
    look: Arc<Look>,
    name: String,
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for Metric {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    /// What is asked of few metrics or agents is computed for these alone.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match is_plain(filter) {
            Ok(true) => Ok(TableProviderFilterPushDown::Exact),
            Ok(false) => Ok(TableProviderFilterPushDown::Unsupported),
            Err(error) => Err(error),
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
        let rows = MetricRows {
            look: Arc::clone(&self.look),
            name: self.name.clone(),
            schema: Arc::clone(&self.schema),
            filters: unnormalize_cols(filters.iter().cloned()),
        };
        let schema = Arc::clone(&self.schema);
        let rows = vec![Arc::new(rows) as _];
        let scan = StreamingTableExec::try_new(schema, rows, projection, [], false, limit)?;
        Ok(Arc::new(scan))
    }
}

/// Whether a condition can be put to another session: it reads columns and constants alone.
fn is_plain(filter: &Expr) -> Result<bool> {
    use datafusion::common::tree_node::TreeNode;
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
