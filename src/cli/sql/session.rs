use std::sync::Arc;

use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;

use super::run_names;
use crate::cli::runs::open;
use crate::error::Error;
use crate::measure::MetricTables;
use crate::measure::functions;
use crate::session::{self, MetricNames, NamedRun, RunTables};
use crate::store::{RunRecord, StoreError};

/// The session that questions are put to.
pub(in crate::cli) struct SqlSession {
    context: SessionContext,
    runs: Vec<NamedRun>,
    names: MetricNames,
    metrics: Arc<MetricTables>,
}

impl SqlSession {
    /// Finds the runs. Their tables, and those of `metrics`, are there when they were looked at.
    ///
    /// # Errors
    /// A name makes no sense, or there is no such run.
    pub(in crate::cli) async fn open(
        context: SessionContext,
        given: &[String],
        metrics: MetricTables,
    ) -> Result<Self, Error> {
        let mut runs = Vec::new();
        for given in run_names::runs(given)? {
            let run = open(&given.place)?;
            if RunRecord::load(&run).await?.is_none() {
                return Err(StoreError::NoRun {
                    place: run.display(""),
                }
                .into());
            }
            runs.push(NamedRun {
                label: given.label,
                schema: given.schema,
                run,
            });
        }
        functions::register(&context);
        functions::register_json(&context)?;
        Ok(Self {
            context,
            runs,
            names: MetricNames::default(),
            metrics: Arc::new(metrics),
        })
    }

    /// Looks at the runs: from here on their tables are what the runs hold now. Every statement is
    /// put to tables of its own look.
    ///
    /// # Errors
    /// A store can't be read.
    pub(in crate::cli) async fn look(&mut self) -> Result<(), Error> {
        let tables = session::register_wide(&self.context, &self.runs, &mut self.names).await?;
        self.add_metrics(&tables)
    }

    /// Adds the metric tables: of one run to the default schema, of several to that of each, because
    /// rollouts of the same number would be mixed otherwise.
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
    ///
    /// # Errors
    /// It is no SQL, names what is not there, or would change something.
    pub(in crate::cli) async fn plan(&self, statement: &str) -> Result<DataFrame, Error> {
        let only_queries = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false);
        Ok(self
            .context
            .sql_with_options(statement, only_queries)
            .await?)
    }

    pub(super) fn context(&self) -> &SessionContext {
        &self.context
    }

    pub(super) fn runs(&self) -> &[NamedRun] {
        &self.runs
    }

    pub(super) fn metrics(&self) -> &MetricTables {
        &self.metrics
    }
}
