use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::{LockScope, Process};

/// Lease of a lock that can't be read.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// What a lock object holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LockRecord {
    /// Random: which acquisition this is.
    pub owner: String,
    /// Owners that this one takes over from. They are to stop when they see it.
    #[serde(default)]
    pub displaces: Vec<String>,
    #[serde(flatten)]
    pub process: Process,
    pub command: String,
    #[serde(with = "rfc3339")]
    pub acquired_at: DateTime<Utc>,
    #[serde(with = "rfc3339")]
    pub heartbeat_at: DateTime<Utc>,
    pub lease_seconds: f64,
}

impl LockRecord {
    pub(super) fn new(lease: Duration, now: DateTime<Utc>) -> Self {
        Self {
            owner: random_id(now),
            displaces: Vec::new(),
            process: Process::this(),
            command: "rollstream collect".to_owned(),
            acquired_at: now,
            heartbeat_at: now,
            lease_seconds: lease.as_secs_f64(),
        }
    }

    /// Stands for a lock that is not JSON, as a machine that lost its power leaves behind: nobody
    /// renews it, but who wrote it may yet do so.
    pub(super) fn unreadable(modified: DateTime<Utc>) -> Self {
        Self {
            owner: String::new(),
            displaces: Vec::new(),
            process: Process {
                host: "unknown".to_owned(),
                pid: 0,
                user: None,
                boot_id: None,
                pid_namespace: None,
                process_start: None,
            },
            command: "unknown".to_owned(),
            acquired_at: modified,
            heartbeat_at: modified,
            lease_seconds: DEFAULT_LEASE.as_secs_f64(),
        }
    }

    pub(super) fn lease(&self) -> Duration {
        Duration::try_from_secs_f64(self.lease_seconds).unwrap_or(DEFAULT_LEASE)
    }

    pub(super) fn heartbeat_age(&self, now: DateTime<Utc>) -> Duration {
        age(self.heartbeat_at, now)
    }

    /// Whether it is to be taken for held: its owner has not provably died, and has renewed it
    /// within its lease.
    pub(super) fn is_alive(&self, now: DateTime<Utc>) -> bool {
        self.heartbeat_age(now) <= self.lease() && !self.process.has_died()
    }

    pub(super) fn holder(&self, scope: LockScope, now: DateTime<Utc>) -> LockHolder {
        LockHolder {
            scope,
            owner: self.owner.clone(),
            host: self.process.host.clone(),
            pid: self.process.pid,
            user: self.process.user.clone(),
            command: self.command.clone(),
            since: self.acquired_at,
            heartbeat: self.heartbeat_at,
            lease: self.lease(),
            alive: self.is_alive(now),
        }
    }
}

/// Time from `then` to `now`, none if a clock has been set back.
pub(super) fn age(then: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (now - then).to_std().unwrap_or_default()
}

/// 16 hexadecimal digits that nobody else makes.
pub(in crate::store) fn random_id(now: DateTime<Utc>) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let mut hasher = blake3::Hasher::new();
    let parts = [
        u64::from(std::process::id()),
        COUNTER.fetch_add(1, Ordering::Relaxed),
        // The standard library's only source of randomness.
        RandomState::new().hash_one(0),
    ];
    hasher.update(now.to_rfc3339().as_bytes());
    for part in parts {
        hasher.update(&part.to_le_bytes());
    }
    let digest = hasher.finalize().to_hex();
    digest.get(..16).unwrap_or(&digest).to_owned()
}

/// Who holds a lock of a run, or held it and died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// What it keeps others from.
    pub scope: LockScope,
    /// Random name of this acquisition, empty if the lock can't be read.
    pub owner: String,
    /// Name of its machine.
    pub host: String,
    /// Its process id on that machine.
    pub pid: u32,
    /// Who started it, if known.
    pub user: Option<String>,
    /// What it does.
    pub command: String,
    /// When it took the lock, by its own clock.
    pub since: DateTime<Utc>,
    /// When it last renewed it, by its own clock.
    pub heartbeat: DateTime<Utc>,
    /// How long it may be silent before others take over.
    pub lease: Duration,
    /// It is within its lease and has not provably died.
    pub alive: bool,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        if self.owner.is_empty() {
            return write!(formatter, "a process unknown, its lock can't be read");
        }
        if let Some(user) = &self.user {
            write!(formatter, "{user}@")?;
        }
        let Self {
            host,
            pid,
            command,
            owner,
            ..
        } = self;
        let since = self.since.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(
            formatter,
            "{host} (process {pid}, `{command}`, owner {owner}, since {since})"
        )
    }
}

mod rfc3339 {
    use chrono::{DateTime, SecondsFormat, Utc};
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(
        time: &DateTime<Utc>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<DateTime<Utc>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let time = DateTime::parse_from_rfc3339(&text).map_err(de::Error::custom)?;
        Ok(time.with_timezone(&Utc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere(now: DateTime<Utc>) -> LockRecord {
        let mut record = LockRecord::new(Duration::from_secs(60), now);
        record.process.boot_id = Some("another machine".to_owned());
        record
    }

    #[test]
    fn a_lock_lives_to_the_end_of_its_lease() {
        let now = Utc::now();
        let record = elsewhere(now);
        assert!(record.is_alive(now + Duration::from_secs(60)));
        assert!(!record.is_alive(now + Duration::from_secs(61)));
        // The owner's clock is ahead.
        assert!(record.is_alive(now - Duration::from_secs(3600)));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let now = DateTime::parse_from_rfc3339("2026-01-02T03:04:05.678901Z").unwrap();
        let mut record = elsewhere(now.to_utc());
        record.displaces.push("x".to_owned());
        let text = serde_json::to_string(&record).unwrap();
        assert!(
            text.contains(r#""heartbeat_at":"2026-01-02T03:04:05.678901Z""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<LockRecord>(&text).unwrap(), record);
    }

    #[test]
    fn every_acquisition_has_its_own_name() {
        let now = Utc::now();
        assert_ne!(elsewhere(now).owner, elsewhere(now).owner);
    }
}
