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

/// The data by which a run is compared: its coverage, the keys of its tasks, and each task's mean of
/// each metric.
#[derive(Debug, Clone)]
pub struct TaskMeans {
    pub(super) coverage: Vec<AgentCoverage>,
    pub(super) keys: Arc<dyn TableProvider>,
    pub(super) means: Arc<dyn TableProvider>,
    /// Keeps the temporary files of the tables alive.
    _catalog: Arc<MetricCatalog>,
}

impl TaskMeans {
    /// Computes the means over the tables `tasks`, `rollouts` and `attempts` of a run: the scores in
    /// `gathering`, a session on all cores, and the rest in `measuring`, which keeps the
    /// order of rows. Registers more tables with both. `task_key` is the path of the request field that identifies a
    /// task; `None` stands for the digest of all that a task asks.
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
        for name in [TASK_KEYS, TASK_MEANS] {
            catalog.keep(queries.get(name)?).await?;
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
