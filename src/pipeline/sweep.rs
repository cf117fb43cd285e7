use std::sync::Arc;
use std::time::Instant;

use arrow::array::AsArray;
use async_trait::async_trait;
use chrono::{SecondsFormat, Utc};
use datafusion::catalog::Session;
use datafusion::common::Result as QueryResult;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use super::artifacts::{self, Measured};
use super::identity;
use super::inputs::Inputs;
use crate::agent::Agents;
use crate::config::Settings;
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::land::{LandContext, LandNode, LandPlanner, recover};
use crate::measure::MetricQueries;
use crate::report::{SweepPlan, SweepReport};
use crate::run::{RunContext, RunNode, RunPlanner, Shutdown};
use crate::schema::{ATTEMPTS, ROLLOUTS, SCHEMA_VERSION, TASKS};
use crate::session::{self, RunTables};
use crate::store::{JournalSegment, RunCounts, RunRecord, RunState, RunStore, StoreError};
use crate::tally::{AgentTally, Tally};

/// Rows that wait for their turn beyond those in flight. More of them where agents have limits of
/// their own: the rows of one that is busy must not hide those of the others.
const LOOKAHEAD: usize = 4096;
const LOOKAHEAD_WITH_LIMITS: usize = 64 * 1024;

/// Bytes of requests that a batch of rows may hold, about.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;

/// A sweep: tasks, each sent to its agent a number of times, and the run that comes of it.
///
/// [`Sweep::prepare`] reads and checks everything that can be checked; until then, and in
/// [`Sweep::plan`], nothing is sent and nothing is written. [`Sweep::collect`] does the work.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use rollstream::config::Settings;
/// use rollstream::sim::{Sim, SimConfig};
/// use rollstream::Sweep;
///
/// let dir = tempfile::tempdir()?;
/// let tasks = dir.path().join("tasks.jsonl");
/// std::fs::write(&tasks, r#"{"responses_create_params": {"input": "What is 2 + 3?"}, "expected_answer": 5}"#)?;
///
/// let sim = Sim::start(SimConfig::default()).await?;
/// let settings = Settings {
///     input: vec![tasks.display().to_string()],
///     output: Some(dir.path().join("run").display().to_string()),
///     agent: Some("sim".into()),
///     num_repeats: "4".parse()?,
///     head_server: Some(sim.head_url().parse()?),
///     ..Settings::default()
/// };
/// let report = Sweep::prepare(settings).await?.collect().await?;
/// assert_eq!(report.rollouts.done, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Sweep {
    settings: Settings,
    run: RunStore,
    inputs: Inputs,
    record: RunRecord,
    replaces: bool,
    continues: bool,
    agents: Agents,
    counts: Vec<AgentCounts>,
    queries: MetricQueries,
    tally: Arc<Tally>,
    shutdown: Shutdown,
}

impl Sweep {
    /// Reads the input, finds the agents and checks the output.
    ///
    /// # Errors
    /// Anything is wrong with what was asked; nothing has been sent or written then.
    pub async fn prepare(settings: Settings) -> Result<Self, Error> {
        let queries = MetricQueries::embedded()?;
        let queries = match &settings.queries {
            Some(directory) => queries.with_directory(directory)?,
            None => queries,
        };
        let run = RunStore::open(settings.required_output()?, settings.state_dir.as_deref())?;
        let (existing, replaces) = match existing(&run, &settings).await? {
            Some(_) if settings.overwrite => (None, true),
            existing => (existing, false),
        };
        let inputs = Inputs::read(&settings).await?;
        let names: Vec<String> = inputs
            .summary
            .agents
            .keys()
            .map(|name| name.to_string())
            .collect();
        let agents = Agents::connect(&names, &settings).await?;
        let identity = identity::identity(&settings, &inputs.records, inputs.prompt.as_deref());
        if let Some(record) = &existing {
            identity::check(record, &identity, &run.display(""))?;
        }
        let now = now();
        let record = RunRecord {
            schema_version: SCHEMA_VERSION,
            rollstream_version: env!("CARGO_PKG_VERSION").to_owned(),
            state: RunState::Running,
            created_at: existing
                .as_ref()
                .map_or(now, |record| record.created_at.clone()),
            finished_at: None,
            identity,
            settings: serde_json::to_value(&settings)
                .map_err(|error| Error::Defect(error.to_string()))?,
            inputs: inputs.records.clone(),
            num_tasks: inputs.summary.rows,
            agents: agents.addresses(),
            rollouts: RunCounts::default(),
        };
        let continues = existing.is_some();
        let mut sweep = Self {
            settings,
            run,
            inputs,
            record,
            replaces,
            continues,
            agents,
            counts: Vec::new(),
            queries,
            tally: Arc::default(),
            shutdown: Shutdown::default(),
        };
        sweep.count().await?;
        Ok(sweep)
    }

    /// Counts of the sweep, to be watched while it runs.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Ends the sweep early.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Oddities of the input that are no errors.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.inputs.summary.warnings.clone();
        if self.inputs.summary.rows == 0 {
            warnings.push("the input has no tasks".to_owned());
        }
        warnings
    }

    /// What [`Self::collect`] would do. Sends nothing and writes nothing.
    ///
    /// # Errors
    /// The plan can't be made.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let session = self.session(self.config()).await?;
        let plan = self.physical(&session).await?;
        Ok(SweepPlan {
            physical: displayable(plan.as_ref()).indent(false).to_string(),
            agents: self.counts.clone(),
            addresses: self.agents.addresses(),
        })
    }

    /// Sends what is owed, lands what is answered, measures it, and says what came of it.
    ///
    /// # Errors
    /// Landing or measuring failed. A rollout that fails is no error but a row of `attempts`.
    pub async fn collect(mut self) -> Result<SweepReport, Error> {
        self.begin().await?;
        let began = Instant::now();
        let landed = self.dataflow().await;
        let elapsed = began.elapsed();
        let tally = self.tally.total();
        self.record.rollouts = RunCounts {
            planned: tally.planned,
            done: tally.done,
            failed: tally.num_failed(),
            pending: tally.pending(),
        };
        self.record.finished_at = Some(now());
        let mut written = match landed {
            Ok(written) => written,
            Err(error) => {
                self.record.state = RunState::Failed;
                // What ended the sweep matters more than that it could not be noted.
                let _ = self.record.save(&self.run).await;
                return Err(error);
            }
        };
        self.record.state = match self.shutdown.is_stopping() && tally.pending() > 0 {
            true => RunState::Interrupted,
            false => RunState::Finished,
        };
        self.record.save(&self.run).await?;
        let measured = match self.settings.aggregate {
            true => tokio::select! {
                measured = artifacts::measure(&self.run, &self.queries) => measured?,
                // What has landed can be measured another time.
                () = self.shutdown.aborting() => Measured::default(),
            },
            false => Measured::default(),
        };
        written.extend(measured.written);
        written.push(self.run.display("run.json"));
        Ok(SweepReport {
            place: self.run.display(""),
            state: self.record.state,
            rollouts: self.record.rollouts,
            total: tally,
            metrics: measured.metrics,
            written,
            elapsed,
        })
    }

    async fn begin(&mut self) -> Result<(), Error> {
        if let Some(path) = self.run.local_path() {
            let made = std::fs::create_dir_all(path);
            made.map_err(|source| {
                Error::Output(StoreError::File {
                    action: "create",
                    path: path.to_owned(),
                    source,
                })
            })?;
        }
        if self.continues {
            recover(&self.run).await?;
            self.count().await?;
        } else {
            if self.replaces {
                self.run.clear().await.map_err(Error::Output)?;
            }
            let published = self.inputs.spool.publish(&self.run).await;
            published.map_err(Error::Output)?;
        }
        self.record.save(&self.run).await.map_err(Error::Output)
    }

    async fn count(&mut self) -> Result<(), Error> {
        let session = self.session(self.config()).await?;
        self.counts = expand::counts(&session).await?;
        self.tally.begin(self.counts.iter().map(|agent| {
            let before = AgentTally::before(agent.num_rollouts, agent.num_done, agent.num_failed);
            (agent.agent_name.clone(), before)
        }));
        Ok(())
    }

    /// The one plan, from source to sink, and what it published.
    async fn dataflow(&mut self) -> Result<Vec<String>, Error> {
        let limited = self
            .settings
            .agents
            .values()
            .any(|agent| agent.concurrency.is_some());
        let run = RunContext {
            agents: std::mem::take(&mut self.agents),
            seed: self
                .settings
                .num_repeats_add_seed
                .then_some(self.settings.seed_field),
            lookahead: if limited {
                LOOKAHEAD_WITH_LIMITS
            } else {
                LOOKAHEAD
            },
            tally: Arc::clone(&self.tally),
            shutdown: self.shutdown.clone(),
        };
        let land = LandContext {
            run: self.run.clone(),
            tally: Arc::clone(&self.tally),
        };
        let config = self
            .config()
            .with_extension(Arc::new(run))
            .with_extension(Arc::new(land));
        let session = self.session(config).await?;
        let plan = self.physical(&session).await?;
        let mut landed = execute_stream(plan, session.task_ctx())?;
        let mut written = Vec::new();
        while let Some(batch) = landed.next().await {
            let batch = batch?;
            if let Some(paths) = batch
                .column_by_name("path")
                .and_then(|column| column.as_string_view_opt())
            {
                written.extend(paths.iter().flatten().map(str::to_owned));
            }
        }
        Ok(written)
    }

    /// Configuration of the session that collects: one partition, so that the order of the input
    /// is the order of dispatch, and batches that stay small where requests are large.
    fn config(&self) -> SessionConfig {
        let spool = &self.inputs.spool;
        let row = spool.num_bytes / spool.num_rows.max(1);
        let rows = usize::try_from(BATCH_BYTES / row.max(1)).unwrap_or(usize::MAX);
        session::config()
            .with_target_partitions(1)
            .with_batch_size(rows.clamp(1, 4096))
    }

    /// A session with the tables that the plan reads.
    async fn session(&self, config: SessionConfig) -> Result<SessionContext, Error> {
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(Planner))
            .build();
        let session = SessionContext::new_with_state(state);
        // Of a run that is not gone on with nothing counts, though it may still be there.
        let spooled = RunTables::open(self.inputs.spool.store())?;
        let landed = if self.continues {
            RunTables::open(&self.run)?
        } else {
            spooled.clone()
        };
        for (table, of) in [(TASKS, &spooled), (ROLLOUTS, &landed), (ATTEMPTS, &landed)] {
            let view = of.table(&session, table).await?.into_view();
            session.register_table(table, view)?;
        }
        let names = self.record.agents.keys().map(String::as_str);
        let budgets = names.map(|name| (name, self.settings.budgets(name)));
        expand::prepare(&session, budgets).await?;
        Ok(session)
    }

    async fn physical(&self, session: &SessionContext) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let owed = expand::owed(session).await?.logical_plan().clone();
        let answered = RunNode::plan(owed, self.settings.concurrency.most())?;
        let landed = LandNode::plan(
            answered,
            self.run.display(""),
            self.settings.part_size.get(),
        )?;
        Ok(session.state().create_physical_plan(&landed).await?)
    }
}

/// What is at the place already, if it may be gone on with.
async fn existing(run: &RunStore, settings: &Settings) -> Result<Option<RunRecord>, Error> {
    if let Some(path) = run.local_path()
        && path.exists()
        && !path.is_dir()
    {
        let source = std::io::Error::from(std::io::ErrorKind::NotADirectory);
        return Err(Error::Output(StoreError::File {
            action: "create a run at",
            path: path.to_owned(),
            source,
        }));
    }
    match RunRecord::load(run).await.map_err(Error::Output)? {
        Some(record) if settings.resume || settings.overwrite => Ok(Some(record)),
        Some(record) => {
            let state = record.state.to_string();
            Err(StoreError::Exists {
                place: run.display(""),
                state,
            }
            .into())
        }
        None => no_stray_journal(run).map(|()| None).map_err(Error::Output),
    }
}

/// A run has its run.json before anything is sent: answers without one belong to a run that was
/// removed, and would be counted as those of the new one.
fn no_stray_journal(run: &RunStore) -> Result<(), StoreError> {
    let journal = run.journal_dir();
    match JournalSegment::list(journal)?.is_empty() {
        true => Ok(()),
        false => Err(StoreError::StrayJournal {
            journal: journal.to_owned(),
        }),
    }
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
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
            Arc::new(RunPlanner),
            Arc::new(LandPlanner),
        ]);
        planner.create_physical_plan(plan, session).await
    }
}
