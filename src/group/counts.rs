use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::retry::Failure;

/// The retry counts of a [`RolloutManager`](super::RolloutManager), under NeMo RL's names. A reason is an HTTP
/// status, or a class of failure if there was no status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RolloutCounts {
    /// Groups that the trainer got.
    pub committed_total: u64,
    /// Prompts that failed and were skipped.
    pub skipped_total: u64,
    /// Groups that were sent again after a failure of network or server, by reason.
    pub redispatch_total: BTreeMap<String, u64>,
    /// Groups that were sent again after a failure that the prompt itself seemed to cause, by reason.
    pub data_retry_total: BTreeMap<String, u64>,
    /// Prompts that failed because they seem to cause failures, by reason.
    pub data_failures_total: BTreeMap<String, u64>,
    /// Prompts that failed because of network and servers, by reason.
    pub infra_drops_total: BTreeMap<String, u64>,
    /// Rollouts that were sent again while the others of their group were kept.
    pub row_redispatch_total: u64,
    /// The most prompts in a row that failed because of network and servers.
    pub max_consecutive_infra_drops: u64,
}

/// The counts, while a manager runs.
#[derive(Debug, Default)]
pub(super) struct RolloutStats(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counts: RolloutCounts,
    consecutive: u64,
}

impl RolloutStats {
    pub(super) fn counts(&self) -> RolloutCounts {
        self.inner().counts.clone()
    }

    pub(super) fn committed(&self) {
        let mut inner = self.inner();
        inner.counts.committed_total += 1;
        inner.consecutive = 0;
    }

    pub(super) fn redispatched(&self, failure: &Failure) {
        add(&mut self.inner().counts.redispatch_total, failure);
    }

    pub(super) fn data_retried(&self, failure: &Failure) {
        add(&mut self.inner().counts.data_retry_total, failure);
    }

    pub(super) fn rows_redispatched(&self, rows: u64) {
        self.inner().counts.row_redispatch_total += rows;
    }

    /// Notes a failed prompt that seems to cause failures. Returns whether at most `most` such prompts failed.
    pub(super) fn data_failed(&self, failure: &Failure, most: u64) -> bool {
        let mut inner = self.inner();
        add(&mut inner.counts.data_failures_total, failure);
        let skipped: u64 = inner.counts.data_failures_total.values().sum();
        let is_allowed = skipped <= most;
        inner.counts.skipped_total += u64::from(is_allowed);
        is_allowed
    }

    /// Notes a prompt that failed because of network or servers. Returns whether at most `most` in a row failed.
    pub(super) fn infra_dropped(&self, failure: &Failure, most: u64) -> bool {
        let mut inner = self.inner();
        inner.consecutive += 1;
        let consecutive = inner.consecutive;
        let longest = &mut inner.counts.max_consecutive_infra_drops;
        *longest = consecutive.max(*longest);
        if consecutive > most {
            return false;
        }
        add(&mut inner.counts.infra_drops_total, failure);
        inner.counts.skipped_total += 1;
        true
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(counts: &mut BTreeMap<String, u64>, failure: &Failure) {
    let reason = match failure.http_status {
        Some(status) => format!("http_{status}"),
        None => failure.class.name().to_owned(),
    };
    *counts.entry(reason).or_default() += 1;
}
