//! A sweep whose shards run elsewhere: [`DrivenSweep`] begins and ends the run, and [`Sweep::collect_share`] is what an
//! executor does for one shard in between. Both use the locks, the recovery and the landing of every other sweep.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use futures::FutureExt;
use tokio_util::task::TaskTracker;

use super::collect::{CLOCKS, LOOK, NEVER, Supervisor};
use super::prepare::new_progress;
use super::{CallLimits, Found, Role, Start, Sweep};
use crate::config::{Bytes, MemoryPlan, Settings, Shard, Span};
use crate::error::Error;
use crate::expand::AgentCounts;
use crate::measure::Live;
use crate::progress::Progress;
use crate::report::SweepReport;
use crate::run::{Shutdown, StopReason};
use crate::status;
use crate::store::{EXECUTORS, RunLock, RunRecord, RunStore, StoreError};

/// A sweep that others send. Nobody holds the lock of the run meanwhile: each executor has that of its shard.
#[derive(Debug)]
pub(crate) struct DrivenSweep {
    sweep: Sweep,
    _live: Option<Live>,
}

/// What a driver needs to know of the run that it has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) run: RunStore,
    pub(crate) record: RunRecord,
    pub(crate) settings: Settings,
    pub(crate) progress: Arc<Progress>,
    pub(crate) shutdown: Shutdown,
    /// Rollouts that are neither done nor failed.
    pub(crate) pending: u64,
    /// An executor that is silent for this long has dropped its calls.
    pub(crate) lease: Duration,
}

impl DrivenSweep {
    /// Creates or recovers the run under its lock, and counts what is pending. The lock is free afterwards.
    ///
    /// # Errors
    /// The run is locked, or its store failed.
    pub(crate) async fn begin(mut sweep: Sweep) -> Result<(Self, Begun), Error> {
        let place = sweep.run.clone();
        let lock = sweep.lock_after_driver(&place).await?;
        let shutdown = sweep.shutdown();
        let begun = async {
            let (writer, supervisor) = sweep.hold(&lock).await?;
            let begin = async {
                sweep.begin(&writer).await?;
                // From now on, and not from when the lock is free, others see that the sweep has a driver.
                sweep.run.clear_cluster().await?;
                Ok::<(), Error>(sweep.run.put(EXECUTORS, "[]").await?)
            };
            tokio::select! {
                begun = begin => begun,
                lost = supervisor.watch(&lock) => Err(lost.into()),
                // A later resume recovers what this one did not.
                () = shutdown.aborting() => Ok(()),
            }
        };
        let begun = begun.await;
        lock.release().await;
        begun?;
        let pending = sweep.counts.iter().map(AgentCounts::num_pending).sum();
        if pending > 0 || sweep.start.found().is_none() {
            sweep.start = Start::Resumed(Found::unfinished(&sweep.record));
        }
        sweep.run = place.identified(&sweep.record.run_id);
        sweep.settings.break_lock = false;
        sweep.settings.retry_invalid_judge_responses = false;
        sweep.role = Role::Driver;
        let begun = Begun {
            run: sweep.run.clone(),
            record: sweep.record.clone(),
            settings: sweep.settings.clone(),
            progress: sweep.progress(),
            shutdown,
            pending,
            lease: sweep.lock_options().lease + CLOCKS,
        };
        let _live = if pending > 0 {
            sweep.start_live()?
        } else {
            None
        };
        Ok((Self { sweep, _live }, begun))
    }

    /// Starts the clock of the sweep's deadline.
    pub(crate) fn supervisor(&self) -> Supervisor {
        let Sweep {
            settings,
            shutdown,
            progress,
            ..
        } = &self.sweep;
        Supervisor::new(settings, shutdown.clone(), Arc::clone(progress))
    }

    /// Counts the rollouts of the run that are pending, by what has landed and by the journals of this machine.
    ///
    /// # Errors
    /// The run can't be read.
    pub(crate) async fn pending(&self) -> Result<u64, Error> {
        Ok(self.sweep.counts_of_all().await?.pending)
    }

    /// Recovers what executors left behind, measures, and reports. Waits for the locks of executors that are gone.
    ///
    /// # Errors
    /// As [`Sweep::collect`].
    pub(crate) async fn end(mut self) -> Result<SweepReport, Error> {
        let dropped = self.sweep.shutdown();
        if dropped.aborting().now_or_never().is_some() {
            // Executors dropped their calls. What was answered is recovered and counted all the same.
            self.sweep.shutdown = Shutdown::default();
            self.sweep
                .shutdown
                .stop(dropped.reason().unwrap_or(StopReason::Signal));
        }
        // Nothing is in flight any more, and what executors left is recovered and recorded however long it takes.
        self.sweep.settings.deadline = None;
        self.sweep.settings.grace = Span::from_secs(NEVER.as_secs());
        self.sweep.collect().await
    }

    /// Whether an executor holds the lock of a shard.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) async fn is_worked_on(&self) -> Result<bool, Error> {
        let holders = RunLock::holders(&self.sweep.run).await?;
        Ok(holders.iter().any(|holder| holder.alive))
    }
}

impl Sweep {
    /// Takes the lock of the run. If the driver of a cluster worked on it, waits until that one is known to be dead, and then
    /// for its executors, which end or lose their locks.
    async fn lock_after_driver(&self, place: &RunStore) -> Result<RunLock, Error> {
        let Some(last) = status::driven_at(place).await? else {
            return self.take_lock(place).await;
        };
        let until = Instant::now() + status::DRIVER_SILENCE;
        let may_live = || Instant::now() < until && !self.shutdown.is_stopping();
        if status::is_recent(last, Utc::now()) {
            let text = "a driver worked on the run a moment ago: waiting to see whether it lives";
            self.progress.notice(text.to_owned());
            while may_live() {
                tokio::time::sleep(LOOK).await;
                let now = status::driven_at(place).await?;
                if now.is_some_and(|now| now != last) {
                    return Err(StoreError::Driven(place.display("")).into());
                }
            }
        }
        let until = self.end_of_others();
        let waits = || Instant::now() < until && !self.shutdown.is_stopping();
        self.take_lock_while(place, waits).await
    }

    /// Returns the sweep of a shard, where this process sends `shards` at a time: each has a part of the memory, and all
    /// have the same clients. `sending` is closed and empty when all rollouts of the shard were sent.
    pub(crate) fn for_shard(&self, shard: Shard, shards: usize, sending: TaskTracker) -> Self {
        let memory = (MemoryPlan::of(&self.settings).total >> 20) / shards.max(1) as u64;
        let memory = u32::try_from(memory).unwrap_or(u32::MAX);
        let settings = Settings {
            shard: Some(shard),
            memory: Some(Bytes::from_mib(memory)),
            ..self.settings.clone()
        };
        Self {
            progress: new_progress(&settings, self.rules),
            settings,
            rules: self.rules,
            run: self.run.clone(),
            inputs: Arc::clone(&self.inputs),
            record: self.record.clone(),
            start: self.start.clone(),
            agents: self.agents.clone(),
            counts: Vec::new(),
            prior: HashMap::new(),
            queries: self.queries.clone(),
            checkpointer: None,
            shutdown: Shutdown::default(),
            sending,
            groups: None,
            nothing_scored: None,
            live: None,
            role: Role::Executor,
            limits: CallLimits::default(),
        }
    }

    /// Sends the pending rollouts of the shard that the settings name, and lands their answers. Waits for the shard's lock.
    /// `limits` are those of all shards that this process works on. `begun` is told when the rollouts are counted.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(crate) async fn collect_share(
        mut self,
        limits: CallLimits,
        begun: impl FnOnce(&Progress),
    ) -> Result<(), Error> {
        self.limits = limits;
        let place = self.run.clone();
        let lock = match self.take_lock(&place).await {
            Err(_) if self.shutdown.is_stopping() => return Ok(()),
            lock => lock?,
        };
        let worked = self.work_under(lock, begun).await?;
        worked.lock.release_after(worked.writer).await;
        worked.done.map(drop)
    }
}
