//! [`MemoryPlan`]: how much of a sweep may be in memory at a time.

use std::fs;

use super::{Bytes, Settings};

/// Memory that every sweep needs: for the program itself, batches on their way to the disk, a part that is being encoded,
/// and the metrics at its end.
const BASE: u64 = 256 << 20;

/// The least memory that the plan divides, beyond `BASE`.
const LEAST: u64 = 64 << 20;

/// The assumed memory of the machine if the system does not report it.
const ASSUMED: u64 = 8 << 30;

/// The division of a sweep's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The whole budget.
    pub total: u64,
    /// Calls in flight: their requests, and [`Self::CALL`] for each.
    pub calls: u64,
    /// Answers that have been received and are not in the journal yet.
    pub answers: u64,
    /// Requests of calls that wait.
    pub waiting: u64,
}

impl MemoryPlan {
    /// The memory of a call in flight without its request: its task, and a connection with its buffers.
    pub const CALL: u64 = 40 << 10;

    /// The most memory for requests that wait.
    const MOST_WAITING: u64 = 256 << 20;

    /// Divides the memory that `settings` allow, or half of the machine's.
    pub fn of(settings: &Settings) -> Self {
        let total = settings.memory.map(Bytes::get);
        Self::new(total.unwrap_or_else(|| machine().unwrap_or(ASSUMED) / 2))
    }

    fn new(total: u64) -> Self {
        let rest = total.saturating_sub(BASE).max(LEAST);
        Self {
            total,
            calls: rest / 2,
            answers: rest / 5,
            waiting: (rest / 8).min(Self::MOST_WAITING),
        }
    }
}

/// Returns the memory of this machine or container.
fn machine() -> Option<u64> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    Some(limit.unwrap_or(u64::MAX).min(kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_less_than_the_whole() {
        for total in [1 << 29, 1 << 30, 1 << 34] {
            let plan = MemoryPlan::new(total);
            assert!(BASE + plan.calls + plan.answers + plan.waiting <= total);
            assert!(plan.waiting <= MemoryPlan::MOST_WAITING);
        }
        let least = MemoryPlan::new(0);
        assert!(least.calls >= 500 * MemoryPlan::CALL);
    }
}
