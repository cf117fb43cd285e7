//! The plan of a sweep, from its tasks to the parts that land, and the sessions that it reads.

use std::sync::Arc;
use std::thread::available_parallelism;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result as QueryResult;
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::{SessionConfig, SessionContext, col, lit};

use super::Sweep;
use super::by_task::{self, ByTask};
use super::task_order::TaskOrder;
use crate::agent::AgentLimits;
use crate::config::{Concurrency, MemoryPlan, Shard};
use crate::error::Error;
use crate::expand::{self, AgentCounts, AgentMeans, Terminal};
use crate::land::LandStep;
use crate::measure::Price;
use crate::operator::{Step, StepPlanner};
use crate::report::{Estimate, SweepPlan};
use crate::run::RunStep;
use crate::schema::{ATTEMPTS, ROLLOUTS, TASK_INDEX, TASKS};
use crate::session::{self, RunTables};
use crate::store::LockScope;

/// Bytes of requests, about, that a batch of rows may hold.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;

impl Sweep {
    /// Returns what [`Self::collect`] would do. Sends nothing and writes nothing.
    ///
    /// # Errors
    /// The plan can't be made.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let landed = self.landed(self.settings.shard).await?;
        let session = self.session(&landed, self.settings.shard).await?;
        let agents = expand::counts(&session).await?;
        let request_bytes = expand::request_bytes(&session).await?;
        let partitions = self.partitions(&agents);
        let session = self.dispatching(&landed, self.config(), partitions).await?;
        let plan = self.physical(&session).await?;
        let means = expand::means(&session).await?;
        Ok(SweepPlan {
            estimate: self.estimate(&agents, &means),
            partitions,
            physical: displayable(plan.as_ref()).indent(false).to_string(),
            agents,
            request_bytes,
            addresses: self.agents.addresses(),
        })
    }

    /// Returns what the pending rollouts will take. All calls that may be in flight are taken to be.
    fn estimate(&self, counts: &[AgentCounts], means: &[AgentMeans]) -> Estimate {
        let mut estimate = Estimate {
            num_done: means.iter().map(|mean| mean.num_done).sum(),
            seconds: Some(0.0),
            cost: Some(0.0),
            ..Estimate::default()
        };
        let calls = self.settings.concurrency.most() as f64;
        let prices = Price::of_agents(&self.settings);
        let mut slowest: f64 = 0.0;
        for agent in counts.iter().filter(|agent| agent.num_pending() > 0) {
            let pending = agent.num_pending() as f64;
            let limits = AgentLimits::of(&agent.agent_name, &self.settings);
            let own_calls = limits.concurrency.map_or(calls, |own| own.most() as f64);
            if let Some(rate) = limits.requests_per_second {
                estimate.least_seconds = estimate.least_seconds.max(pending / rate);
            }
            let mean = means
                .iter()
                .find(|mean| mean.agent_name == agent.agent_name);
            let seconds = mean.and_then(|mean| Some(pending * mean.seconds?));
            let price = prices.get(&agent.agent_name);
            let cost = mean.zip(price).and_then(|(mean, price)| {
                let input = mean.input_tokens? * price.input;
                let output = mean.output_tokens? * price.output;
                Some(pending * (input + output) / 1e6)
            });
            slowest = slowest.max(seconds.unwrap_or_default() / own_calls.min(calls));
            let add = |sum: Option<f64>, more: Option<f64>| Some(sum? + more?);
            estimate.seconds = add(estimate.seconds, seconds.map(|seconds| seconds / calls));
            estimate.cost = add(estimate.cost, cost);
        }
        let least = slowest.max(estimate.least_seconds);
        estimate.seconds = estimate.seconds.map(|seconds| seconds.max(least));
        estimate
    }

    /// Returns the number of partitions of the plan. The run does not record it: a resume may have another.
    pub(super) fn partitions(&self, counts: &[AgentCounts]) -> usize {
        if let Some(partitions) = self.settings.partitions {
            return partitions.min(by_task::MOST);
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let pending = counts.iter().map(AgentCounts::num_pending).sum();
        by_task::suitable(cores, pending, self.settings.concurrency.most())
    }

    /// Returns the configuration of the session that collects: one partition except for those of [`by_task`], so that
    /// the order of the input is the order of dispatch, and batches that stay small where requests are
    /// large.
    pub(super) fn config(&self) -> SessionConfig {
        let spool = &self.inputs.spool;
        let row = spool.num_bytes / spool.num_rows.max(1);
        let rows = usize::try_from(BATCH_BYTES / row.max(1)).unwrap_or(usize::MAX);
        session::config()
            .with_target_partitions(1)
            .with_batch_size(rows.clamp(1, 4096))
    }

    /// Looks at what has landed of a share of the run, or of all of it.
    pub(super) async fn landed(&self, shard: Option<Shard>) -> QueryResult<RunTables> {
        match self.start.found() {
            Some(_) => RunTables::look_for(&self.run, LockScope::of(shard)).await,
            // Rows of a run that is replaced do not count, though they may still exist.
            None => RunTables::tasks(self.inputs.spool.store()).await,
        }
    }

    /// Makes a session whose tasks are in `partitions` partitions, in the order of dispatch.
    pub(super) async fn dispatching(
        &self,
        landed: &RunTables,
        config: SessionConfig,
        partitions: usize,
    ) -> Result<SessionContext, Error> {
        self.session_with(config, landed, self.settings.shard, Some(partitions))
            .await
    }

    /// Returns the physical plan, from the pending rollouts to the parts that land.
    pub(super) async fn physical(
        &self,
        session: &SessionContext,
    ) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let pending = expand::pending(session).await?.logical_plan().clone();
        let run = RunStep {
            concurrency: match self.settings.concurrency {
                Concurrency::Fixed(calls) => calls,
                Concurrency::Auto => self.limits.registry.own_part(Concurrency::MOST),
            },
        };
        let land = LandStep {
            output: self.run.display(""),
            part_size: self.settings.part_size.get(),
        };
        let landed = land.on(run.on(pending)?)?;
        Ok(session.state().create_physical_plan(&landed).await?)
    }

    /// Makes a session with a share of the tasks, or all, in the order of the input.
    pub(super) async fn session(
        &self,
        landed: &RunTables,
        shard: Option<Shard>,
    ) -> Result<SessionContext, Error> {
        self.session_with(session::config(), landed, shard, None)
            .await
    }

    /// Makes a session with the tasks of the sweep, earlier answers, and the views of [`expand`] over them. The tasks
    /// are dealt out to `dealt` partitions, in the order of dispatch; `None` leaves them as in the input.
    async fn session_with(
        &self,
        config: SessionConfig,
        landed: &RunTables,
        shard: Option<Shard>,
        dealt: Option<usize>,
    ) -> Result<SessionContext, Error> {
        // Memory is bounded while answers are collected.
        let waiting = dealt.map(|_| MemoryPlan::of(&self.settings).waiting);
        let waiting = waiting.and_then(|bytes| usize::try_from(bytes).ok());
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(session::spilling(waiting.unwrap_or(usize::MAX))?)
            .with_query_planner(Arc::new(Planner))
            .build();
        let session = SessionContext::new_with_state(state);
        let spooled = RunTables::tasks(self.inputs.spool.store()).await?;
        for (table, of) in [(TASKS, &spooled), (ROLLOUTS, landed), (ATTEMPTS, landed)] {
            let mut rows = of.table(&session, table).await?;
            if let Some(shard) = shard {
                rows = share(rows, shard)?;
            }
            if let (TASKS, Some(partitions)) = (table, dealt) {
                rows = self.dealt(&session, rows, partitions)?;
            }
            session.register_table(table, rows.into_view())?;
        }
        let agents = self.record.agents.keys().map(String::as_str);
        let budgets = agents.map(|agent| (agent, self.settings.budgets(agent)));
        let terminal = Terminal::of(&self.settings);
        expand::prepare(&session, budgets, terminal, landed.has_attempts()).await?;
        Ok(session)
    }

    fn dealt(
        &self,
        session: &SessionContext,
        tasks: DataFrame,
        partitions: usize,
    ) -> QueryResult<DataFrame> {
        let mut plan = tasks.into_unoptimized_plan();
        if self.settings.interleave_repeats {
            plan = TaskOrder::Rounds.on(plan)?;
        }
        if self.settings.dispatch_longest_first {
            plan = TaskOrder::LongestFirst.on(plan)?;
        }
        if partitions > 1 {
            plan = ByTask { partitions }.on(plan)?;
        }
        Ok(DataFrame::new(session.state(), plan))
    }
}

/// Returns the rows of one shard. Tasks are dealt out by index, so that all rollouts of a task are in one shard.
fn share(rows: DataFrame, shard: Shard) -> QueryResult<DataFrame> {
    let count = || lit(i64::from(shard.count()));
    let place = ((col(TASK_INDEX) % count()) + count()) % count();
    rows.filter(place.eq(lit(i64::from(shard.index()) - 1)))
}

/// Plans our nodes beside DataFusion's own.
#[derive(Debug)]
struct Planner;

#[async_trait]
impl QueryPlanner for Planner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> QueryResult<Arc<dyn ExecutionPlan>> {
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![
            Arc::new(StepPlanner::<TaskOrder>::new()),
            Arc::new(StepPlanner::<ByTask>::new()),
            Arc::new(StepPlanner::<RunStep>::new()),
            Arc::new(StepPlanner::<LandStep>::new()),
        ]);
        planner.create_physical_plan(plan, session).await
    }
}
