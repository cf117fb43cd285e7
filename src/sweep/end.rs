//! Ends a sweep: records its state, merges small parts, measures and reports.

use std::sync::Arc;
use std::time::Duration;

use super::collect::{Done, Supervisor};
use super::prepare::parameters;
use super::{Sweep, groups};
use crate::agent::{MetricServerOptions, MetricServers, RecordedAgents};
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::import::Zeros;
use crate::measure::{self, Live, Measurement, MetricsReport, Price, Source, zeros};
use crate::report::{NothingScored, SweepReport};
use crate::run::StopReason;
use crate::session::{self, RunTables, unless_replaced};
use crate::status::RunStatus;
use crate::store::{LockOptions, LockScope, RunCounts, RunLock, RunState, RunStore, StoreError};

/// Bytes of memory that the metrics of a sweep may use before they spill to temporary files: few, since
/// they run where the sweep has just run.
const MEMORY: usize = 32 * 1024 * 1024;

/// The longest time that the server of an agent may take for its metrics.
const AGENT_METRICS_TIMEOUT: Duration = Duration::from_secs(5 * 60);

impl Sweep {
    /// [`Self::finish`] until the lock is lost.
    pub(super) async fn finish_watched(
        &mut self,
        done: Done,
        lock: &RunLock,
        supervisor: &Supervisor,
    ) -> Result<SweepReport, Error> {
        tokio::select! {
            report = self.finish(done, lock) => report,
            lost = supervisor.watch(lock) => Err(lost.into()),
        }
    }

    /// Records the end, and measures. The caller holds a lock of the whole run.
    async fn finish(&mut self, done: Done, lock: &RunLock) -> Result<SweepReport, Error> {
        let Done {
            mut written,
            is_cut_off,
        } = done;
        if is_cut_off {
            return self.report(written, MetricsReport::default()).await;
        }
        self.note_the_end().await?;
        let is_as_before = self.start.found().is_some_and(|found| found.is_finished)
            && written.is_empty()
            && self.settings.queries.is_none();
        // Parts that were replaced stay until the end, for readers who listed them.
        let _compacted = self.compact(lock, &mut written).await;
        let earlier = if is_as_before {
            measure::earlier(&self.run).await?
        } else {
            None
        };
        let names: Vec<String> = self.record.agents.keys().cloned().collect();
        let of_groups = groups::agents(&self.settings, &names);
        if earlier.is_none() && !of_groups.is_empty() {
            tokio::select! {
                report = groups::write(&self.run, &of_groups, MEMORY) => {
                    let report = report?;
                    written.push(report.written.clone());
                    self.groups = Some(report);
                }
                // The groups can be written another time.
                () = self.shutdown.aborting() => {}
            }
        }
        let measured = match earlier {
            Some(earlier) => earlier,
            None if self.settings.aggregate => self.measured().await?,
            None => MetricsReport::default(),
        };
        self.nothing_scored = self.nothing_scored().await?;
        written.push(self.run.display("run.json"));
        self.report(written, measured).await
    }

    async fn measured(&self) -> Result<MetricsReport, Error> {
        if self.settings.agent_metrics {
            tokio::select! {
                biased;
                // Whoever ends a sweep early does not want to wait for servers that may be the reason.
                () = self.shutdown.stopping() => {}
                measured = self.measure(true) => return measured,
            }
        }
        tokio::select! {
            measured = self.measure(false) => measured,
            // What has landed can be measured another time.
            () = self.shutdown.aborting() => {
                if self.progress.total().done_now > 0 {
                    self.progress.notice(format!(
                        "the metrics do not cover all landed rollouts; `rollstream aggregate {}` computes them",
                        self.run.display("")
                    ));
                }
                Ok(MetricsReport::default())
            }
        }
    }

    async fn measure(&self, asks_servers: bool) -> Result<MetricsReport, Error> {
        let runs = std::slice::from_ref(&self.run);
        let servers = asks_servers.then(|| {
            // The addresses of a moment ago: a head server may be gone by now.
            let addresses = self.record.agents.iter();
            let urls =
                addresses.filter_map(|(agent, url)| Some((agent.clone(), url.parse().ok()?)));
            MetricServers::new(MetricServerOptions {
                urls: urls.collect(),
                head_server: None,
                recorded: vec![RecordedAgents {
                    settings: self.settings.clone(),
                    addresses: self.record.agents.clone(),
                }],
                timeout: AGENT_METRICS_TIMEOUT,
                must_have: false,
            })
        });
        let measurement = Measurement {
            agent_servers: servers.transpose()?.map(Arc::new),
            ..self.measurement()?
        };
        let measured = measure::measure(&Source::Runs(runs), Some(&self.run), &measurement).await?;
        let notes = measured.notes.iter().cloned();
        notes.for_each(|note| self.progress.notice(note));
        Ok(measured)
    }

    fn measurement(&self) -> Result<Measurement, Error> {
        Ok(Measurement {
            prices: Price::of_agents(&self.settings),
            parameters: parameters(&self.queries, &self.settings)?,
            servers: self.record.environment_servers.clone(),
            rules: self.rules,
            zeros: zeros::of_settings(&self.settings, self.rules)?,
            ..Measurement::new(self.queries.clone(), MEMORY)
        })
    }

    pub(super) fn start_live(&mut self) -> Result<Option<Live>, Error> {
        let Some((every, sender)) = self.live.take() else {
            return Ok(None);
        };
        // While the sweep runs, a missing rollout is only pending.
        let measurement = Measurement {
            zeros: Zeros::default(),
            ..self.measurement()?
        };
        Live::start(self.run.clone(), measurement, every, sender).map(Some)
    }

    /// Returns why nothing can be scored, if the rules need a score: no rollout is done, and none that failed or is
    /// missing counts as zero.
    async fn nothing_scored(&self) -> Result<Option<NothingScored>, Error> {
        let dispatched: u64 = self.counts.iter().map(AgentCounts::num_pending).sum();
        let counts = self.record.rollouts;
        let has_ended = matches!(self.record.state, RunState::Finished | RunState::Incomplete);
        if !self.rules.needs_score || !has_ended || dispatched == 0 || counts.done > 0 {
            return Ok(None);
        }
        let zeros = zeros::of_settings(&self.settings, self.rules)?;
        let zeros = Zeros {
            missing: zeros.missing && self.settings.aggregate,
            ..zeros
        };
        let session = session::measuring(MEMORY)?;
        RunTables::look(&self.run).await?.register(&session).await?;
        let found = zeros::add(&session, &zeros, self.rules).await?;
        if found.num_zeros > 0 {
            return Ok(None);
        }
        let mut classes = found.classes;
        let is_drained = self.shutdown.reason() == Some(StopReason::DispatchBudget);
        let drained = counts.pending * u64::from(is_drained);
        if drained > 0 {
            *classes.entry("cancelled".to_owned()).or_default() += drained;
        }
        Ok(Some(NothingScored {
            dispatched,
            classes,
            drained,
            place: self.run.display(""),
        }))
    }

    /// Writes the final counts and state to `run.json`.
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
                    let report = self.finish_watched(done, &lock, supervisor).await;
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

    /// Returns the report of a process that leaves the rest to others.
    async fn leave(&self, done: Done) -> Result<SweepReport, Error> {
        let mut written = done.written;
        written.push(self.run.display("run.json"));
        self.report(written, MetricsReport::default()).await
    }

    pub(super) async fn report(
        &self,
        mut written: Vec<String>,
        measured: MetricsReport,
    ) -> Result<SweepReport, Error> {
        let progress = self.progress.total();
        let place = written.pop();
        written.extend(measured.written);
        written.extend(place);
        let mut status = None;
        if progress.pending() + progress.num_failed() + progress.num_retries() > 0 {
            status = Some(RunStatus::of(&self.run).await?);
        }
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
            elapsed: self.progress.worked(),
            rollouts_per_second: self.progress.rates().rollouts,
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

    /// Whether another process holds a lock on the run.
    async fn others_work(&self) -> Result<bool, Error> {
        let holders = RunLock::holders(&self.run).await?;
        Ok(holders.iter().any(|holder| holder.alive))
    }

    /// Counts the rollouts of the whole run, of which this process may work on a share.
    pub(super) async fn counts_of_all(&self) -> Result<RunCounts, Error> {
        let counts = unless_replaced(&self.run, || async {
            let landed = self.landed(None).await?;
            let session = self.session(&landed, None).await?;
            Ok(expand::counts(&session).await?)
        });
        let counts = counts.await?;
        let sum = |of: fn(&AgentCounts) -> u64| counts.iter().map(of).sum::<u64>();
        Ok(RunCounts {
            planned: sum(|agent| agent.num_rollouts),
            done: sum(|agent| agent.num_done),
            failed: sum(|agent| agent.num_failed),
            pending: sum(AgentCounts::num_pending),
        })
    }
}
