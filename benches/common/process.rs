//! What the system tells of a process that runs: [`cpu_time`], [`peak_memory`], [`position`], [`threads`].

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;

/// CPU time of a process so far; Linux counts it in hundredths of a second.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// The largest resident memory of a process so far, in bytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix("kB"));
    let kilobytes: u64 = peak.context("no VmHWM")?.trim().parse()?;
    Ok(kilobytes * 1024)
}

/// How far a process has read in the file, where it has it open.
pub fn position(pid: u32, file: &Path) -> Option<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let positions = descriptors
        .filter(|open| fs::read_link(open.path()).is_ok_and(|target| target == file))
        .filter_map(|open| {
            let number = open.file_name().into_string().ok()?;
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
            let position = info.lines().find_map(|line| line.strip_prefix("pos:"))?;
            position.trim().parse().ok()
        });
    positions.max()
}

/// A thread: its name, and its CPU time so far.
#[derive(Debug, Clone)]
pub struct Thread {
    pub name: String,
    pub cpu: Duration,
}

/// The threads that a process has now, by their numbers, which grow in the order of their starts.
pub fn threads(pid: u32) -> BTreeMap<u32, Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| {
        // One that has just ended tells nothing more.
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let on_cpu: u64 = times.split_whitespace().next()?.parse().ok()?;
        let thread = Thread {
            name: name.trim().to_owned(),
            cpu: Duration::from_nanos(on_cpu),
        };
        Some((task.file_name().to_str()?.parse().ok()?, thread))
    });
    threads.collect()
}
