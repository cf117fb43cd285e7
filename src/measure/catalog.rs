//! Metrics as tables of a catalog, from which every command reads them:
//!
//! ```text
//!   aggregate, collect, --live, profile, compare ──► MetricCatalog ──► scores, coverage (kept) ──► tasks, rollouts, ...
//!   sql, check ──► MetricTables ──► a MetricCatalog at each look
//! ```
//!
//! [`MetricCatalog`] computes the tables over those of a run. [`MetricTables`](super::MetricTables) adds them to
//! the tables that a user queries.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use super::error::MeasureError;
use super::families::{
    COVERAGE, MetricTable, SCORES, TOTALS, plan, register_views, spool_scores, view,
};
use super::queries::MetricQuery;
use super::source::Sessions;
use crate::session::Spool;

/// A result that is computed when it is first awaited. Every awaiting reader drives it, so that a reader that stops
/// half way does not block the others.
pub(super) type Once<T> = Shared<BoxFuture<'static, Result<T, Arc<MeasureError>>>>;

pub(super) fn once<T: Clone>(
    computed: impl Future<Output = Result<T, MeasureError>> + Send + 'static,
) -> Once<T> {
    computed.map(|done| done.map_err(Arc::new)).boxed().shared()
}

/// The metric families over one set of tables.
///
/// The views `scores`, `coverage` and `totals`, which several families read, are computed once, when the first family
/// needs them. They are kept in temporary files, which live as long as the catalog.
pub(crate) struct MetricCatalog {
    measuring: SessionContext,
    spool: Arc<Spool>,
    parameters: Arc<HashMap<String, ScalarValue>>,
    /// The views that are kept, by name.
    kept: [(&'static str, Once<()>); 3],
}

impl MetricCatalog {
    /// Creates a catalog over the tables of `sessions`, and computes nothing yet. A parameter that is not in
    /// `parameters` has its default.
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
        let scores = once(scores);
        let of_measuring = |name| {
            let measuring = measuring.clone();
            let (spool, parameters) = (Arc::clone(&spool), Arc::clone(&parameters));
            async move {
                let table = view(&measuring, name, &parameters).await?;
                table.keep(&spool, &measuring).await
            }
        };
        let (known, of_scores) = (scores.clone(), of_measuring(TOTALS));
        let totals = async move {
            known.await.map_err(MeasureError::Shared)?;
            of_scores.await
        };
        let coverage = once(of_measuring(COVERAGE));
        Ok(Self {
            measuring: measuring.clone(),
            spool,
            parameters,
            kept: [
                (SCORES, scores),
                (COVERAGE, coverage),
                (TOTALS, once(totals)),
            ],
        })
    }

    /// Returns the session with the tables, the views and the kept results.
    pub(crate) fn session(&self) -> &SessionContext {
        &self.measuring
    }

    /// Plans the table of a query over the kept views, and computes those that it reads.
    pub(crate) async fn table(&self, query: &MetricQuery) -> Result<MetricTable, MeasureError> {
        // Planning refuses invalid SQL later.
        let read = references(&self.measuring, &query.sql).unwrap_or_default();
        for (view, kept) in &self.kept {
            if read.contains(*view) {
                kept.clone().await.map_err(MeasureError::Shared)?;
            }
        }
        plan(&self.measuring, query, &self.parameters).await
    }

    /// Computes the views that queries of NeMo Gym's files read, unless they are computed already.
    pub(crate) async fn keep_views(&self) -> Result<(), MeasureError> {
        for (_, kept) in self.kept.iter().filter(|(name, _)| *name != TOTALS) {
            kept.clone().await.map_err(MeasureError::Shared)?;
        }
        Ok(())
    }

    /// Computes the table of a query once, and registers it with the session under its name.
    pub(crate) async fn keep(&self, query: &MetricQuery) -> Result<(), MeasureError> {
        let table = self.table(query).await?;
        table.keep(&self.spool, &self.measuring).await
    }
}

impl fmt::Debug for MetricCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricCatalog").finish_non_exhaustive()
    }
}

/// Returns the names of the tables that a query reads.
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
