use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;

use super::decode;
use super::queries;
use crate::measure::error::MeasureError;
use crate::measure::families::{COVERAGE, plan, spool_scores, view};
use crate::measure::functions;
use crate::measure::queries::ParameterValue;
use crate::measure::report::AgentCoverage;
use crate::measure::spool::Spool;

const TASK_KEYS: &str = "task_keys";
const TASK_MEANS: &str = "task_means";

/// What a run is compared by: how much of it is there, the keys of its tasks, and each task's mean of
/// each metric. The latter two are in the [`Spool`], and there as long as that is.
#[derive(Debug, Clone)]
pub struct TaskMeans {
    coverage: Vec<AgentCoverage>,
    pub(super) keys: Arc<dyn TableProvider>,
    pub(super) means: Arc<dyn TableProvider>,
}

impl TaskMeans {
    /// Computes them over the tables of a run, `tasks`, `rollouts` and `attempts`: the scores over those
    /// of `gathering`, a session on all cores, and the rest over those of `measuring`, which keeps the
    /// order of rows. Both get more tables. `task_key` is the path of the field of a request that tells tasks apart; none for all that
    /// they ask.
    ///
    /// # Errors
    /// A query fails.
    pub async fn of(
        spool: &Spool,
        gathering: &SessionContext,
        measuring: &SessionContext,
        task_key: Option<&str>,
    ) -> Result<Self, MeasureError> {
        functions::register(measuring);
        spool_scores(spool, gathering, measuring, &HashMap::new()).await?;
        let queries = queries()?;
        let task_key = ParameterValue::Text(task_key.unwrap_or_default().to_owned());
        let parameters = HashMap::from([("task_key".to_owned(), task_key)]);
        let keys = plan(measuring, queries.get(TASK_KEYS)?, &parameters).await?;
        spool
            .keep(measuring, keys, &["agent_name", "task_index"])
            .await?;
        let means = plan(measuring, queries.get(TASK_MEANS)?, &parameters).await?;
        let order = ["agent_name", "metric", "task_key"];
        spool.keep(measuring, means, &order).await?;
        let coverage = view(gathering, COVERAGE, &HashMap::new()).await?;
        let mut coverage: Vec<AgentCoverage> = decode(&coverage.collect().await?)?;
        coverage.retain(|agent| agent.planned > 0);
        coverage.sort_by(|a, b| a.agent_name.cmp(&b.agent_name));
        Ok(Self {
            coverage,
            keys: table(measuring, TASK_KEYS).await?,
            means: table(measuring, TASK_MEANS).await?,
        })
    }

    /// The agents with planned rollouts, by name, and their coverage.
    pub fn coverage(&self) -> &[AgentCoverage] {
        &self.coverage
    }
}

pub(super) async fn table(
    ctx: &SessionContext,
    name: &str,
) -> Result<Arc<dyn TableProvider>, MeasureError> {
    Ok(ctx.table_provider(name).await?)
}
