//! What a manager notes: [`RolloutCounts`] of what became of prompts, and the times of a rollout.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::retry::Failure;

/// The retry counts of a [`RolloutManager`](super::RolloutManager), under NeMo RL's names. A reason is the HTTP
/// status of an error, or the class of a failure that has none.
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
    /// The most prompts in a row that failed because of network and servers and were skipped.
    pub max_consecutive_infra_drops: u64,
}

impl RolloutCounts {
    /// Returns the counts as NeMo RL logs them: `rollout/NAME` is a sum, and `rollout/NAME/REASON` its part.
    pub fn metrics(&self) -> Map<String, Value> {
        let reasons = [
            ("redispatch_total", &self.redispatch_total),
            ("data_retry_total", &self.data_retry_total),
            ("data_failures_total", &self.data_failures_total),
            ("infra_drops_total", &self.infra_drops_total),
        ];
        let sums = reasons.map(|(name, counts)| (name, counts.values().sum()));
        let counts = [
            ("committed_total", self.committed_total),
            ("skipped_total", self.skipped_total),
            ("gym_row_redispatch_total", self.row_redispatch_total),
            (
                "max_consecutive_infra_drops",
                self.max_consecutive_infra_drops,
            ),
        ];
        let mut metrics = Map::new();
        let mut put = |name: String, count: u64| {
            metrics.insert(format!("rollout/{name}"), (count as f64).into());
        };
        for (name, count) in counts.into_iter().chain(sums) {
            put(name.to_owned(), count);
        }
        for (name, counts) in reasons {
            for (reason, count) in counts {
                put(format!("{name}/{reason}"), *count);
            }
        }
        metrics
    }
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
        if consecutive > most {
            return false;
        }
        let longest = &mut inner.counts.max_consecutive_infra_drops;
        *longest = consecutive.max(*longest);
        add(&mut inner.counts.infra_drops_total, failure);
        inner.counts.skipped_total += 1;
        true
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(counts: &mut BTreeMap<String, u64>, failure: &Failure) {
    // An answer that can't be used has a status of success.
    let reason = match failure.http_status.filter(|status| *status >= 400) {
        Some(status) => format!("http_{status}"),
        None => failure.class.name().to_owned(),
    };
    *counts.entry(reason).or_default() += 1;
}

/// The time that the steps of a rollout take, for NeMo RL's metrics `timing/rollout/*`, in seconds.
#[derive(Debug)]
pub(super) struct Timings {
    began: Instant,
    awaited: Duration,
    read: Duration,
    rolled_out: Duration,
}

impl Timings {
    pub(super) fn start() -> Self {
        Self {
            began: Instant::now(),
            awaited: Duration::ZERO,
            read: Duration::ZERO,
            rolled_out: Duration::ZERO,
        }
    }

    /// Waits for a result.
    pub(super) async fn awaiting<T>(&mut self, result: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = result.await;
        self.awaited += began.elapsed();
        result
    }

    /// Reads a result.
    pub(super) fn reading<T>(&mut self, read: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = read();
        self.read += began.elapsed();
        result
    }

    /// Notes that all results are there.
    pub(super) fn rolled_out(&mut self) {
        self.rolled_out = self.began.elapsed();
    }

    /// Adds the times of the rows of a group, which have come one by one.
    pub(super) fn add_rows_to(&self, metrics: &mut Map<String, Value>) {
        put(metrics, "await_results", self.awaited);
        put(metrics, "postprocess_results", self.read);
        let share = self.read.as_secs_f64() / self.rolled_out.as_secs_f64().max(f64::MIN_POSITIVE);
        let name = "timing/rollout/postprocess_results_pct";
        metrics.insert(name.into(), (100.0 * share).into());
    }

    /// Adds the times of the rollouts, of their metrics under this name, and of both.
    pub(super) fn add_to(&self, metrics: &mut Map<String, Value>, of_metrics: &str) {
        let total = self.began.elapsed();
        put(metrics, "run_rollouts", self.rolled_out);
        put(metrics, of_metrics, total - self.rolled_out);
        put(metrics, "total", total);
    }
}

fn put(metrics: &mut Map<String, Value>, name: &str, time: Duration) {
    metrics.insert(format!("timing/rollout/{name}"), time.as_secs_f64().into());
}
