//! How a sweep ends: what is noted of it, and what is said.

use std::time::Duration;

use super::measured::Measured;
use super::sweep::Sweep;
use super::tables::Tables;
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::report::SweepReport;
use crate::run::StopReason;
use crate::session;
use crate::status::RunStatus;
use crate::store::{RunCounts, RunLock, RunState};

impl Sweep {
    /// Writes how it ended. Of several processes each may be the last; who sees that another ended
    /// meanwhile writes again.
    pub(super) async fn note_the_end(&mut self) -> Result<(), Error> {
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

    pub(super) async fn report(
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
            groups: self.groups.clone(),
            metrics: measured.metrics,
            written,
            elapsed,
        })
    }

    pub(super) fn state(&self, pending: u64) -> RunState {
        match self.shutdown.reason() {
            _ if pending == 0 => RunState::Finished,
            Some(StopReason::Signal) => RunState::Interrupted,
            Some(_) => RunState::Stopped,
            None => RunState::Incomplete,
        }
    }

    /// Another process holds a lock on a share of the run.
    pub(super) async fn others_work(&self) -> Result<bool, Error> {
        let own = self.lock_options().scope;
        let holders = RunLock::holders(&self.run).await?;
        Ok(holders
            .iter()
            .any(|holder| holder.alive && holder.scope != own))
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
            pending: sum(AgentCounts::num_owed),
        })
    }
}
