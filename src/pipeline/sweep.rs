use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use chrono::{SecondsFormat, Utc};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;

use super::artifacts::{self, Measured};
use super::inputs::Inputs;
use super::supervisor::Supervisor;
use super::tables::Tables;
use super::{extension, identity, recovery};
use crate::agent::{Agents, Prior};
use crate::config::{AgentSettings, Settings, Shard};
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::land::{LandContext, LandNode};
use crate::measure::MetricQueries;
use crate::report::{SweepPlan, SweepReport};
use crate::run::{FailureLimits, RunContext, RunNode, Shutdown, StopReason};
use crate::schema::{SCHEMA_VERSION, TASKS};
use crate::session;
use crate::status::RunStatus;
use crate::store::{
    Checkpointer, DispatchLog, DispatchLogFile, JournalSegment, LockOptions, LockScope, RunCounts,
    RunLock, RunRecord, RunState, RunStore, StoreError, checkpoint,
};
use crate::tally::{AgentTally, Tally};

/// Rows that wait for their turn beyond those in flight. More of them where there are several agents:
/// the rows of one that is busy must not hide those of the others.
const LOOKAHEAD: usize = 4096;
const LOOKAHEAD_OF_MANY: usize = 64 * 1024;

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
    extends: bool,
    /// Nothing was left to be done when it was gone on with.
    was_finished: bool,
    /// What the journal's files of this process are called.
    process: String,
    agents: Agents,
    counts: Vec<AgentCounts>,
    /// What earlier processes did for rollouts that are still owed.
    prior: HashMap<(i64, i64), Prior>,
    queries: MetricQueries,
    checkpointer: Option<Checkpointer>,
    tally: Arc<Tally>,
    shutdown: Shutdown,
}

impl Sweep {
    /// Reads the input, finds the agents and checks the output.
    ///
    /// # Errors
    /// Anything is wrong with what was asked; nothing has been sent or written then.
    pub async fn prepare(mut settings: Settings) -> Result<Self, Error> {
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
        let supervisor = Supervisor::new(&self.settings, self.shutdown.clone());
        let report = tokio::select! {
            report = self.work() => report,
            lost = supervisor.watch(&lock) => Err(lost.into()),
        };
        lock.release().await;
        report
    }

    fn lock_options(&self) -> LockOptions {
        let scope = match self.settings.shard {
            Some(shard) => LockScope::Shard {
                index: shard.index(),
                count: shard.count(),
            },
            None => LockScope::Run,
        };
        LockOptions {
            scope,
            break_existing: self.settings.break_lock,
            ..LockOptions::default()
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
        let landed = self.dataflow().await;
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
        let measured = match earlier {
            Some(earlier) => earlier,
            None if self.settings.aggregate && is_whole => tokio::select! {
                measured = artifacts::measure(&self.run, &self.queries) => measured?,
                // What has landed can be measured another time.
                () = self.shutdown.aborting() => Measured::default(),
            },
            None => Measured::default(),
        };
        written.push(self.run.display("run.json"));
        self.report(written, measured, elapsed).await
    }

    /// Writes how it ended. Of several processes each may be the last; who sees that another ended
    /// meanwhile writes again.
    async fn note_the_end(&mut self) -> Result<(), Error> {
        let own = self.tally.total().counts();
        if self.settings.shard.is_none() {
            self.record.rollouts = own;
            self.record.state = self.state(own.pending);
            return Ok(self.record.save(&self.run).await?);
        }
        let mut counts = self.counts_of_all().await?;
        loop {
            self.record.rollouts = counts;
            self.record.state = match self.state(counts.pending) {
                RunState::Finished => RunState::Finished,
                _ if self.others_work().await? => RunState::Running,
                own => own,
            };
            self.record.save(&self.run).await?;
            counts = self.counts_of_all().await?;
            if counts == self.record.rollouts {
                return Ok(());
            }
        }
    }

    async fn report(
        &self,
        mut written: Vec<String>,
        measured: Measured,
        elapsed: Duration,
    ) -> Result<SweepReport, Error> {
        let tally = self.tally.total();
        let place = written.pop();
        written.extend(measured.written);
        written.extend(place);
        let all_well = tally.pending() + tally.num_failed() + tally.num_retries() == 0;
        let status = match all_well {
            true => None,
            false => Some(RunStatus::of(&self.run).await?),
        };
        Ok(SweepReport {
            place: self.run.display(""),
            state: self.state(tally.pending()),
            stopped_by: self.shutdown.reason(),
            rollouts: tally.counts(),
            total: tally,
            status,
            metrics: measured.metrics,
            written,
            elapsed,
        })
    }

    fn state(&self, pending: u64) -> RunState {
        match self.shutdown.reason() {
            _ if pending == 0 => RunState::Finished,
            Some(StopReason::Signal) => RunState::Interrupted,
            Some(_) => RunState::Stopped,
            None => RunState::Incomplete,
        }
    }

    /// Another process holds a lock on a share of the run.
    async fn others_work(&self) -> Result<bool, Error> {
        let own = self.lock_options().scope;
        let holders = RunLock::holders(&self.run).await?;
        Ok(holders
            .iter()
            .any(|holder| holder.alive && holder.scope != own))
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
        if self.replaces {
            self.run.clear().await.map_err(Error::Output)?;
        }
        let created =
            !self.continues && self.record.create(&self.run).await.map_err(Error::Output)?;
        if !created && !self.continues {
            self.join().await?;
        }
        let tasks = self.run.parts(TASKS).await.map_err(Error::Output)?;
        if tasks.is_empty() || self.extends {
            let published = self.inputs.spool.publish(&self.run).await;
            published.map_err(Error::Output)?;
        }
        let shard = self.settings.shard;
        if self.continues {
            let journal = self.run.journal_dir();
            let is_ours = |name: &str| recovery::is_ours(name, shard);
            checkpoint::fetch(&self.run, journal, is_ours).await?;
        }
        let process = self.process.clone();
        let is_own = move |name: &str| name.starts_with(&process);
        self.checkpointer = Some(Checkpointer::new(self.run.clone(), is_own)?);
        if self.continues {
            let session = SessionContext::new_with_config(session::config());
            if recovery::recover(&self.run, shard, &session).await? {
                self.was_finished = false;
                self.count().await?;
            }
        }
        match created {
            true => Ok(()),
            false => self.record.save(&self.run).await.map_err(Error::Output),
        }
    }

    /// Somebody made the run since it was looked for: where several processes share the work, that is
    /// one of them.
    async fn join(&mut self) -> Result<(), Error> {
        let place = self.run.display("");
        let record = RunRecord::load(&self.run).await.map_err(Error::Output)?;
        match (record, self.settings.shard) {
            (Some(record), Some(_)) => {
                identity::check(&record, &self.record.identity, &place)?;
                self.record.created_at = record.created_at;
                self.continues = true;
                Ok(())
            }
            (record, _) => {
                let state = record.map_or(RunState::Running, |record| record.state);
                let state = state.to_string();
                Err(StoreError::Exists { place, state }.into())
            }
        }
    }

    async fn count(&mut self) -> Result<(), Error> {
        let session = self.tables().session(session::config()).await?;
        self.counts = expand::counts(&session).await?;
        self.prior = expand::prior(&session).await?;
        self.tally.begin(self.counts.iter().map(|agent| {
            let before = AgentTally::before(agent.num_rollouts, agent.num_done, agent.num_failed);
            (agent.agent_name.clone(), before)
        }));
        Ok(())
    }

    /// Counts of the whole run, where this process works on a share of it.
    async fn counts_of_all(&self) -> Result<RunCounts, Error> {
        let tables = Tables {
            shard: None,
            ..self.tables()
        };
        let session = tables.session(session::config()).await?;
        let counts = expand::counts(&session).await?;
        let sum = |of: fn(&AgentCounts) -> u64| counts.iter().map(of).sum::<u64>();
        Ok(RunCounts {
            planned: sum(|agent| agent.num_rollouts),
            done: sum(|agent| agent.num_done),
            failed: sum(|agent| agent.num_failed),
            pending: sum(AgentCounts::num_owed),
        })
    }

    fn tables(&self) -> Tables<'_> {
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
        Some(record) if settings.resume || settings.overwrite || settings.shard.is_some() => {
            Ok(Some(record))
        }
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
    let segments = JournalSegment::list(journal)?;
    match segments.is_empty() && DispatchLogFile::list(journal)?.is_empty() {
        true => Ok(()),
        false => Err(StoreError::StrayJournal {
            journal: journal.to_owned(),
        }),
    }
}

/// Names sort by time, and say whose share of the run it is: see [`recovery`].
fn process_name(shard: Option<Shard>) -> String {
    let millis = Utc::now().timestamp_millis();
    let share = recovery::share(shard);
    format!("{millis:013}-{share}")
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}
