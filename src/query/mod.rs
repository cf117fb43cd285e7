//! [`SqlSession`]: the tables of one or several runs as people query them, with a column for every metric, and with the
//! metric families as tables.

mod using;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{Expr, LogicalPlan, ident, lit};
use datafusion::prelude::SessionContext;

use self::using::name_tables;
use crate::config::suggestion;
use crate::error::Error;
use crate::group::{GROUPS, groups};
use crate::measure::MetricTables;
use crate::measure::functions;
use crate::session::{self, MetricNames, NamedRun, QueryError, RunTables};
use crate::store::part_name;

/// The session that runs queries.
pub(crate) struct SqlSession {
    context: SessionContext,
    runs: Vec<NamedRun>,
    names: MetricNames,
    metrics: Arc<MetricTables>,
}

impl SqlSession {
    /// Makes a session of these runs. Their tables, and those of `metrics`, exist after `look`.
    pub(crate) fn new(
        context: SessionContext,
        runs: Vec<NamedRun>,
        metrics: Arc<MetricTables>,
    ) -> Result<Self, Error> {
        functions::register(&context);
        functions::register_json(&context)?;
        Ok(Self {
            context,
            runs,
            names: MetricNames::default(),
            metrics,
        })
    }

    /// Looks at the runs: from here on, their tables have what the runs hold now. In `rollstream sql`, every statement
    /// gets a look of its own.
    pub(crate) async fn look(&mut self) -> Result<(), Error> {
        let tables = session::register_wide(&self.context, &self.runs, &mut self.names).await?;
        self.add_groups().await?;
        self.add_metrics(&tables)
    }

    /// Adds the table of groups, which a sweep writes when it ends. A run without groups has none in it.
    async fn add_groups(&self) -> Result<(), Error> {
        let with_run = self.has_labels();
        let mut all: Option<DataFrame> = None;
        for NamedRun { label, schema, run } in &self.runs {
            let name = part_name(GROUPS, GROUPS);
            let groups = if run.exists(&name).await? {
                session::part(&self.context, run, &name, &groups())?
            } else {
                self.context.read_batch(RecordBatch::new_empty(groups()))?
            };
            if let Some(schema) = schema {
                let own = TableReference::partial(schema.as_str(), GROUPS);
                let groups = groups.clone().into_view();
                self.context.register_table(own, groups)?;
            }
            all = Some(union(all, groups, with_run.then_some(label))?);
        }
        if let Some(all) = all {
            self.context.register_table(GROUPS, all.into_view())?;
        }
        Ok(())
    }

    /// Adds the metric tables: for one run to the default schema, for several to the schema of each, since equally
    /// numbered rollouts would be mixed otherwise.
    fn add_metrics(&self, tables: &[RunTables]) -> Result<(), Error> {
        let options = self.context.state().config().options().catalog.clone();
        let Some(catalog) = self.context.catalog(&options.default_catalog) else {
            return Ok(());
        };
        for (run, tables) in self.runs.iter().zip(tables) {
            let default = (self.runs.len() == 1).then_some(&options.default_schema);
            let names = default.into_iter().chain(&run.schema);
            let schemas: Vec<_> = names
                .filter_map(|name| Some((name, catalog.schema(name)?)))
                .collect();
            let (names, schemas): (Vec<_>, Vec<_>) = schemas.into_iter().unzip();
            let schemas = self.metrics.beside(tables, schemas);
            for (name, schema) in names.into_iter().zip(schemas) {
                catalog.register_schema(name, schema)?;
            }
        }
        Ok(())
    }

    /// Plans a statement over what the last look found.
    pub(crate) async fn plan(&self, statement: &str) -> Result<DataFrame, Error> {
        let only_queries = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false);
        let planned = self.context.sql_with_options(statement, only_queries).await;
        let error = match planned {
            Ok(frame) => return Ok(frame),
            Err(error) => error,
        };
        if let Some(frame) = self.plan_named(statement, &only_queries).await {
            return Ok(frame);
        }
        let Some(name) = session::missing_table(&error) else {
            return Err(error.into());
        };
        let hint = table_hint(&self.context, name).await;
        Err(QueryError::with_hint(error, hint).into())
    }

    /// Plans a statement that the engine only understands with names of tables.
    async fn plan_named(&self, statement: &str, options: &SQLOptions) -> Option<DataFrame> {
        let state = self.context.state();
        let dialect = state.config().options().sql_parser.dialect;
        let mut statement = state.sql_to_statement(statement, &dialect).ok()?;
        if !name_tables(&mut statement) {
            return None;
        }
        let plan = state.statement_to_plan(statement).await.ok()?;
        options.verify_plan(&plan).ok()?;
        Some(self.frame(plan))
    }

    /// Returns a plan as a query of this session.
    pub(crate) fn frame(&self, plan: LogicalPlan) -> DataFrame {
        DataFrame::new(self.context.state(), plan)
    }

    /// Returns the label of each run, with the condition for its rows in the tables of all runs.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, String)> {
        let is_alone = !self.has_labels();
        self.runs.iter().map(move |NamedRun { label, .. }| {
            let condition = format!("WHERE run = '{}'", label.replace('\'', "''"));
            (
                label.as_str(),
                if is_alone { String::new() } else { condition },
            )
        })
    }

    /// Whether the tables of all runs have a column `run`.
    fn has_labels(&self) -> bool {
        self.runs.len() > 1 || self.runs.iter().any(|run| run.schema.is_some())
    }

    pub(crate) fn context(&self) -> &SessionContext {
        &self.context
    }

    pub(crate) fn runs(&self) -> &[NamedRun] {
        &self.runs
    }

    pub(crate) fn metrics(&self) -> &MetricTables {
        &self.metrics
    }
}

/// Adds the rows of a run, with its label in the column `run` if it has one.
fn union(
    before: Option<DataFrame>,
    rows: DataFrame,
    label: Option<&String>,
) -> Result<DataFrame, DataFusionError> {
    let columns = rows.schema().fields().iter();
    let columns = columns.map(|field| ident(field.name()));
    let label = label.map(|label| lit(label.as_str()).alias("run"));
    let columns: Vec<Expr> = label.into_iter().chain(columns).collect();
    let rows = rows.select(columns)?;
    match before {
        Some(before) => before.union(rows),
        None => Ok(rows),
    }
}

/// A table of the session.
pub(crate) struct NamedTable {
    /// Its schema, if that is not the default one.
    pub schema: Option<String>,
    /// Its name.
    pub name: String,
    /// The names of its columns; `None` if it cannot be opened, such as a metric family with invalid SQL.
    pub columns: Option<Vec<String>>,
}

impl NamedTable {
    /// Its name, after that of its schema.
    pub(crate) fn full_name(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Whether it is about runs, and not about tables.
    pub(crate) fn is_of_runs(&self) -> bool {
        self.schema.as_deref() != Some("information_schema")
    }
}

/// Returns which table may be meant by a name that no table has.
pub(crate) async fn table_hint(context: &SessionContext, name: &str) -> String {
    let tables = all_tables(context).await;
    let tables = tables.iter().filter(|table| table.is_of_runs());
    let names: Vec<String> = tables.map(NamedTable::full_name).collect();
    let hint = suggestion(name, names.iter().map(String::as_str));
    format!("; {hint}")
}

/// Finds every table, those of the default schema first.
pub(crate) async fn all_tables(context: &SessionContext) -> Vec<NamedTable> {
    let options = context.state().config().options().catalog.clone();
    let catalog = context.catalog(&options.default_catalog);
    let schemas = catalog.iter().flat_map(|catalog| catalog.schema_names());
    let mut all = Vec::new();
    for schema in schemas {
        let tables = catalog.as_ref().and_then(|catalog| catalog.schema(&schema));
        let Some(tables) = tables else { continue };
        for name in tables.table_names() {
            let table = tables
                .table(&name)
                .await
                .ok()
                .flatten()
                .map(|table| table.schema());
            let columns = |table: SchemaRef| {
                table
                    .fields()
                    .iter()
                    .map(|field| field.name().clone())
                    .collect()
            };
            all.push(NamedTable {
                schema: Some(schema.clone()).filter(|schema| *schema != options.default_schema),
                columns: table.map(columns),
                name,
            });
        }
    }
    all.sort_by(|one, other| (&one.schema, &one.name).cmp(&(&other.schema, &other.name)));
    all
}

/// Quotes a column's name for SQL.
pub(crate) fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
