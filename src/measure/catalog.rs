//! Metrics as tables of a catalog. Everything that measures reads them there:
//!
//! ```text
//!   aggregate, collect, --live, profile, compare ──► MetricCatalog ──► scores, coverage (kept) ──► tasks, rollouts, ...
//!   sql, check ──► MetricTables ──► a MetricCatalog at each look
//! ```
//!
//! [`MetricCatalog`] computes the tables over those of a run, and [`MetricTables`](super::MetricTables) puts them beside
//! the tables that a person asks questions of.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::error::MeasureError;
use super::families::{COVERAGE, MetricTable, SCORES, plan, register_views, spool_scores, view};
use super::queries::MetricQuery;
use super::source::Sessions;
use crate::session::Spool;

/// A result that is computed when it is first waited for. Whoever waits moves it on, so that a reader that stops in the
/// middle of it holds up no other.
pub(super) type Once<T> = Shared<BoxFuture<'static, Result<T, Arc<MeasureError>>>>;

pub(super) fn once<T: Clone>(
    computed: impl Future<Output = Result<T, MeasureError>> + Send + 'static,
) -> Once<T> {
    computed.map(|done| done.map_err(Arc::new)).boxed().shared()
}

/// The metric families over one set of tables.
///
/// The view of the scores and that of the coverage, which most families read, are computed once, when the first family
/// needs them. They are kept in temporary files, which last as long as this.
pub(crate) struct MetricCatalog {
    measuring: SessionContext,
    spool: Arc<Spool>,
    parameters: Arc<HashMap<String, ScalarValue>>,
    /// The views that are kept, by name.
    kept: [(&'static str, Once<()>); 2],
}

impl MetricCatalog {
    /// A catalog over the tables of `sessions`. Nothing is computed yet. A parameter that is not in `parameters` has its
    /// default.
    pub(crate) async fn new(
        sessions: &Sessions,
        parameters: HashMap<String, ScalarValue>,
    ) -> Result<Self, MeasureError> {
        let Sessions {
            gathering,
            measuring,
            ..
        } = sessions;
        register_views(measuring, &parameters).await?;
        let (spool, parameters) = (Arc::new(Spool::new()?), Arc::new(parameters));
        let scores = {
            let (gathering, measuring) = (gathering.clone(), measuring.clone());
            let (spool, parameters) = (Arc::clone(&spool), Arc::clone(&parameters));
            async move { spool_scores(&spool, &gathering, &measuring, &parameters).await }
        };
        let coverage = {
            let measuring = measuring.clone();
            let (spool, parameters) = (Arc::clone(&spool), Arc::clone(&parameters));
            async move {
                let coverage = view(&measuring, COVERAGE, &parameters).await?;
                coverage.keep(&spool, &measuring, &[]).await
            }
        };
        Ok(Self {
            measuring: measuring.clone(),
            spool,
            parameters,
            kept: [(SCORES, once(scores)), (COVERAGE, once(coverage))],
        })
    }

    /// The session that has the tables, the views, and what was kept.
    pub(crate) fn session(&self) -> &SessionContext {
        &self.measuring
    }

    /// The table of a query, planned over the views that are kept.
    pub(crate) async fn table(&self, query: &MetricQuery) -> Result<MetricTable, MeasureError> {
        // What is no SQL is refused when it is planned.
        let read = references(&self.measuring, &query.sql).unwrap_or_default();
        for (view, kept) in &self.kept {
            if read.contains(*view) {
                kept.clone().await.map_err(MeasureError::Shared)?;
            }
        }
        plan(&self.measuring, query, &self.parameters).await
    }

    /// Computes the views that are kept, if that was not done yet.
    pub(crate) async fn keep_views(&self) -> Result<(), MeasureError> {
        for (_, kept) in &self.kept {
            kept.clone().await.map_err(MeasureError::Shared)?;
        }
        Ok(())
    }

    /// Computes the table of a query once, and makes it known to the session under its name. `order` are the columns that
    /// it is sorted by.
    pub(crate) async fn keep(
        &self,
        query: &MetricQuery,
        order: &[&str],
    ) -> Result<(), MeasureError> {
        let table = self.table(query).await?;
        table.keep(&self.spool, &self.measuring, order).await
    }
}

impl fmt::Debug for MetricCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricCatalog").finish_non_exhaustive()
    }
}

/// The tables that a query names.
fn references(session: &SessionContext, sql: &str) -> datafusion::common::Result<BTreeSet<String>> {
    let state = session.state();
    let dialect = state.config().options().sql_parser.dialect;
    let statement = state.sql_to_statement(sql, &dialect)?;
    let tables = state.resolve_table_references(&statement)?;
    Ok(tables
        .iter()
        .map(|table| table.table().to_owned())
        .collect())
}
