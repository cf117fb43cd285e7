use std::path::Path;
use std::{env, fs, io, process};

use serde::{Deserialize, Serialize};

/// A process, told so exactly that another process of the same machine can say that it has died.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub host: String,
    pub pid: u32,
    pub user: Option<String>,
    /// Which boot of which kernel. Host names are not unique, least of all in containers.
    pub boot_id: Option<String>,
    /// Where the process id is valid.
    pub pid_namespace: Option<String>,
    /// In clock ticks since the boot: process ids are used again.
    pub process_start: Option<u64>,
}

impl Process {
    pub(super) fn this() -> Self {
        let pid = process::id();
        // A `/proc` of another namespace says nothing about our processes.
        let ours = fs::read_link("/proc/self")
            .is_ok_and(|link| link.as_os_str() == pid.to_string().as_str());
        let known = |path| {
            fs::read_to_string(path)
                .ok()
                .map(|text| text.trim().to_owned())
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
    pub(super) fn has_died(&self) -> bool {
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
    Ok(parse_stat(&fs::read_to_string(format!(
        "/proc/{pid}/stat"
    ))?))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
