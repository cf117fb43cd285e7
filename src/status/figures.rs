//! The figures of an agent, and the window over which its rate is computed.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};

use super::queries::Attempts;
use crate::outcome::OK;
use crate::progress::SPAN;
use crate::retry::FailureClass;

/// The figures of an agent, or of all: `planned = done + failed + pending`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Rollouts that the sweep plans.
    pub planned: u64,
    /// Planned rollouts that are answered and kept.
    pub done: u64,
    /// Failed rollouts, by the budgets of the newest settings.
    pub failed: u64,
    /// Rollouts that are neither done nor failed.
    pub pending: u64,
    /// Pending rollouts that are sent and not answered yet; none if that is not known.
    pub in_flight: Option<u64>,
    /// Failed rollouts by the class of their last failure.
    pub failed_by_class: BTreeMap<String, u64>,
    /// Mean reward of the rollouts that are done.
    pub mean_reward: Option<f64>,
    /// Rollouts per second that were done or failed in the [`RateWindow`]; none without one.
    pub rollouts_per_second: Option<f64>,
    /// Seconds until nothing is pending at this rate; none if no collector is running, or
    /// nothing gets done.
    pub eta_seconds: Option<f64>,
    /// Attempts that ended.
    pub attempts: u64,
    /// The attempts by outcome: `ok`, or the class of the failure. All classes are present.
    pub outcomes: BTreeMap<String, OutcomeCount>,
    /// When the first attempt finished.
    #[serde(serialize_with = "optional_rfc3339")]
    pub first_finished_at: Option<DateTime<Utc>>,
    /// When the last attempt so far finished.
    #[serde(serialize_with = "optional_rfc3339")]
    pub last_finished_at: Option<DateTime<Utc>>,
    /// The mean times of an attempt.
    pub mean_times: MeanTimes,
}

/// Attempts with the same outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCount {
    /// Number of attempts.
    pub attempts: u64,
    /// Number of attempts by HTTP status, if they had one.
    pub http_statuses: BTreeMap<u16, u64>,
}

/// Means over the attempts that measured a time, in milliseconds; none if no attempt did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanTimes {
    /// Waiting for a permit of the concurrency limit.
    pub permit_wait_ms: Option<f64>,
    /// Waiting for the agent's rate limits.
    pub rate_wait_ms: Option<f64>,
    /// Opening a connection.
    pub connect_ms: Option<f64>,
    /// From the request to the last byte of the answer.
    pub server_ms: Option<f64>,
    /// The collector's own work.
    pub client_ms: Option<f64>,
}

/// A sum and its number of values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    pub(super) fn add(&mut self, sum: Option<f64>, count: u64) {
        self.sum += sum.unwrap_or_default();
        self.count += count;
    }

    fn value(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// The sums of which figures are made.
#[derive(Debug, Default, Clone)]
pub(super) struct Sums {
    pub planned: u64,
    pub done: u64,
    pub failed: BTreeMap<String, u64>,
    pub recently_finished: u64,
    pub in_flight: Option<u64>,
    pub reward: Mean,
    outcomes: BTreeMap<String, OutcomeCount>,
    pub first_dispatched: Option<i64>,
    first_finished: Option<i64>,
    pub last_finished: Option<i64>,
    times: [Mean; 5],
    /// When the newest known limit of calls in flight was used, and the limit.
    pub limit: Option<(i64, u32)>,
}

impl Sums {
    pub(super) fn add_attempts(&mut self, row: &Attempts) {
        let outcome = self.outcomes.entry(row.outcome.clone()).or_default();
        outcome.attempts += row.num_attempts;
        if let Some(status) = row.http_status.and_then(|status| status.try_into().ok()) {
            *outcome.http_statuses.entry(status).or_default() += row.num_attempts;
        }
        self.first_dispatched = earliest(self.first_dispatched, row.first_dispatched_at);
        self.first_finished = earliest(self.first_finished, row.first_finished_at);
        self.last_finished = self.last_finished.max(row.last_finished_at);
        let limit = row.limit_at.map(|at| (at, row.concurrency_limit));
        self.limit = self.limit.max(limit);
        let times = [
            (row.permit_wait_ms, row.permit_wait_count),
            (row.rate_wait_ms, row.rate_wait_count),
            (row.connect_ms, row.connect_count),
            (row.server_ms, row.server_count),
            (row.client_ms, row.client_count),
        ];
        for (mean, (sum, count)) in self.times.iter_mut().zip(times) {
            mean.add(sum, count);
        }
    }

    pub(super) fn figures(&self, window: Option<&RateWindow>) -> Figures {
        let failed = self.failed.values().sum();
        let pending = self.planned.saturating_sub(self.done + failed);
        let rate = window.map(|window| window.rate(self.recently_finished));
        let live_rate = rate.filter(|_| window.is_some_and(|window| window.is_current));
        let classes = FailureClass::ALL.map(FailureClass::name);
        let mut outcomes: BTreeMap<String, OutcomeCount> = std::iter::once(OK)
            .chain(classes)
            .map(|name| (name.to_owned(), OutcomeCount::default()))
            .collect();
        outcomes.extend(self.outcomes.clone());
        let [
            permit_wait_ms,
            rate_wait_ms,
            connect_ms,
            server_ms,
            client_ms,
        ] = self.times.map(Mean::value);
        Figures {
            planned: self.planned,
            done: self.done,
            failed,
            pending,
            in_flight: self.in_flight,
            failed_by_class: self.failed.clone(),
            mean_reward: self.reward.value(),
            rollouts_per_second: rate,
            eta_seconds: live_rate
                .filter(|rate| *rate > 0.0)
                .map(|rate| pending as f64 / rate),
            attempts: outcomes.values().map(|outcome| outcome.attempts).sum(),
            outcomes,
            first_finished_at: self
                .first_finished
                .and_then(DateTime::from_timestamp_micros),
            last_finished_at: self.last_finished.and_then(DateTime::from_timestamp_micros),
            mean_times: MeanTimes {
                permit_wait_ms,
                rate_wait_ms,
                connect_ms,
                server_ms,
                client_ms,
            },
        }
    }
}

fn earliest(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.into_iter().chain(b).min()
}

/// The window over which rates are computed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RateWindow {
    /// Its beginning.
    #[serde(serialize_with = "rfc3339")]
    pub since: DateTime<Utc>,
    /// Its end: now if a collector is running, else when the last attempt finished.
    #[serde(serialize_with = "rfc3339")]
    pub until: DateTime<Utc>,
    /// Its length in seconds.
    pub seconds: f64,
    /// Whether it ends now.
    pub is_current: bool,
}

impl RateWindow {
    /// Returns the last minute before `until`, or the time since `began`, if that is less. A running sweep computes its
    /// own rate over the same window.
    pub(super) fn new(
        began: Option<DateTime<Utc>>,
        until: Option<DateTime<Utc>>,
        is_current: bool,
    ) -> Option<Self> {
        let until = until?;
        let since = (until - SPAN).max(began.unwrap_or(DateTime::<Utc>::MIN_UTC));
        // There is no window either if another machine's clock is ahead of ours.
        let seconds = (until - since).to_std().ok()?.as_secs_f64();
        (seconds > 0.0).then_some(Self {
            since,
            until,
            seconds,
            is_current,
        })
    }

    fn rate(&self, num_finished: u64) -> f64 {
        num_finished as f64 / self.seconds
    }
}

pub(super) fn rfc3339<S: Serializer>(
    time: &DateTime<Utc>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
}

pub(super) fn optional_rfc3339<S: Serializer>(
    time: &Option<DateTime<Utc>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339(time, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn a_live_run_is_looked_at_over_a_minute_or_since_it_began() {
        let window = RateWindow::new(Some(at(0)), Some(at(600)), true).unwrap();
        assert_eq!((window.since, window.until), (at(540), at(600)));
        let window = RateWindow::new(Some(at(590)), Some(at(600)), true).unwrap();
        assert_eq!((window.seconds, window.rate(25)), (10.0, 2.5));
        assert_eq!(RateWindow::new(Some(at(601)), Some(at(600)), true), None);
    }

    #[test]
    fn a_run_that_is_over_is_looked_at_where_it_ended() {
        let window = RateWindow::new(Some(at(0)), Some(at(30)), false).unwrap();
        assert_eq!((window.since, window.seconds), (at(0), 30.0));
        let window = RateWindow::new(Some(at(0)), Some(at(300)), false).unwrap();
        assert_eq!((window.since, window.is_current), (at(240), false));
        assert_eq!(RateWindow::new(Some(at(0)), None, false), None);
    }
}
