//! What a lock holds, and who: [`LockRecord`] is its object, [`Process`] its owner, [`LockScope`] what it keeps others from.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::Path;
use std::time::Duration;
use std::{env, fmt, fs, io, process};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::config::Shard;

/// Lease of a lock that can't be read.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// What a lock object holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LockRecord {
    /// Random: which acquisition this is. Empty if the lock can't be read.
    pub owner: String,
    /// Owners that this one takes over from. They are to stop when they see it.
    #[serde(default)]
    pub displaces: Vec<String>,
    /// Who took it.
    #[serde(flatten)]
    pub process: Process,
    /// What the owner does.
    pub command: String,
    /// When the owner took it, by its own clock.
    pub acquired_at: DateTime<Utc>,
    /// When the owner last renewed it, by its own clock.
    pub heartbeat_at: DateTime<Utc>,
    /// How long the owner may be silent before others take over.
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

    /// Stands for a lock that is not JSON, as a machine that lost its power leaves behind: nobody renews it, but who wrote
    /// it may yet do so.
    pub(super) fn unreadable(modified: DateTime<Utc>) -> Self {
        Self {
            owner: String::new(),
            process: Process {
                host: "unknown".to_owned(),
                ..Process::default()
            },
            command: "unknown".to_owned(),
            ..Self::new(DEFAULT_LEASE, modified)
        }
    }

    /// How long the owner may be silent before others take over.
    pub fn lease(&self) -> Duration {
        Duration::try_from_secs_f64(self.lease_seconds).unwrap_or(DEFAULT_LEASE)
    }

    pub(super) fn heartbeat_age(&self, now: DateTime<Utc>) -> Duration {
        age(self.heartbeat_at, now)
    }

    /// Whether it is taken for held: its owner has not provably died, and has renewed it within its lease.
    pub(super) fn is_alive(&self, now: DateTime<Utc>) -> bool {
        self.heartbeat_age(now) <= self.lease() && !self.process.has_died()
    }
}

/// The time from `then` to `now`, zero if a clock was set back.
pub(super) fn age(then: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (now - then).to_std().unwrap_or_default()
}

/// Makes 16 hexadecimal digits that nobody else makes.
pub(in crate::store) fn random_id(now: DateTime<Utc>) -> String {
    // The standard library's only source of randomness: each of these has other keys.
    let id = RandomState::new().hash_one((process::id(), now));
    format!("{id:016x}")
}

/// Who holds a lock of a run, or held it and died.
#[derive(Debug, Clone, PartialEq)]
pub struct LockHolder {
    /// What it keeps others from.
    pub scope: LockScope,
    /// What its lock says.
    pub record: LockRecord,
    /// It is within its lease and has not provably died.
    pub alive: bool,
}

impl LockHolder {
    pub(super) fn new(scope: LockScope, record: &LockRecord, now: DateTime<Utc>) -> Self {
        Self {
            scope,
            record: record.clone(),
            alive: record.is_alive(now),
        }
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let LockRecord {
            owner,
            process,
            command,
            acquired_at,
            ..
        } = &self.record;
        if owner.is_empty() {
            return write!(formatter, "a process unknown, its lock can't be read");
        }
        if let Some(user) = &process.user {
            write!(formatter, "{user}@")?;
        }
        let Process { host, pid, .. } = process;
        let since = acquired_at.to_rfc3339_opts(SecondsFormat::Secs, true);
        write!(
            formatter,
            "{host} (process {pid}, `{command}`, owner {owner}, since {since})"
        )
    }
}

/// A process, described so exactly that another process of the same machine can say that it has died.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Name of its machine.
    pub host: String,
    /// Its process id on that machine.
    pub pid: u32,
    /// Who started it, if known.
    pub user: Option<String>,
    /// Which boot of which kernel. Host names are not unique, least of all in containers.
    pub boot_id: Option<String>,
    /// Where the process id is valid.
    pub pid_namespace: Option<String>,
    /// In clock ticks since the boot: process ids are used again.
    pub process_start: Option<u64>,
}

impl Process {
    pub(crate) fn this() -> Self {
        let pid = process::id();
        // A `/proc` of another namespace says nothing about our processes.
        let ours = fs::read_link("/proc/self")
            .is_ok_and(|link| link.as_os_str() == pid.to_string().as_str());
        let known = |path| {
            let text = fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned())
        };
        let named = |variable| env::var(variable).ok().filter(|value| !value.is_empty());
        Self {
            host: known("/proc/sys/kernel/hostname")
                .or_else(|| named("HOSTNAME"))
                .or_else(|| named("COMPUTERNAME"))
                .unwrap_or_else(|| "unknown".to_owned()),
            pid,
            user: named("USER").or_else(|| named("LOGNAME")),
            boot_id: known("/proc/sys/kernel/random/boot_id").filter(|_| ours),
            pid_namespace: fs::read_link("/proc/self/ns/pid")
                .ok()
                .filter(|_| ours)
                .map(|link| link.display().to_string()),
            process_start: stat(pid).ok().flatten().map(|stat| stat.start),
        }
    }

    /// Whether it has provably died: it ran on this machine, and is not there any more.
    pub(crate) fn has_died(&self) -> bool {
        let here = Self::this();
        let same = self.boot_id.is_some()
            && self.boot_id == here.boot_id
            && self.pid_namespace.is_some()
            && self.pid_namespace == here.pid_namespace;
        if !same {
            return false;
        }
        match stat(self.pid) {
            Ok(Some(stat)) => {
                stat.ended || self.process_start.is_some_and(|start| start != stat.start)
            }
            Ok(None) => false,
            // With `hidepid` a live process of another user looks like one that has gone.
            Err(error) => error.kind() == io::ErrorKind::NotFound && Path::new("/proc/1").exists(),
        }
    }
}

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// It only waits for its parent to take notice.
    ended: bool,
    start: u64,
}

fn stat(pid: u32) -> io::Result<Option<Stat>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(parse_stat(&text))
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The second field is the name in parentheses, which may hold blanks and parentheses.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    Some(Stat {
        ended: matches!(state, "Z" | "X" | "x"),
        start: fields.nth(18)?.parse().ok()?,
    })
}

/// What a writer keeps others from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockScope {
    /// The whole run.
    Run,
    /// The tasks of one shard.
    Shard {
        /// Which, from 1.
        index: u32,
        /// Of how many.
        count: u32,
    },
}

impl LockScope {
    /// The share of a run that a process has.
    pub fn of(shard: Option<Shard>) -> Self {
        match shard {
            Some(shard) => Self::Shard {
                index: shard.index(),
                count: shard.count(),
            },
            None => Self::Run,
        }
    }

    /// Whether two writers could write the same rollout. Shards of different counts always could.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (
                Self::Shard { index, count },
                Self::Shard {
                    index: other_index,
                    count: other_count,
                },
            ) => count != other_count || index == other_index,
            _ => true,
        }
    }

    /// Its directory below `lock/`.
    pub(super) fn directory(self) -> String {
        match self {
            Self::Run => "run".to_owned(),
            Self::Shard { index, count } => format!("shard-{index}-of-{count}"),
        }
    }

    pub(super) fn from_directory(name: &str) -> Option<Self> {
        if name == "run" {
            return Some(Self::Run);
        }
        let (index, count) = name.strip_prefix("shard-")?.split_once("-of-")?;
        Some(Self::Shard {
            index: index.parse().ok()?,
            count: count.parse().ok()?,
        })
    }
}

impl fmt::Display for LockScope {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Run => formatter.write_str("the whole run"),
            Self::Shard { index, count } => write!(formatter, "shard {index}/{count}"),
        }
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

    #[test]
    fn the_start_time_is_found_after_any_name() {
        let rest = (4..=21).map(|field| field.to_string()).collect::<Vec<_>>();
        let line = |state: &str| format!("7 (a) b (c) {state} {} 4711 0", rest.join(" "));
        let start = 4711;
        assert_eq!(
            parse_stat(&line("S")),
            Some(Stat {
                ended: false,
                start
            })
        );
        assert_eq!(parse_stat(&line("Z")), Some(Stat { ended: true, start }));
        assert_eq!(parse_stat("7 (a"), None);
    }

    #[test]
    fn this_process_lives() {
        assert!(!Process::this().has_died());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_has_gone_or_whose_id_is_used_again_has_died() {
        let mut child = process::Command::new("true").spawn().unwrap();
        let gone = Process {
            pid: child.id(),
            process_start: None,
            ..Process::this()
        };
        child.wait().unwrap();
        assert!(gone.has_died());

        let start = Process::this().process_start.unwrap();
        let reused = Process {
            process_start: Some(start + 1),
            ..Process::this()
        };
        assert!(reused.has_died());
    }

    #[test]
    fn nothing_is_known_of_another_boot_or_namespace() {
        let gone = Process {
            process_start: Some(0),
            ..Process::this()
        };
        for elsewhere in [
            Process {
                boot_id: Some("another".into()),
                ..gone.clone()
            },
            Process {
                pid_namespace: Some("pid:[1]".into()),
                ..gone.clone()
            },
            Process {
                boot_id: None,
                pid_namespace: None,
                ..gone.clone()
            },
        ] {
            assert!(!elsewhere.has_died(), "{elsewhere:?}");
        }
    }

    #[test]
    fn only_different_shards_of_one_count_do_not_overlap() {
        let shard = |index, count| LockScope::Shard { index, count };
        assert!(!shard(1, 8).overlaps(shard(2, 8)));
        assert!(shard(2, 8).overlaps(shard(2, 8)));
        assert!(shard(1, 8).overlaps(shard(2, 4)));
        assert!(shard(1, 8).overlaps(LockScope::Run));
        assert!(LockScope::Run.overlaps(shard(1, 8)));
        assert!(LockScope::Run.overlaps(LockScope::Run));
    }

    #[test]
    fn a_directory_names_its_scope() {
        for scope in [LockScope::Run, LockScope::Shard { index: 2, count: 8 }] {
            assert_eq!(LockScope::from_directory(&scope.directory()), Some(scope));
        }
        assert_eq!(LockScope::from_directory("shard-x-of-8"), None);
    }
}
