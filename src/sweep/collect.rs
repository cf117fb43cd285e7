//! Runs a sweep: [`Sweep::collect`] drives the plan under the lock of the run.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execute_stream;
use futures::{FutureExt, StreamExt};
use tokio::time::sleep_until;

use super::longest_first::KnownSeconds;
use super::{Role, Sweep, now};
use crate::config::{AgentSettings, Concurrency, MemoryPlan, Settings};
use crate::error::Error;
use crate::expand::AgentCounts;
use crate::http::open_files;
use crate::land::LandContext;
use crate::progress::{Phase, Progress};
use crate::report::SweepReport;
use crate::run::{DispatchBudget, FailureLimits, RunContext, Shutdown, StopReason};
use crate::session::RunTables;
use crate::store::{
    DispatchLogs, LockOptions, LockScope, RunLock, RunState, RunStore, StoreError, Writer,
};

/// Rows that wait for their turn beyond those in flight. With several agents there are more:
/// the rows of a busy agent must not hide those of the others.
const LOOKAHEAD: usize = 4096;
const LOOKAHEAD_OF_MANY: usize = 64 * 1024;
/// How long a process that falls silent keeps its lock. A store that does not answer must not end a
/// sweep at once: its answers are safe in the journal meanwhile. The sweep waits for such a store for this long
/// at most, whatever `--agent-patience` says: a lock that was not renewed for so long is lost.
const LEASE: Duration = Duration::from_secs(60);
const LEASE_ON_A_STORE: Duration = Duration::from_secs(3 * 60);

/// Files that a sweep may have open besides its connections: inputs, the journal, parts, stores.
const OTHERS: u64 = 256;

/// The pause between two looks at a lock that is waited for.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// The clocks of machines differ by less than this.
pub(super) const CLOCKS: Duration = Duration::from_secs(10);

/// The longest grace: a hundred years, which never pass.
pub(super) const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What a process has done before it finishes the run.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) written: Vec<String>,
    /// Whether it was aborted before anything was sent.
    pub(super) is_cut_off: bool,
}

/// Work that has ended under a lock, which is still held.
pub(super) struct Worked {
    pub(super) lock: RunLock,
    pub(super) writer: Arc<Writer>,
    supervisor: Supervisor,
    pub(super) done: Result<Done, Error>,
}

impl Sweep {
    /// Sends the pending rollouts, lands their answers, measures them, and reports.
    ///
    /// # Errors
    /// The run is locked, or landing or measuring failed. A rollout that fails is no error but a row
    /// of `attempts`.
    pub async fn collect(mut self) -> Result<SweepReport, Error> {
        let place = self.run.clone();
        let lock = self.take_lock(&place).await?;
        let Worked {
            lock,
            writer,
            supervisor,
            done,
        } = self.work_under(lock, |_| {}).await?;
        if self.settings.shard.is_none() {
            let report = match done {
                Ok(done) => self.finish_watched(done, &lock, &supervisor).await,
                Err(error) => Err(error),
            };
            lock.release_after(writer).await;
            return report;
        }
        // Of several processes, the last one finishes the run. Each releases its lock before it looks for
        // the others, so that one of them is the last.
        lock.release_after(writer).await;
        self.finish_shared(done?, &place, &supervisor).await
    }

    /// Does the work under a lock, which is released if the work can't begin. `begun` is told when the pending rollouts are
    /// counted.
    pub(super) async fn work_under(
        &mut self,
        lock: RunLock,
        begun: impl FnOnce(&Progress),
    ) -> Result<Worked, Error> {
        let (writer, supervisor) = match self.hold(&lock).await {
            Ok(held) => held,
            Err(error) => {
                lock.release().await;
                return Err(error);
            }
        };
        let done = tokio::select! {
            done = self.work(&writer, begun) => done,
            lost = supervisor.watch(&lock) => Err(lost.into()),
        };
        Ok(Worked {
            lock,
            writer,
            supervisor,
            done,
        })
    }

    /// Waits for a store that fails from now on, and makes the writer of the lock. The lock is renewed without waiting for
    /// the store as the sweep does: see `LEASE`.
    pub(super) async fn hold(
        &mut self,
        lock: &RunLock,
    ) -> Result<(Arc<Writer>, Supervisor), Error> {
        let (progress, patience) = (self.progress(), self.settings.agent_patience.duration());
        let tell = move |text| progress.notice(text);
        let shutdown = self.shutdown.clone();
        let enough = move || {
            let shutdown = shutdown.clone();
            async move { shutdown.aborting().await }.boxed()
        };
        self.run = self.run.waited_for(patience, tell, enough);
        let (shutdown, progress) = (self.shutdown.clone(), self.progress());
        let supervisor = Supervisor::new(&self.settings, shutdown, progress);
        let writer = lock.writer().await.map_err(StoreError::of_output)?;
        Ok((Arc::new(writer), supervisor))
    }

    /// Takes the lock of the sweep. In a cluster, waits for those who have it: they end, or are dead.
    pub(super) async fn take_lock(&self, place: &RunStore) -> Result<RunLock, Error> {
        let until = self.end_of_others();
        self.take_lock_while(place, || match self.role {
            Role::Collector => false,
            Role::Driver => Instant::now() < until,
            Role::Executor => !self.shutdown.is_stopping(),
        })
        .await
    }

    /// Returns when executors that are gone have lost their locks.
    pub(super) fn end_of_others(&self) -> Instant {
        Instant::now() + self.lock_options().lease + CLOCKS
    }

    /// Takes the lock of the sweep, for which it waits as long as `waits` says.
    pub(super) async fn take_lock_while(
        &self,
        place: &RunStore,
        waits: impl Fn() -> bool,
    ) -> Result<RunLock, Error> {
        let options = self.lock_options();
        loop {
            match self.lock(place, options).await {
                Err(error)
                    if waits() && matches!(error.cause(), Some(StoreError::Locked { .. })) =>
                {
                    tokio::time::sleep(LOOK).await;
                }
                lock => return lock,
            }
        }
    }

    pub(super) async fn lock(
        &self,
        place: &RunStore,
        options: LockOptions,
    ) -> Result<RunLock, Error> {
        let tell = |text| self.progress.notice(text);
        let lock = RunLock::acquire_and_tell(place, options, tell).await;
        lock.map_err(|error| match error {
            StoreError::Locked { .. } => error.into(),
            error => error.of_output(),
        })
    }

    pub(super) fn lock_options(&self) -> LockOptions {
        LockOptions {
            scope: LockScope::of(self.settings.shard),
            lease: match (self.settings.lease, self.run.local_path()) {
                (Some(lease), _) => lease.duration(),
                (None, Some(_)) => LEASE,
                (None, None) => LEASE_ON_A_STORE,
            },
            break_existing: self.settings.break_lock,
        }
    }

    /// Sends the pending rollouts, and lands their answers. `begun` is told when they are counted.
    async fn work(
        &mut self,
        writer: &Arc<Writer>,
        begun: impl FnOnce(&Progress),
    ) -> Result<Done, Error> {
        let shutdown = self.shutdown.clone();
        let landed = tokio::select! {
            begun = self.begin(writer) => begun?,
            // A later resume recovers what this one did not.
            () = shutdown.aborting() => return Ok(Done { is_cut_off: true, ..Done::default() }),
        };
        begun(&self.progress);
        let pending: u64 = self.counts.iter().map(AgentCounts::num_pending).sum();
        let landed = if pending == 0 || self.role == Role::Driver {
            Ok(Vec::new())
        } else {
            let _live = self.start_live()?;
            self.dataflow(writer, &landed).await
        };
        self.progress.enter(Phase::Finishing);
        let unchanged = self
            .start
            .found()
            .filter(|found| pending == 0 && found.is_finished);
        let earlier = unchanged.and_then(|found| found.finished_at.clone());
        self.record.finished_at = Some(earlier.unwrap_or_else(now));
        let written = match landed {
            Ok(written) => written,
            Err(error) => {
                if let Some(checkpointer) = &mut self.checkpointer {
                    // Whoever resumes may be elsewhere. The error that ended the sweep matters more than one of the copies.
                    let _ = checkpointer.checkpoint().await;
                }
                if self.settings.shard.is_none() {
                    self.record.rollouts = self.progress.total().counts();
                    self.record.state = RunState::Failed;
                    // The error that ended the sweep matters more than a failure to record it.
                    let _ = self.record.save(&self.run).await;
                }
                return Err(error);
            }
        };
        self.clean_up(writer).await?;
        Ok(Done {
            written,
            is_cut_off: false,
        })
    }

    /// Executes the plan, from source to sink, and returns the paths of the parts that it published.
    async fn dataflow(
        &mut self,
        writer: &Arc<Writer>,
        landed: &RunTables,
    ) -> Result<Vec<String>, Error> {
        let settings = &self.settings;
        let is_limited = |agent: &AgentSettings| agent.concurrency.is_some();
        let many = self.counts.len() > 1 || settings.agents.values().any(is_limited);
        let dispatches = Arc::new(DispatchLogs::new(
            self.run.journal_dir(),
            Arc::clone(writer),
        ));
        let pending = self.counts.iter();
        let known = self
            .prior
            .iter()
            .filter(|_| settings.dispatch_longest_first);
        let known = known.filter_map(|(key, prior)| Some((*key, prior.seconds?)));
        let known = KnownSeconds(known.filter(|(_, seconds)| *seconds > 0.0).collect());
        let shards = self.limits.shards;
        let memory = MemoryPlan::of(settings);
        let budget = self.limits.budget.clone();
        let run = RunContext {
            prior: std::mem::take(&mut self.prior),
            // What is pending in other shards is not known.
            pending: pending
                .filter(|_| self.role != Role::Executor)
                .map(|agent| (agent.agent_name.clone(), agent.num_pending()))
                .collect(),
            seed: settings.num_repeats_add_seed.then_some(settings.seed_field),
            as_given: false,
            memory: MemoryPlan {
                calls: memory.calls * shards,
                waiting: memory.waiting * shards,
                ..memory
            },
            most_calls: most_calls(),
            lookahead: if many { LOOKAHEAD_OF_MANY } else { LOOKAHEAD },
            backoff: settings.backoff(),
            agent_patience: Some(settings.agent_patience.duration()),
            dispatch_budget: budget.or_else(|| DispatchBudget::of(settings, Duration::ZERO)),
            failure_limits: FailureLimits {
                max_failures: settings.max_failures,
                max_error_rate: settings.max_error_rate,
            },
            dispatches: Some(Arc::clone(&dispatches)),
            registry: Arc::clone(&self.limits.registry),
            progress: Arc::clone(&self.progress),
            shutdown: self.shutdown.clone(),
            sending: self.sending.clone(),
            agents: std::mem::take(&mut self.agents),
        };
        let land = LandContext::new(
            self.run.clone(),
            Arc::clone(writer),
            settings.part_interval.duration(),
            Arc::clone(&self.progress),
        );
        let config = self
            .config()
            .with_extension(Arc::new(known))
            .with_extension(Arc::new(run))
            .with_extension(Arc::new(land));
        let session = self
            .dispatching(landed, config, self.partitions(&self.counts))
            .await?;
        let plan = self.physical(&session).await?;
        let landed = published(execute_stream(plan, session.task_ctx())?, &self.shutdown);
        let progress = Arc::clone(&self.progress);
        let tell = move |error: StoreError| progress.notice(error.to_string());
        let interval = self.settings.checkpoint_interval.duration();
        let written = match &mut self.checkpointer {
            Some(checkpointer) => tokio::select! {
                landed = landed => landed?,
                never = checkpointer.keep(interval, tell) => match never {},
            },
            None => landed.await?,
        };
        dispatches.close()?;
        Ok(written)
    }
}

/// Returns the paths of the parts that a plan lands. When a partition fails, the others send nothing more, and
/// land what they have.
async fn published(
    mut landed: SendableRecordBatchStream,
    shutdown: &Shutdown,
) -> Result<Vec<String>, Error> {
    let mut written = Vec::new();
    let mut failed = None;
    while let Some(batch) = landed.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                shutdown.stop(StopReason::Failure);
                failed.get_or_insert(error);
                continue;
            }
        };
        let paths = batch.column_by_name("path");
        let paths = paths.and_then(|column| column.as_string_view_opt());
        written.extend(paths.into_iter().flatten().flatten().map(str::to_owned));
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(written),
    }
}

/// Keeps the lock of a sweep, and ends the sweep at its deadline.
pub(crate) struct Supervisor {
    deadline: Option<tokio::time::Instant>,
    grace: Duration,
    shutdown: Shutdown,
    progress: Arc<Progress>,
}

impl Supervisor {
    /// Starts the clock.
    pub(super) fn new(settings: &Settings, shutdown: Shutdown, progress: Arc<Progress>) -> Self {
        let deadline = settings.deadline.map(|deadline| deadline.duration());
        Self {
            deadline: deadline
                .and_then(|deadline| tokio::time::Instant::now().checked_add(deadline)),
            grace: settings.grace.duration().min(NEVER),
            shutdown,
            progress,
        }
    }

    /// Runs until the lock is lost: then another process writes, and this one must stop.
    pub(super) async fn watch(&self, lock: &RunLock) -> StoreError {
        tokio::select! {
            lost = lock.keep() => lost,
            never = self.end_in_time() => match never {},
            never = self.end_calls() => match never {},
        }
    }

    /// Ends the sweep at its deadline, and its calls after the grace time.
    #[cfg(feature = "cluster")]
    pub(crate) async fn end(&self) -> Infallible {
        tokio::select! {
            never = self.end_in_time() => never,
            never = self.end_calls() => never,
        }
    }

    async fn end_in_time(&self) -> Infallible {
        if let Some(deadline) = self.deadline {
            sleep_until(deadline).await;
            self.shutdown.stop(StopReason::Deadline);
        }
        pending().await
    }

    /// Ends the calls in flight after the grace time, and says what the sweep waits for.
    async fn end_calls(&self) -> Infallible {
        self.shutdown.stopping().await;
        self.progress.enter(Phase::Stopping(None));
        self.shutdown.cutting_off().await;
        let until = Instant::now().checked_add(self.grace);
        self.progress.enter(Phase::Stopping(until));
        tokio::select! {
            () = tokio::time::sleep(self.grace) => {}
            () = self.shutdown.aborting() => {}
        }
        self.shutdown.abort();
        self.progress.enter(Phase::Dropping);
        pending().await
    }
}

/// Calls that may be in flight at a time: each is a connection, and a connection is an open file.
fn most_calls() -> usize {
    usize::try_from(open_files().saturating_sub(OTHERS).max(1)).unwrap_or(usize::MAX)
}

/// Warns if the system allows fewer calls in flight than `--concurrency` asks for.
pub(super) fn open_files_warning(concurrency: Concurrency) -> Option<String> {
    let most = most_calls();
    let Concurrency::Fixed(wanted) = concurrency else {
        return None;
    };
    (wanted > most).then(|| {
        format!(
            "the system allows {} open files, which is enough for {most} calls in flight, and not for {wanted} \
             (--concurrency): {most} are made at a time. To raise the limit: ulimit -Hn, or LimitNOFILE of a service",
            most as u64 + OTHERS
        )
    })
}
