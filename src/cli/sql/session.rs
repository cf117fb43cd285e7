use std::path::PathBuf;

use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;

use super::run_names;
use crate::error::Error;
use crate::measure::functions;
use crate::session::{self, MetricNames, NamedRun};
use crate::store::{RunRecord, RunStore, StoreError};

/// The session that questions are put to.
pub(super) struct SqlSession {
    context: SessionContext,
    runs: Vec<NamedRun>,
    names: MetricNames,
}

impl SqlSession {
    /// Finds the runs. Their tables are there when they were looked at.
    ///
    /// # Errors
    /// A name makes no sense, or there is no such run.
    pub(super) async fn open(given: &[String]) -> Result<Self, Error> {
        let state_dir = state_dir();
        let mut runs = Vec::new();
        for given in run_names::runs(given)? {
            let run = RunStore::open(&given.place, state_dir.as_deref())?;
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
        let context = SessionContext::new_with_config(session::config());
        functions::register(&context);
        functions::register_json(&context)?;
        Ok(Self {
            context,
            runs,
            names: MetricNames::default(),
        })
    }

    /// Looks at the runs: from here on their tables are what the runs hold now. Every statement is
    /// put to tables of its own look.
    ///
    /// # Errors
    /// A store can't be read.
    pub(super) async fn look(&mut self) -> Result<(), Error> {
        session::register_wide(&self.context, &self.runs, &mut self.names).await?;
        // What else people ask for by name is made of those tables here.
        Ok(())
    }

    /// Plans a statement over what the last look found.
    ///
    /// # Errors
    /// It is no SQL, names what is not there, or would change something.
    pub(super) async fn plan(&self, statement: &str) -> Result<DataFrame, Error> {
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
}

/// Where journals of remote runs are, if it was said.
pub(super) fn state_dir() -> Option<PathBuf> {
    std::env::var_os("ROLLSTREAM_STATE_DIR").map(PathBuf::from)
}
