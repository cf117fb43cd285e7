//! How a run is doing, live, dead or finished, from its own tables: [`RunStatus`]. It only reads. Used by the report of a
//! sweep and the command line.

mod figures;
mod queries;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use serde::Serialize;

pub use self::figures::{Figures, MeanTimes, OutcomeCount, RateWindow};
use self::figures::{Sums, rfc3339};
use self::queries::{Attempts, Began, Done, Errors, Failed, Rollouts};
use crate::config::Settings;
use crate::error::Error;
use crate::expand;
use crate::gym::AGGREGATE_METRICS;
use crate::progress::ExecutorProgress;
use crate::session::{self, Rows, RunTables};
use crate::store::{
    CLUSTER, EXECUTORS, LockHolder, RunLock, RunRecord, RunState, RunStore, StoreError,
};

/// A driver writes to its run every two seconds. One that has not for this long has died.
pub(crate) const DRIVER_SILENCE: Duration = Duration::from_secs(10);

/// How a run is doing. All figures are counted; those in `run.json` are not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunStatus {
    /// The run, as users name it.
    pub place: String,
    /// Its state.
    pub state: ObservedState,
    /// When the sweep was first started, RFC 3339.
    pub created_at: String,
    /// When it was last finished or interrupted, RFC 3339.
    pub finished_at: Option<String>,
    /// When the status was taken.
    #[serde(serialize_with = "rfc3339")]
    pub looked_at: DateTime<Utc>,
    /// The window of the rates; none if nothing was attempted.
    pub rate_window: Option<RateWindow>,
    /// Parts that cannot be read, and whose rows are missing.
    pub damaged: Vec<String>,
    /// The locks on it, held or left behind.
    pub locks: Vec<LockStatus>,
    /// What the executors of a cluster do that work on it, by name.
    pub executors: Vec<ExecutorProgress>,
    /// Whether rollouts have landed since the metrics were computed.
    pub has_old_metrics: bool,
    /// The figures of all agents.
    pub total: Figures,
    /// Each agent, by name.
    pub agents: Vec<AgentStatus>,
}

/// How an agent is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AgentStatus {
    /// The agent.
    pub agent_name: String,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// The limit of calls in flight when its newest known attempt was sent.
    pub concurrency_limit: Option<u32>,
    /// Its three most frequent errors, the most frequent first.
    pub errors: Vec<ErrorCount>,
}

/// An error of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorCount {
    /// Class of the failure.
    pub outcome: String,
    /// HTTP status, if there was one.
    pub http_status: Option<u16>,
    /// Number of attempts. Errors that differ only in words with a digit count as one.
    pub attempts: u64,
    /// The whole error of one of them, in one line.
    pub error: String,
}

impl RunStatus {
    /// Takes the status of a run.
    ///
    /// # Errors
    /// There is no run ([`StoreError::NoRun`]), its record is of another version, or the store failed.
    pub async fn of(run: &RunStore) -> Result<Self, Error> {
        session::unless_replaced(run, || Self::at(run, Utc::now())).await
    }

    async fn at(run: &RunStore, now: DateTime<Utc>) -> Result<Self, Error> {
        // Before the tables: those of a finished run are then complete.
        let (record, state, locks) = observe(run, now).await?;
        let session = SessionContext::new_with_config(session::config());
        let dispatches = session::dispatches(run).await?;
        let tables = RunTables::look(run).await?;
        tables.register(&session).await?;
        let damaged = tables.damaged().map(|part| run.display_path(part));
        let damaged = damaged.collect();

        let mut sums = planned(&session, &settings(run, &record)?).await?;
        let done = Rows::of(&session, queries::DONE, Done::rows).await?;
        for row in done.collect().await? {
            sums.add(row.agent_name, |sums| {
                sums.done += row.num_done;
                sums.reward.add(row.reward_sum, row.num_rewards);
            });
        }
        let failed = Rows::of(&session, queries::FAILED, Failed::rows).await?;
        for row in failed.collect().await? {
            sums.add(row.agent_name, |sums| {
                *sums.failed.entry(row.outcome.clone()).or_default() += row.num_failed;
            });
        }
        let attempts = Rows::of(&session, queries::ATTEMPTS, Attempts::rows).await?;
        for row in attempts.collect().await? {
            sums.add(row.agent_name.clone(), |sums| sums.add_attempts(&row));
        }
        let rate_window = window(&session, &record, state, now, &locks, &sums.total).await?;
        if let Some(window) = &rate_window {
            let span = [
                ("since", timestamp(window.since)),
                ("until", timestamp(window.until)),
            ];
            let recent =
                Rows::with_parameters(&session, queries::RECENT, &span, Rollouts::rows).await?;
            for row in recent.collect().await? {
                sums.add(row.agent_name, |sums| {
                    sums.recently_finished += row.num_rollouts
                });
            }
        }
        if let Some(dispatches) = dispatches.filter(|_| state.is_live()) {
            session.register_table("dispatches", Arc::new(dispatches))?;
            let unanswered = expand::unanswered(&session).await?;
            session.register_table("unanswered", unanswered.into_view())?;
            for agent in sums.agents.values_mut().chain([&mut sums.total]) {
                agent.in_flight = Some(0);
            }
            let in_flight = Rows::of(&session, queries::IN_FLIGHT, Rollouts::rows).await?;
            for row in in_flight.collect().await? {
                sums.add(row.agent_name, |sums| {
                    *sums.in_flight.get_or_insert(0) += row.num_rollouts;
                });
            }
        }
        let mut errors = errors(&session).await?;

        let executors = if state.is_live() {
            executors(run).await?
        } else {
            Vec::new()
        };
        let measured_at = run.written_at(AGGREGATE_METRICS).await?;
        let agents = sums.agents.into_iter();
        let agents = agents.map(|(agent_name, sums)| AgentStatus {
            errors: errors.remove(&agent_name).unwrap_or_default(),
            figures: sums.figures(rate_window.as_ref()),
            concurrency_limit: sums.limit.map(|(_, limit)| limit),
            agent_name,
        });
        Ok(Self {
            place: run.display(""),
            state,
            created_at: record.created_at,
            finished_at: record.finished_at,
            looked_at: now,
            rate_window,
            damaged,
            locks,
            executors,
            // Times of the same second may be equal: then the metrics are taken for the later ones.
            has_old_metrics: measured_at.is_some() && run.landed_at().await? > measured_at,
            total: sums.total.figures(rate_window.as_ref()),
            agents: agents.collect(),
        })
    }
}

/// The sums of each agent, and of all.
#[derive(Default)]
struct AllSums {
    agents: BTreeMap<String, Sums>,
    total: Sums,
}

impl AllSums {
    fn add(&mut self, agent_name: String, add: impl Fn(&mut Sums)) {
        add(&mut self.total);
        add(self.agents.entry(agent_name).or_default());
    }
}

/// Returns the settings of the last collector.
///
/// # Errors
/// Another version of rollstream wrote them, and they can't be read.
pub fn settings(run: &RunStore, record: &RunRecord) -> Result<Settings, StoreError> {
    serde_json::from_value(record.settings.clone()).map_err(|error| StoreError::Record {
        object: run.display("run.json"),
        source: format!(
            "its settings can't be read ({error}); use rollstream {}",
            record.rollstream_version
        )
        .into(),
    })
}

/// Returns what is planned for each agent, and prepares the session for the query of failed rollouts.
async fn planned(session: &SessionContext, settings: &Settings) -> Result<AllSums, Error> {
    let mut sums = AllSums::default();
    let planned = Rows::of(session, queries::PLANNED, Rollouts::rows).await?;
    for row in planned.collect().await? {
        sums.add(row.agent_name, |sums| sums.planned += row.num_rollouts);
    }
    let agents = sums.agents.keys();
    let budgets = agents.map(|name| (name.as_str(), settings.budgets(name)));
    expand::prepare(session, budgets, expand::Terminal::of(settings), true).await?;
    Ok(sums)
}

async fn errors(session: &SessionContext) -> Result<BTreeMap<String, Vec<ErrorCount>>, Error> {
    let mut errors: BTreeMap<String, Vec<ErrorCount>> = BTreeMap::new();
    let rows = Rows::of(session, queries::ERRORS, Errors::rows).await?;
    for row in rows.collect().await? {
        let words: Vec<&str> = row.error.split_whitespace().collect();
        errors.entry(row.agent_name).or_default().push(ErrorCount {
            outcome: row.outcome,
            http_status: row.http_status.and_then(|status| status.try_into().ok()),
            attempts: row.num_attempts,
            error: words.join(" "),
        });
    }
    Ok(errors)
}

/// Returns the window of the rates. It begins no earlier than the first call of the processes that work on the run or, if
/// none does, of the last process that did.
async fn window(
    session: &SessionContext,
    record: &RunRecord,
    state: ObservedState,
    now: DateTime<Utc>,
    locks: &[LockStatus],
    all: &Sums,
) -> Result<Option<RateWindow>, Error> {
    let living = locks
        .iter()
        .filter(|lock| lock.alive)
        .map(|lock| lock.since);
    let started = if state.is_live() {
        living.min()
    } else {
        let started = record.started_at.as_ref().unwrap_or(&record.created_at);
        DateTime::parse_from_rfc3339(started)
            .ok()
            .map(|time| time.to_utc())
    };
    let mut began = None;
    if let Some(started) = started {
        let since = [("since", timestamp(started))];
        let mut rows = Rows::with_parameters(session, queries::BEGAN, &since, Began::rows).await?;
        began = rows.next().await?.and_then(|row| row.first_dispatched_at);
    }
    let time = |micros: Option<i64>| micros.and_then(DateTime::from_timestamp_micros);
    Ok(if state.is_live() {
        // Another machine's clock may be ahead of ours.
        let began = time(began).filter(|began| *began <= now);
        RateWindow::new(began.or(started), Some(now), true)
    } else {
        let began = began.or(all.first_dispatched);
        RateWindow::new(time(began), time(all.last_finished), false)
    })
}

fn timestamp(time: DateTime<Utc>) -> ScalarValue {
    ScalarValue::TimestampMicrosecond(Some(time.timestamp_micros()), Some("UTC".into()))
}

/// Returns what the driver of a cluster said last of its executors.
async fn executors(run: &RunStore) -> Result<Vec<ExecutorProgress>, StoreError> {
    let text = run.get(EXECUTORS).await?;
    Ok(text
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default())
}

/// The state of a run, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// A live collector holds a lock on it.
    Running,
    /// Its collector died; `rollstream resume` continues it.
    Died,
    /// Nothing is pending.
    Finished,
    /// Some agent did not answer, or asked to discard an answer; `rollstream resume` continues it.
    Incomplete,
    /// A limit stopped it; `rollstream resume` continues it.
    Stopped,
    /// A signal stopped it; `rollstream resume` continues it.
    Interrupted,
    /// An error stopped it; `rollstream resume` continues it.
    Failed,
}

impl ObservedState {
    /// Whether a collector is running.
    pub fn is_live(self) -> bool {
        self == Self::Running
    }

    fn of(recorded: RunState, is_locked: bool) -> Self {
        match recorded {
            _ if is_locked => Self::Running,
            RunState::Running => Self::Died,
            RunState::Finished => Self::Finished,
            RunState::Incomplete => Self::Incomplete,
            RunState::Stopped => Self::Stopped,
            RunState::Interrupted => Self::Interrupted,
            RunState::Failed => Self::Failed,
        }
    }
}

impl fmt::Display for ObservedState {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// A lock on the run, held or left behind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockStatus {
    /// What it locks: `the whole run`, or `shard 2/8`.
    pub scope: String,
    /// Random name of this acquisition; empty if the lock cannot be read.
    pub owner: String,
    /// Who started the owner, if known.
    pub user: Option<String>,
    /// The owner's machine.
    pub host: String,
    /// The owner's process id on that machine.
    pub pid: u32,
    /// When the owner took it, by the owner's clock.
    #[serde(serialize_with = "rfc3339")]
    pub since: DateTime<Utc>,
    /// When the owner last renewed it, by the owner's clock.
    #[serde(serialize_with = "rfc3339")]
    pub last_heartbeat: DateTime<Utc>,
    /// Seconds since the last heartbeat, by our clock; 0 if the owner's clock is ahead.
    pub heartbeat_age_seconds: f64,
    /// Seconds for which the owner may be silent before others take over.
    pub lease_seconds: f64,
    /// The owner is within its lease, and not known to have died.
    pub alive: bool,
}

impl LockStatus {
    fn new(holder: LockHolder, now: DateTime<Utc>) -> Self {
        let record = holder.record;
        let silent = (now - record.heartbeat_at).to_std().unwrap_or_default();
        Self {
            scope: holder.scope.to_string(),
            lease_seconds: record.lease().as_secs_f64(),
            owner: record.owner,
            user: record.process.user,
            host: record.process.host,
            pid: record.process.pid,
            since: record.acquired_at,
            last_heartbeat: record.heartbeat_at,
            heartbeat_age_seconds: silent.as_secs_f64(),
            alive: holder.alive,
        }
    }
}

/// Returns the state of a run.
///
/// # Errors
/// There is no run, its record is of another version, or the store failed.
pub async fn state(run: &RunStore) -> Result<ObservedState, Error> {
    Ok(observe(run, Utc::now()).await?.1)
}

/// Reads the record of a run, its state and its locks.
async fn observe(
    run: &RunStore,
    now: DateTime<Utc>,
) -> Result<(RunRecord, ObservedState, Vec<LockStatus>), Error> {
    let mut record = load(run).await?;
    let holders = RunLock::holders(run).await?;
    let mut is_locked = holders.iter().any(|holder| holder.alive);
    if record.state == RunState::Running && !is_locked {
        is_locked = driven_at(run).await?.is_some_and(|at| is_recent(at, now));
    }
    if record.state == RunState::Running && !is_locked {
        // It may have ended meanwhile: the lock is released after the record is written.
        record = load(run).await?;
    }
    let state = ObservedState::of(record.state, is_locked);
    let locks = holders
        .into_iter()
        .map(|holder| LockStatus::new(holder, now))
        .collect();
    Ok((record, state, locks))
}

/// Returns when the driver of a cluster last wrote to the run, if there is one that has not ended. It holds no lock: its
/// executors do, while there are any.
pub(crate) async fn driven_at(run: &RunStore) -> Result<Option<DateTime<Utc>>, StoreError> {
    let objects = run.list(CLUSTER).await?;
    let own = objects
        .iter()
        .find(|object| object.location.as_ref().ends_with(EXECUTORS));
    Ok(own.map(|object| object.last_modified))
}

/// Whether a driver that wrote at this time may live. The clock of the store may be ahead of ours.
pub(crate) fn is_recent(driven_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    now < driven_at + DRIVER_SILENCE
}

async fn load(run: &RunStore) -> Result<RunRecord, StoreError> {
    RunRecord::load(run)
        .await?
        .ok_or_else(|| StoreError::NoRun {
            place: run.display(""),
        })
}
