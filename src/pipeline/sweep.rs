use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use chrono::{SecondsFormat, Utc};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::artifacts;
use super::begin::existing;
use super::groups;
use super::inputs::Inputs;
use super::live::{Live, LiveMetrics};
use super::measured::Measured;
use super::measurement::{self, Measurement, Price, Source};
use super::supervisor::Supervisor;
use super::tables::Tables;
use super::{extension, identity, open_files, recovery};
use crate::agent::{Agents, Prior};
use crate::config::{AgentSettings, MemoryPlan, Settings, Shard};
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::land::{LandContext, LandNode};
use crate::measure::{MetricQueries, ParameterValue};
use crate::report::{AgentMetric, GroupReport, SweepPlan, SweepReport};
use crate::run::{FailureLimits, RunContext, RunNode, Shutdown};
use crate::schema::SCHEMA_VERSION;
use crate::session;
use crate::store::{
    Checkpointer, DispatchLog, LockOptions, LockScope, RunCounts, RunLock, RunRecord, RunState,
    RunStore, StoreError,
};
use crate::tally::Tally;

/// Bytes of memory that the metrics of a sweep may take where they can go to temporary files: little, since
/// they run where the sweep has just run.
const MEMORY: usize = 32 * 1024 * 1024;

/// Rows that wait for their turn beyond those in flight. More of them where there are several agents:
/// the rows of one that is busy must not hide those of the others.
const LOOKAHEAD: usize = 4096;
const LOOKAHEAD_OF_MANY: usize = 64 * 1024;

/// How long a collector that falls silent keeps its lock. A store that does not answer must not end a
/// sweep at once: its answers are safe in the journal meanwhile. This is also the longest that such a store is waited
/// for, whatever `--agent-patience` says: a lock that could not be renewed for so long is lost.
const LEASE: Duration = Duration::from_secs(60);
const LEASE_ON_A_STORE: Duration = Duration::from_secs(3 * 60);

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
    pub(super) settings: Settings,
    pub(super) run: RunStore,
    pub(super) inputs: Inputs,
    pub(super) record: RunRecord,
    pub(super) replaces: bool,
    pub(super) continues: bool,
    pub(super) extends: bool,
    /// Nothing was left to be done when it was gone on with.
    pub(super) was_finished: bool,
    /// What the journal's files of this process are called.
    pub(super) process: String,
    pub(super) agents: Agents,
    pub(super) counts: Vec<AgentCounts>,
    /// What earlier processes did for rollouts that are still owed.
    pub(super) prior: HashMap<(i64, i64), Prior>,
    pub(super) queries: MetricQueries,
    pub(super) checkpointer: Option<Checkpointer>,
    pub(super) tally: Arc<Tally>,
    pub(super) shutdown: Shutdown,
    /// What became of the groups of prompts.
    pub(super) groups: Option<GroupReport>,
    pub(super) live: Option<(Duration, watch::Sender<Arc<[AgentMetric]>>)>,
}

fn parameters(
    queries: &MetricQueries,
    settings: &Settings,
) -> Result<HashMap<String, ParameterValue>, Error> {
    let texts = settings
        .params
        .iter()
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={text}"),
            None => format!("{name}={value}"),
        });
    Ok(queries.parameters(&texts.collect::<Vec<_>>())?)
}

impl Sweep {
    /// Reads the input, finds the agents and checks the output.
    ///
    /// # Errors
    /// Anything is wrong with what was asked; nothing has been sent or written then.
    pub async fn prepare(mut settings: Settings) -> Result<Self, Error> {
        let queries = MetricQueries::load(settings.queries.as_deref())?;
        // Whether they are right is to be known before anything is sent.
        parameters(&queries, &settings)?;
        let run = RunStore::open(settings.required_output()?, settings.state_dir.as_deref())?;
        let (existing, replaces) = match existing(&run, &settings).await? {
            Some(_) if settings.overwrite => (None, true),
            existing => (existing, false),
        };
        let inputs = match &existing {
            Some(record) if settings.input.is_empty() && !settings.extend => {
                Inputs::of_run(&mut settings, &run, record).await?
            }
            _ => Inputs::read(&settings).await?,
        };
        let names: Vec<String> = inputs
            .summary
            .agents
            .keys()
            .map(|name| name.to_string())
            .collect();
        let agents = Agents::connect(&names, &settings).await?;
        let identity = inputs.identity.clone().unwrap_or_else(|| {
            identity::identity(&settings, &inputs.records, inputs.prompt.as_deref())
        });
        let extends = match &existing {
            Some(record) if settings.extend => {
                extension::check(record, &identity, &run, &inputs.spool).await?
            }
            Some(record) => {
                identity::check(record, &identity, &run.display(""))?;
                false
            }
            None => false,
        };
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
        let is_finished = |record: &RunRecord| record.state == RunState::Finished;
        let was_finished = existing.as_ref().is_some_and(is_finished);
        let mut sweep = Self {
            process: process_name(settings.shard),
            settings,
            run,
            inputs,
            record,
            replaces,
            continues,
            extends,
            was_finished,
            agents,
            counts: Vec::new(),
            prior: HashMap::new(),
            queries,
            checkpointer: None,
            tally: Arc::default(),
            shutdown: Shutdown::default(),
            groups: None,
            live: None,
        };
        sweep.count().await?;
        Ok(sweep)
    }

    /// Counts of the sweep, to be watched while it runs.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Has the sweep measured while it runs, `every` so often, from what has landed and what the journal
    /// holds.
    pub fn measure_live(&mut self, every: Duration) -> LiveMetrics {
        let (sender, receiver) = watch::channel(Arc::from([]));
        self.live = Some((every, sender));
        receiver
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
        warnings.extend(open_files::warning(self.settings.concurrency));
        warnings
    }

    /// What [`Self::collect`] would do. Sends nothing and writes nothing.
    ///
    /// # Errors
    /// The plan can't be made.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let session = self.tables().session(self.config()).await?;
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
    /// The run is locked, or landing or measuring failed. A rollout that fails is no error but a row
    /// of `attempts`.
    pub async fn collect(mut self) -> Result<SweepReport, Error> {
        let lock = RunLock::acquire(&self.run, self.lock_options()).await;
        let lock = lock.map_err(|error| match error {
            StoreError::Locked { .. } => Error::Store(error),
            error => Error::Output(error),
        })?;
        // The lock itself is renewed without that patience: see its lease.
        let (tally, patience) = (self.tally(), self.settings.agent_patience.duration());
        let tell = move |text| tally.notice(text);
        let shutdown = self.shutdown.clone();
        let enough = move || {
            let shutdown = shutdown.clone();
            async move { shutdown.aborting().await }.boxed()
        };
        self.run = self.run.waited_for(patience, tell, enough);
        let supervisor = Supervisor::new(&self.settings, self.shutdown.clone());
        let report = tokio::select! {
            report = self.work() => report,
            lost = supervisor.watch(&lock) => Err(lost.into()),
        };
        lock.release().await;
        report
    }

    pub(super) fn lock_options(&self) -> LockOptions {
        let scope = match self.settings.shard {
            Some(shard) => LockScope::Shard {
                index: shard.index(),
                count: shard.count(),
            },
            None => LockScope::Run,
        };
        LockOptions {
            scope,
            lease: match self.run.local_path() {
                Some(_) => LEASE,
                None => LEASE_ON_A_STORE,
            },
            break_existing: self.settings.break_lock,
        }
    }

    async fn work(&mut self) -> Result<SweepReport, Error> {
        let shutdown = self.shutdown.clone();
        tokio::select! {
            begun = self.begin() => begun?,
            // What was being recovered can be recovered another time.
            () = shutdown.aborting() => {
                return self.report(Vec::new(), Measured::default(), Duration::ZERO).await;
            }
        }
        let began = Instant::now();
        let owed: u64 = self.counts.iter().map(AgentCounts::num_owed).sum();
        let landed = match owed {
            0 => Ok(Vec::new()),
            _ => {
                let _live = self.start_live()?;
                self.dataflow().await
            }
        };
        let elapsed = began.elapsed();
        self.record.finished_at = Some(now());
        let mut written = match landed {
            Ok(written) => written,
            Err(error) => {
                if self.settings.shard.is_none() {
                    self.record.rollouts = self.tally.total().counts();
                }
                self.record.state = RunState::Failed;
                // What ended the sweep matters more than that it could not be noted.
                let _ = self.record.save(&self.run).await;
                return Err(error);
            }
        };
        self.note_the_end().await?;
        // The last of several processes measures what all of them did.
        let is_whole = self.settings.shard.is_none() || self.record.rollouts.pending == 0;
        let is_as_before =
            self.was_finished && written.is_empty() && self.settings.queries.is_none();
        let earlier = match is_as_before {
            true => artifacts::earlier(&self.run).await?,
            false => None,
        };
        let names: Vec<String> = self.record.agents.keys().cloned().collect();
        let of_groups = groups::agents(&self.settings, &names);
        if is_whole && earlier.is_none() && !of_groups.is_empty() {
            tokio::select! {
                report = groups::write(&self.run, &of_groups, MEMORY) => {
                    let report = report?;
                    written.push(report.written.clone());
                    self.groups = Some(report);
                }
                // What has landed can be put together another time.
                () = self.shutdown.aborting() => {}
            }
        }
        let measured = match earlier {
            Some(earlier) => earlier,
            None if self.settings.aggregate && is_whole => tokio::select! {
                measured = self.measure() => measured?,
                // What has landed can be measured another time.
                () = self.shutdown.aborting() => Measured::default(),
            },
            None => Measured::default(),
        };
        written.push(self.run.display("run.json"));
        self.report(written, measured, elapsed).await
    }

    async fn measure(&self) -> Result<Measured, Error> {
        let runs = std::slice::from_ref(&self.run);
        measurement::measure(&Source::Runs(runs), &self.run, &self.measurement()?).await
    }

    fn measurement(&self) -> Result<Measurement, Error> {
        Ok(Measurement {
            prices: Price::of_agents(&self.settings),
            parameters: parameters(&self.queries, &self.settings)?,
            ..Measurement::new(self.queries.clone(), MEMORY)
        })
    }

    fn start_live(&mut self) -> Result<Option<Live>, Error> {
        let Some((every, sender)) = self.live.take() else {
            return Ok(None);
        };
        Live::start(self.run.clone(), self.measurement()?, every, sender).map(Some)
    }

    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            spool: &self.inputs.spool,
            // Of a run that is not gone on with nothing counts, though it may still be there.
            run: self.continues.then_some(&self.run),
            shard: self.settings.shard,
            settings: &self.settings,
            agents: self.record.agents.keys().map(String::as_str).collect(),
        }
    }

    /// The one plan, from source to sink, and what it published.
    async fn dataflow(&mut self) -> Result<Vec<String>, Error> {
        let settings = &self.settings;
        let is_limited = |agent: &AgentSettings| agent.concurrency.is_some();
        let many = self.counts.len() > 1 || settings.agents.values().any(is_limited);
        let dispatches = Arc::new(DispatchLog::new(self.run.journal_dir(), &self.process));
        let owed = self.counts.iter();
        let run = RunContext {
            prior: std::mem::take(&mut self.prior),
            owed: owed
                .map(|agent| (agent.agent_name.clone(), agent.num_owed()))
                .collect(),
            seed: settings.num_repeats_add_seed.then_some(settings.seed_field),
            memory: MemoryPlan::of(settings),
            most_calls: open_files::most_calls(),
            lookahead: match many {
                true => LOOKAHEAD_OF_MANY,
                false => LOOKAHEAD,
            },
            retry_backoff: settings.retry_backoff.duration(),
            retry_backoff_cap: settings.retry_backoff_cap.duration(),
            agent_patience: settings.agent_patience.duration(),
            failure_limits: FailureLimits {
                max_failures: settings.max_failures,
                max_error_rate: settings.max_error_rate,
            },
            dispatches: Some(Arc::clone(&dispatches)),
            tally: Arc::clone(&self.tally),
            shutdown: self.shutdown.clone(),
            agents: std::mem::take(&mut self.agents),
        };
        let land = LandContext {
            run: self.run.clone(),
            segments: self.process.clone(),
            tally: Arc::clone(&self.tally),
        };
        let config = self
            .config()
            .with_extension(Arc::new(run))
            .with_extension(Arc::new(land));
        let session = self.tables().session(config).await?;
        let plan = self.physical(&session).await?;
        let landed = published(execute_stream(plan, session.task_ctx())?);
        let tally = Arc::clone(&self.tally);
        let tell = move |error: StoreError| tally.notice(error.to_string());
        let interval = self.settings.checkpoint_interval.duration();
        let written = match &mut self.checkpointer {
            Some(checkpointer) => tokio::select! {
                landed = landed => landed?,
                never = checkpointer.keep(interval, tell) => match never {},
            },
            None => landed.await?,
        };
        dispatches.close()?;
        recovery::forget_copies(&self.run, self.settings.shard).await?;
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

/// Paths of the parts that a plan lands.
async fn published(mut landed: SendableRecordBatchStream) -> Result<Vec<String>, Error> {
    let mut written = Vec::new();
    while let Some(batch) = landed.next().await {
        let batch = batch?;
        let paths = batch.column_by_name("path");
        let paths = paths.and_then(|column| column.as_string_view_opt());
        written.extend(paths.into_iter().flatten().flatten().map(str::to_owned));
    }
    Ok(written)
}

/// Names sort by time, and say whose share of the run it is: see [`recovery`].
fn process_name(shard: Option<Shard>) -> String {
    let millis = Utc::now().timestamp_millis();
    let share = recovery::share(shard);
    format!("{millis:013}-{share}")
}

pub(super) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}
