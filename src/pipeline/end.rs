//! How a sweep ends: what is noted of it, and what is said.

use std::time::Duration;

use super::measured::Measured;
use super::supervisor::Supervisor;
use super::sweep::{Done, Sweep};
use super::tables::Tables;
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::report::SweepReport;
use crate::run::StopReason;
use crate::session;
use crate::status::RunStatus;
use crate::store::{LockOptions, LockScope, RunCounts, RunLock, RunState, RunStore, StoreError};

impl Sweep {
    /// Writes how it ended.
    pub(super) async fn note_the_end(&mut self) -> Result<(), Error> {
        self.record.rollouts = match self.settings.shard {
            Some(_) => self.counts_of_all().await?,
            None => self.progress.total().counts(),
        };
        self.record.state = self.state(self.record.rollouts.pending);
        Ok(self.record.save(&self.run).await?)
    }

    /// Finishes the run, if this was the last of the processes that share its work: only the last one finds that
    /// nothing is pending and nobody else holds a lock.
    pub(super) async fn finish_shared(
        &mut self,
        done: Done,
        place: &RunStore,
        supervisor: &Supervisor,
    ) -> Result<SweepReport, Error> {
        let is_cut_off = done.is_cut_off;
        if !is_cut_off && self.counts_of_all().await?.pending == 0 {
            let whole = LockOptions {
                scope: LockScope::Run,
                break_existing: false,
                ..self.lock_options()
            };
            return match self.lock(place, whole).await {
                Ok(lock) => {
                    let report = tokio::select! {
                        report = self.finish(done, &lock) => report,
                        lost = supervisor.watch(&lock) => Err(lost.into()),
                    };
                    lock.release().await;
                    report
                }
                Err(error) if matches!(error.cause(), Some(StoreError::Locked { .. })) => {
                    self.leave(done).await
                }
                Err(error) => Err(error),
            };
        }
        if !is_cut_off && !self.others_work().await? {
            self.note_the_end().await?;
        }
        self.leave(done).await
    }

    /// The report of a process that leaves the rest to others.
    async fn leave(&self, done: Done) -> Result<SweepReport, Error> {
        let mut written = done.written;
        written.push(self.run.display("run.json"));
        self.report(written, Measured::default(), done.elapsed)
            .await
    }

    pub(super) async fn report(
        &self,
        mut written: Vec<String>,
        measured: Measured,
        elapsed: Duration,
    ) -> Result<SweepReport, Error> {
        let progress = self.progress.total();
        let place = written.pop();
        written.extend(measured.written);
        written.extend(place);
        let all_well = progress.pending() + progress.num_failed() + progress.num_retries() == 0;
        let status = match all_well {
            true => None,
            false => Some(RunStatus::of(&self.run).await?),
        };
        Ok(SweepReport {
            place: self.run.display(""),
            state: self.state(progress.pending()),
            stopped_by: self.shutdown.reason(),
            rollouts: progress.counts(),
            total: progress,
            status,
            groups: self.groups.clone(),
            nothing_scored: self.nothing_scored.clone(),
            metrics: measured.metrics,
            written,
            elapsed,
        })
    }

    pub(super) fn state(&self, pending: u64) -> RunState {
        match self.shutdown.reason() {
            _ if pending == 0 => RunState::Finished,
            Some(StopReason::Signal) => RunState::Interrupted,
            Some(StopReason::DispatchBudget) => RunState::Incomplete,
            Some(_) => RunState::Stopped,
            None => RunState::Incomplete,
        }
    }

    /// Another process holds a lock on a share of the run.
    async fn others_work(&self) -> Result<bool, Error> {
        let holders = RunLock::holders(&self.run).await?;
        Ok(holders.iter().any(|holder| holder.alive))
    }

    /// Counts of the whole run, where this process works on a share of it.
    pub(super) async fn counts_of_all(&self) -> Result<RunCounts, Error> {
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
            pending: sum(AgentCounts::num_pending),
        })
    }
}
