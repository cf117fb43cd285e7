use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::rate::rfc3339;
use crate::error::Error;
use crate::store::{LockHolder, RunLock, RunRecord, RunState, RunStore, StoreError};

/// What a run is doing, as far as others can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// A collector that is alive holds a lock of it.
    Running,
    /// Its collector did not live to say how it ended; `--resume` goes on.
    Died,
    /// Nothing was left to be sent.
    Finished,
    /// Some agent did not answer, or asked for an answer to be forgotten; `--resume` goes on.
    Incomplete,
    /// Stopped by a limit that was set; `--resume` goes on.
    Stopped,
    /// Stopped by a signal; `--resume` goes on.
    Interrupted,
    /// Stopped by an error; `--resume` goes on.
    Failed,
}

impl ObservedState {
    /// Somebody is at work on the run.
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
        formatter.write_str(match self {
            Self::Running => "running",
            Self::Died => "died",
            Self::Finished => "finished",
            Self::Incomplete => "incomplete",
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        })
    }
}

/// A lock of the run, held or left behind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockStatus {
    /// What it keeps others from: `the whole run`, or `shard 2/8`.
    pub scope: String,
    /// Random name of this acquisition, empty if the lock can't be read.
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
    /// Seconds since then, by our clock; 0 where the owner's is ahead of it.
    pub heartbeat_age_seconds: f64,
    /// How long the owner may be silent before others take over.
    pub lease_seconds: f64,
    /// The owner is within its lease and has not provably died.
    pub alive: bool,
}

impl LockStatus {
    fn new(holder: LockHolder, now: DateTime<Utc>) -> Self {
        let silent = (now - holder.heartbeat).to_std().unwrap_or_default();
        Self {
            scope: holder.scope.to_string(),
            owner: holder.owner,
            user: holder.user,
            host: holder.host,
            pid: holder.pid,
            since: holder.since,
            last_heartbeat: holder.heartbeat,
            heartbeat_age_seconds: silent.as_secs_f64(),
            lease_seconds: holder.lease.as_secs_f64(),
            alive: holder.alive,
        }
    }
}

/// The record of a run, what it is doing, and its locks.
pub(super) async fn observe(
    run: &RunStore,
    now: DateTime<Utc>,
) -> Result<(RunRecord, ObservedState, Vec<LockStatus>), Error> {
    let mut record = load(run).await?;
    let holders = RunLock::holders(run).await?;
    let is_locked = holders.iter().any(|holder| holder.alive);
    if record.state == RunState::Running && !is_locked {
        // It may have come to its end since: the lock goes after the record was written.
        record = load(run).await?;
    }
    let state = ObservedState::of(record.state, is_locked);
    let locks = holders
        .into_iter()
        .map(|holder| LockStatus::new(holder, now))
        .collect();
    Ok((record, state, locks))
}

async fn load(run: &RunStore) -> Result<RunRecord, StoreError> {
    RunRecord::load(run)
        .await?
        .ok_or_else(|| StoreError::NoRun {
            place: run.display(""),
        })
}
