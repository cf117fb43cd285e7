use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::RateWindow;
use super::queries::Attempts;
use super::rate::optional_rfc3339;
use crate::outcome::OK;
use crate::retry::FailureClass;

/// The figures of an agent, or of all: `planned = done + failed + pending`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Rollouts that are asked for.
    pub planned: u64,
    /// Of these, answered and kept.
    pub done: u64,
    /// Given up, by the budgets of the newest settings.
    pub failed: u64,
    /// Not tried yet, or pending again.
    pub pending: u64,
    /// Of the pending ones, sent and not answered yet; none where that is not known.
    pub in_flight: Option<u64>,
    /// The ones that were given up, by the class of their last failure.
    pub failed_by_class: BTreeMap<String, u64>,
    /// Mean reward of the rollouts that are done.
    pub mean_reward: Option<f64>,
    /// Rollouts that were done a second, over the [`RateWindow`]; none without one.
    pub rollouts_per_second: Option<f64>,
    /// Seconds until nothing is pending if the rate stays; none where nobody is at work, or
    /// nothing is getting done.
    pub eta_seconds: Option<f64>,
    /// Attempts whose end is known.
    pub attempts: u64,
    /// The attempts by what became of them: `ok`, or the class of the failure. All classes are there.
    pub outcomes: BTreeMap<String, OutcomeCount>,
    /// When the first attempt finished.
    #[serde(serialize_with = "optional_rfc3339")]
    pub first_finished_at: Option<DateTime<Utc>>,
    /// When the last attempt so far finished.
    #[serde(serialize_with = "optional_rfc3339")]
    pub last_finished_at: Option<DateTime<Utc>>,
    /// Where the time of an attempt went, on average.
    pub mean_times: MeanTimes,
}

/// Attempts that ended alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCount {
    /// How many.
    pub attempts: u64,
    /// Those of them that had an HTTP status, by status.
    pub http_statuses: BTreeMap<u16, u64>,
}

/// Means over the attempts that know them, in milliseconds; none where no attempt does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanTimes {
    /// Waiting for a turn.
    pub permit_wait_ms: Option<f64>,
    /// Held back by the agent's rate limits.
    pub rate_wait_ms: Option<f64>,
    /// Opening a connection.
    pub connect_ms: Option<f64>,
    /// From the request to the last byte of the answer.
    pub server_ms: Option<f64>,
    /// The collector's own work.
    pub client_ms: Option<f64>,
}

/// A sum, and of how many.
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

/// What figures are made of, and what can be added up over agents.
#[derive(Debug, Default, Clone)]
pub(super) struct Sums {
    planned: u64,
    pub done: u64,
    pub failed: BTreeMap<String, u64>,
    pub recently_done: u64,
    pub in_flight: Option<u64>,
    pub reward: Mean,
    outcomes: BTreeMap<String, OutcomeCount>,
    pub first_dispatched: Option<i64>,
    first_finished: Option<i64>,
    pub last_finished: Option<i64>,
    times: [Mean; 5],
    limit: Option<(i64, u32)>,
}

impl Sums {
    pub(super) fn of_planned(planned: u64) -> Self {
        Self {
            planned,
            ..Self::default()
        }
    }

    pub(super) fn add_attempts(&mut self, row: &Attempts) {
        let outcome = self.outcomes.entry(row.outcome.clone()).or_default();
        outcome.attempts += row.num_attempts;
        if let Some(status) = row.http_status {
            *outcome.http_statuses.entry(status).or_default() += row.num_attempts;
        }
        self.first_dispatched = earliest(self.first_dispatched, row.first_dispatched_at);
        self.first_finished = earliest(self.first_finished, row.first_finished_at);
        self.last_finished = self.last_finished.max(row.last_finished_at);
        self.limit = self.limit.max(row.limit_at.zip(row.concurrency_limit));
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

    pub(super) fn add(&mut self, other: &Self) {
        self.planned += other.planned;
        self.done += other.done;
        self.recently_done += other.recently_done;
        self.in_flight = match (self.in_flight, other.in_flight) {
            (Some(own), Some(other)) => Some(own + other),
            (own, other) => own.or(other),
        };
        for (class, count) in &other.failed {
            *self.failed.entry(class.clone()).or_default() += count;
        }
        self.reward.add(Some(other.reward.sum), other.reward.count);
        for (name, count) in &other.outcomes {
            let outcome = self.outcomes.entry(name.clone()).or_default();
            outcome.attempts += count.attempts;
            for (status, count) in &count.http_statuses {
                *outcome.http_statuses.entry(*status).or_default() += count;
            }
        }
        self.first_dispatched = earliest(self.first_dispatched, other.first_dispatched);
        self.first_finished = earliest(self.first_finished, other.first_finished);
        self.last_finished = self.last_finished.max(other.last_finished);
        for (mean, other) in self.times.iter_mut().zip(other.times) {
            mean.add(Some(other.sum), other.count);
        }
    }

    /// The newest limit of calls in flight.
    pub(super) fn concurrency_limit(&self) -> Option<u32> {
        self.limit.map(|(_, limit)| limit)
    }

    pub(super) fn figures(&self, window: Option<&RateWindow>) -> Figures {
        let failed = self.failed.values().sum();
        let pending = self.planned.saturating_sub(self.done + failed);
        let rate = window.map(|window| window.rate(self.recently_done));
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
