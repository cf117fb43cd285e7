//! The plan of a sweep, from its tasks to the parts that land: [`Tables`] is the session that it reads.

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
use super::inputs::Spool;
use super::task_order::TaskOrder;
use crate::config::{MemoryPlan, Settings, Shard};
use crate::error::Error;
use crate::expand::{self, AgentCounts, Terminal};
use crate::land::LandStep;
use crate::operator::{Step, StepPlanner};
use crate::report::SweepPlan;
use crate::run::RunStep;
use crate::schema::{ATTEMPTS, ROLLOUTS, TASK_INDEX, TASKS};
use crate::session::{self, RunTables};
use crate::store::RunStore;

/// Bytes of requests that a batch of rows may hold, about.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;

impl Sweep {
    /// What [`Self::collect`] would do. Sends nothing and writes nothing.
    ///
    /// # Errors
    /// The plan can't be made.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let session = self.tables().session(session::config()).await?;
        let agents = expand::counts(&session).await?;
        let partitions = self.partitions(&agents);
        let session = self.session(self.config(), partitions).await?;
        let plan = self.physical(&session).await?;
        Ok(SweepPlan {
            partitions,
            physical: displayable(plan.as_ref()).indent(false).to_string(),
            agents,
            addresses: self.agents.addresses(),
        })
    }

    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            spool: &self.inputs.spool,
            // Nothing counts of a run that is replaced, though it may still be there.
            run: self.start.found().map(|_| &self.run),
            shard: self.settings.shard,
            partitions: 1,
            is_interleaved: false,
            settings: &self.settings,
            agents: self.record.agents.keys().map(String::as_str).collect(),
        }
    }

    /// Partitions of the plan. They are no part of the run: a resume may have others.
    pub(super) fn partitions(&self, counts: &[AgentCounts]) -> usize {
        if let Some(partitions) = self.settings.partitions {
            return partitions.min(by_task::MOST);
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let pending = counts.iter().map(AgentCounts::num_pending).sum();
        by_task::suitable(cores, pending, self.settings.concurrency.most())
    }

    /// Configuration of the session that collects: one partition but for those of [`by_task`], so that
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

    /// A session whose tasks are in as many partitions as the sweep has.
    pub(super) async fn session(
        &self,
        config: SessionConfig,
        partitions: usize,
    ) -> Result<SessionContext, Error> {
        let waiting = MemoryPlan::of(&self.settings).waiting;
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
        let tables = Tables {
            partitions,
            is_interleaved: self.settings.interleave_repeats,
            ..self.tables()
        };
        tables.bounded_session(config, waiting).await
    }

    pub(super) async fn physical(
        &self,
        session: &SessionContext,
    ) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let pending = expand::pending(session).await?.logical_plan().clone();
        let run = RunStep {
            concurrency: self.settings.concurrency.most(),
        };
        let land = LandStep {
            output: self.run.display(""),
            part_size: self.settings.part_size.get(),
        };
        let landed = land.on(run.on(pending)?)?;
        Ok(session.state().create_physical_plan(&landed).await?)
    }
}

/// What the plan of a sweep reads.
pub(super) struct Tables<'a> {
    /// The tasks.
    pub(super) spool: &'a Spool,
    /// What was answered before, if anything counts.
    pub(super) run: Option<&'a RunStore>,
    /// The share of the tasks that is looked at.
    pub(super) shard: Option<Shard>,
    /// Partitions that the tasks are dealt out to.
    pub(super) partitions: usize,
    /// The tasks come round by round: first all with their first rollouts.
    pub(super) is_interleaved: bool,
    /// For the budgets of ...
    pub(super) settings: &'a Settings,
    /// ... these agents.
    pub(super) agents: Vec<&'a str>,
}

impl Tables<'_> {
    /// A session with these tables, and the views of [`expand`] over them.
    pub(super) async fn session(&self, config: SessionConfig) -> Result<SessionContext, Error> {
        self.bounded_session(config, usize::MAX).await
    }

    /// The same; what can go to temporary files is kept below `memory` bytes.
    pub(super) async fn bounded_session(
        &self,
        config: SessionConfig,
        memory: usize,
    ) -> Result<SessionContext, Error> {
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(session::spilling(memory)?)
            .with_query_planner(Arc::new(Planner))
            .build();
        let session = SessionContext::new_with_state(state);
        let spooled = RunTables::look(self.spool.store()).await?;
        let landed = match self.run {
            Some(run) => RunTables::look(run).await?,
            None => spooled.clone(),
        };
        for (table, of) in [(TASKS, &spooled), (ROLLOUTS, &landed), (ATTEMPTS, &landed)] {
            let rows = self.share(of.table(&session, table).await?)?;
            let rows = match table {
                TASKS => self.dealt(&session, rows)?,
                _ => rows,
            };
            session.register_table(table, rows.into_view())?;
        }
        let budgets = self
            .agents
            .iter()
            .map(|agent| (*agent, self.settings.budgets(agent)));
        expand::prepare(&session, budgets, Terminal::of(self.settings)).await?;
        Ok(session)
    }

    fn dealt(&self, session: &SessionContext, tasks: DataFrame) -> QueryResult<DataFrame> {
        let partitions = self.partitions;
        let mut plan = tasks.into_unoptimized_plan();
        if self.is_interleaved {
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

    /// The rows of this process. Tasks are dealt out by index, so that all rollouts of a task are in
    /// one share.
    fn share(&self, rows: DataFrame) -> QueryResult<DataFrame> {
        let Some(shard) = self.shard else {
            return Ok(rows);
        };
        let count = || lit(i64::from(shard.count()));
        let place = ((col(TASK_INDEX) % count()) + count()) % count();
        rows.filter(place.eq(lit(i64::from(shard.index()) - 1)))
    }
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
