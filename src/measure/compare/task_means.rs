use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;

use super::queries;
use crate::measure::catalog::MetricCatalog;
use crate::measure::error::MeasureError;
use crate::measure::report::AgentCoverage;
use crate::measure::rows::Rows;
use crate::measure::source::Sessions;

const TASK_KEYS: &str = "task_keys";
const TASK_MEANS: &str = "task_means";

/// What a run is compared by: how much of it is there, the keys of its tasks, and each task's mean of
/// each metric.
#[derive(Debug, Clone)]
pub struct TaskMeans {
    pub(super) coverage: Vec<AgentCoverage>,
    pub(super) keys: Arc<dyn TableProvider>,
    pub(super) means: Arc<dyn TableProvider>,
    /// What is kept of the tables lasts as long as this.
    _catalog: Arc<MetricCatalog>,
}

impl TaskMeans {
    /// Computes them over the tables of a run, `tasks`, `rollouts` and `attempts`: the scores over those
    /// of `gathering`, a session on all cores, and the rest over those of `measuring`, which keeps the
    /// order of rows. Both get more tables. `task_key` is the path of the field of a request that tells tasks apart; none
    /// for all that they ask.
    ///
    /// # Errors
    /// A query fails.
    pub async fn of(
        gathering: &SessionContext,
        measuring: &SessionContext,
        task_key: Option<&str>,
    ) -> Result<Self, MeasureError> {
        let task_key = task_key.unwrap_or_default().into();
        let parameters = HashMap::from([("task_key".to_owned(), task_key)]);
        let catalog = MetricCatalog::new(&Sessions::of(gathering, measuring), parameters).await?;
        catalog.keep_views().await?;
        let queries = queries()?;
        for (name, order) in [
            (TASK_KEYS, ["agent_name", "task_index"].as_slice()),
            (TASK_MEANS, &["agent_name", "metric", "task_key"]),
        ] {
            catalog.keep(queries.get(name)?, order).await?;
        }
        let planned = "SELECT * FROM coverage WHERE planned > 0 ORDER BY agent_name";
        let coverage = Rows::of(measuring, planned, AgentCoverage::rows).await?;
        Ok(Self {
            coverage: coverage.collect().await?,
            keys: measuring.table_provider(TASK_KEYS).await?,
            means: measuring.table_provider(TASK_MEANS).await?,
            _catalog: Arc::new(catalog),
        })
    }
}
