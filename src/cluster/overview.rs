//! [`Overview`]: what each executor does, by the reports of its shards.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::board::{INTERVAL, ShardReport, Withdrawal};
use crate::progress::{AgentProgress, ExecutorProgress};

/// An executor whose report does not change for so many intervals is silent.
const SILENT: u32 = 5;

/// What was reported of the shards of a sweep.
#[derive(Debug, Default)]
pub(super) struct Overview {
    /// By shard and executor: a shard may have had several.
    known: HashMap<(String, String), Known>,
}

/// What an executor reported of a shard.
#[derive(Debug)]
struct Known {
    report: ShardReport,
    heard: Instant,
}

impl Overview {
    /// Takes the newest reports by shard, and returns what each executor does.
    pub(super) fn look(
        &mut self,
        reports: &BTreeMap<String, ShardReport>,
        withdrawals: &BTreeMap<String, Withdrawal>,
    ) -> Vec<ExecutorProgress> {
        let now = Instant::now();
        for (shard, report) in reports {
            let key = (shard.clone(), report.executor.clone());
            match self.known.get_mut(&key) {
                Some(known) if known.report.beat == report.beat => {}
                _ => {
                    let report = report.clone();
                    self.known.insert(key, Known { report, heard: now });
                }
            }
        }
        let mut executors: BTreeMap<&str, ExecutorProgress> = BTreeMap::new();
        for ((shard, name), Known { report, heard }) in &self.known {
            let executor = executors.entry(name).or_default();
            let changed = |of: fn(&AgentProgress) -> u64| {
                let sum = |agents: &BTreeMap<String, AgentProgress>| -> u64 {
                    agents.values().map(of).sum()
                };
                sum(&report.now).saturating_sub(sum(&report.before))
            };
            executor.done += changed(|agent| agent.done);
            executor.failed += changed(AgentProgress::num_failed);
            let is_its = reports
                .get(shard)
                .is_some_and(|newest| newest.executor == *name);
            if !report.works || !is_its {
                continue;
            }
            if now.duration_since(*heard) > INTERVAL * SILENT {
                executor.is_silent = true;
            } else {
                executor.shards += 1;
                executor.in_flight += report.in_flight;
            }
        }
        for withdrawal in withdrawals.values() {
            let executor = executors.entry(&withdrawal.executor).or_default();
            // Another process may go on under its name.
            executor.has_withdrawn = executor.shards == 0;
        }
        let named = executors.into_iter().map(|(name, executor)| {
            // One that works on another shard lives.
            ExecutorProgress {
                name: name.to_owned(),
                is_silent: executor.is_silent && executor.shards == 0,
                ..executor
            }
        });
        named.collect()
    }
}
