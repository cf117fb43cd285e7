//! What became of every request: [`Requests`] counts the requests of one agent or server and keeps a record of each,
//! and [`Admission`], one request in flight, makes sure that it is counted once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::super::fault::FaultKind;
use super::super::plan::Key;
use super::endpoint::Slot;
use super::http::{Reply, read_body};

/// An agent or server keeps a record of this many requests; older ones are forgotten.
pub const MAX_REQUESTS: usize = 2_000_000;

/// Counts of the requests to an agent's `POST /run`, or of all that are posted to a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests received: those whose body was read, and those rejected. A request whose client left
    /// while sending it does not count.
    pub requests: u64,
    /// Requests with a good answer.
    pub ok: u64,
    /// Requests with a fault, by kind; kinds that never happened are missing. A hang counts when
    /// it begins.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Requests whose body was too large, too slow or not a JSON object, and, at a server, wrong requests: without
    /// session, for an unknown tool.
    pub rejected: u64,
    /// Requests refused for want of capacity.
    pub refused: u64,
    /// Requests whose connection ended before the answer: the client left, or the agent went down.
    pub abandoned: u64,
    /// Requests that have not ended yet. `requests` is the sum of this and all counts above.
    pub pending: u64,
    /// Requests being received, waiting, worked on or hanging now.
    pub in_flight: u64,
    /// The highest `in_flight` so far.
    pub max_in_flight: u64,
    /// The highest number of requests worked on at a time so far, which the capacity limits.
    pub max_working: u64,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestEnd {
    /// Nothing yet: it waits or is worked on.
    #[default]
    Pending,
    /// An answer that gives a rollout.
    Answered,
    /// 429 or 503 with a time to retry: by a fault, or, without one, for want of capacity.
    Refused,
    /// Another fault.
    Failed,
    /// The connection ended before the answer: the client left, or the agent went down.
    Abandoned,
    /// A server told the client that the request is wrong: 4xx.
    Rejected,
}

/// The record of a request whose body was read and is a row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Number of the request at this agent, from 0, without gaps.
    pub number: u64,
    /// Index of the task.
    pub task_index: u64,
    /// Index of the rollout within the task.
    pub rollout_index: u64,
    /// Number of the attempt, from 0, as the row says.
    pub attempt: u64,
    /// When the body was read, in microseconds since 1970.
    pub arrived_at_us: u64,
    /// What became of it.
    pub end: RequestEnd,
    /// The fault, if any.
    pub fault: Option<FaultKind>,
    /// When it ended, in microseconds since 1970: when its answer began, or never would.
    pub ended_at_us: Option<u64>,
    /// The client was told to send nothing before this time, in microseconds since 1970. Only refused requests have
    /// one.
    pub not_before_us: Option<u64>,
    /// The request's path; missing at an agent, where it is always `/run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<str>>,
    /// The request's `x-request-id`, if any; missing at an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Box<str>>,
}

impl RequestRecord {
    /// Creates the record of a request that arrives now.
    pub(crate) fn arrived(key: Key) -> Self {
        Self {
            task_index: key.task,
            rollout_index: key.rollout,
            attempt: key.attempt,
            arrived_at_us: now_us(),
            ..Self::default()
        }
    }
}

/// Returns the current time in microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The counts and the records of one agent or server.
#[derive(Debug)]
pub(crate) struct Requests {
    /// The number of records that are kept.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    working: u64,
    /// The number of the next request.
    next: u64,
    records: VecDeque<RequestRecord>,
}

impl State {
    /// Returns the position of a record; `None` if it is forgotten.
    fn place(&self, number: u64) -> Option<usize> {
        let back = usize::try_from(self.next.checked_sub(number)?).ok()?;
        self.records.len().checked_sub(back)
    }
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            limit: MAX_REQUESTS,
            state: Mutex::default(),
        }
    }
}

impl Requests {
    /// Begins a request, which is counted when the admission ends.
    pub(crate) fn admit(self: &Arc<Self>) -> Admission {
        let counts = &mut self.state().counts;
        counts.in_flight += 1;
        counts.max_in_flight = counts.max_in_flight.max(counts.in_flight);
        Admission {
            requests: Arc::clone(self),
            open: None,
            slot: None,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts.clone()
    }

    /// Returns at most `count` records with numbers in `from..to`, in order. Forgotten ones are skipped.
    pub(crate) fn page(&self, from: u64, to: u64, count: usize) -> Vec<RequestRecord> {
        let state = self.state();
        let records = state.records.iter().skip(state.place(from).unwrap_or(0));
        let records = records.skip_while(|record| record.number < from);
        let records = records.take_while(|record| record.number < to);
        records.take(count).cloned().collect()
    }

    /// Returns the number of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.state().next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight. If it is dropped without an end, it counts as abandoned.
#[derive(Debug)]
pub(crate) struct Admission {
    requests: Arc<Requests>,
    /// The number of the record that has not ended.
    open: Option<u64>,
    slot: Option<Slot>,
}

impl Admission {
    /// Reads the body of the request.
    pub(crate) async fn read(&mut self, body: Incoming) -> Result<Bytes, Reply> {
        let read = read_body(body).await;
        // A request whose client left does not count.
        if let Err(refused) = &read
            && refused.status() != StatusCode::BAD_REQUEST
        {
            self.reject();
        }
        read
    }

    /// Notes that the request was read. It counts from now on.
    pub(crate) fn received(&mut self, record: RequestRecord) {
        let mut state = self.requests.state();
        state.counts.requests += 1;
        state.counts.pending += 1;
        if state.records.len() >= self.requests.limit {
            state.records.pop_front();
        }
        let number = state.next;
        state.next += 1;
        state.records.push_back(RequestRecord { number, ..record });
        self.open = Some(number);
    }

    /// Notes that the request cannot be read. It has no record.
    pub(crate) fn reject(&self) {
        let counts = &mut self.requests.state().counts;
        counts.requests += 1;
        counts.rejected += 1;
    }

    /// Notes that the request, which was received, is wrong.
    pub(crate) fn decline(&mut self, at_us: u64) {
        self.end(RequestEnd::Rejected, None, at_us, None);
    }

    /// Notes that work on the request begins, in a slot that it keeps until its end.
    pub(crate) fn begin_work(&mut self, slot: Slot) {
        self.slot = Some(slot);
        let mut state = self.requests.state();
        state.working += 1;
        state.counts.max_working = state.counts.max_working.max(state.working);
    }

    /// Notes that the request gets a good answer.
    pub(crate) fn answer(&mut self, at_us: u64) {
        self.end(RequestEnd::Answered, None, at_us, None);
    }

    /// Notes that a fault happens to the request, which may tell the client when to retry.
    pub(crate) fn fault(&mut self, kind: FaultKind, at_us: u64, not_before_us: Option<u64>) {
        let end = match not_before_us {
            Some(_) => RequestEnd::Refused,
            None if kind.gives_rollout() => RequestEnd::Answered,
            None => RequestEnd::Failed,
        };
        self.end(end, Some(kind), at_us, not_before_us);
    }

    /// Notes that the request is refused for lack of capacity.
    pub(crate) fn refuse(&mut self, at_us: u64, not_before_us: u64) {
        self.end(RequestEnd::Refused, None, at_us, Some(not_before_us));
    }

    fn end(
        &mut self,
        end: RequestEnd,
        fault: Option<FaultKind>,
        at_us: u64,
        not_before_us: Option<u64>,
    ) {
        let Some(number) = self.open.take() else {
            return;
        };
        let mut state = self.requests.state();
        let counts = &mut state.counts;
        counts.pending -= 1;
        match (fault, end) {
            (Some(kind), _) => *counts.faults.entry(kind).or_default() += 1,
            (None, RequestEnd::Rejected) => counts.rejected += 1,
            (None, RequestEnd::Refused) => counts.refused += 1,
            (None, RequestEnd::Abandoned) => counts.abandoned += 1,
            (None, _) => counts.ok += 1,
        }
        let place = state.place(number);
        if let Some(record) = place.and_then(|place| state.records.get_mut(place)) {
            record.end = end;
            record.fault = fault;
            record.ended_at_us = Some(at_us);
            record.not_before_us = not_before_us;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.end(RequestEnd::Abandoned, None, now_us(), None);
        let mut state = self.requests.state();
        // Counted before the slot is free, or more requests would seem to be at work than there are slots.
        state.working -= u64::from(self.slot.is_some());
        state.counts.in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Capacity;
    use super::*;

    /// A record that arrived at 100.
    fn record(key: Key) -> RequestRecord {
        RequestRecord {
            arrived_at_us: 100,
            ..RequestRecord::arrived(key)
        }
    }

    fn received(requests: &Arc<Requests>, task: u64) -> Admission {
        let mut admission = requests.admit();
        let key = Key {
            task,
            rollout: 0,
            attempt: 0,
        };
        admission.received(record(key));
        admission
    }

    #[tokio::test]
    async fn every_request_is_counted_once() {
        let requests = Arc::new(Requests::default());
        received(&requests, 0).answer(200);
        received(&requests, 1).fault(FaultKind::NotJson, 200, None);
        received(&requests, 2).fault(FaultKind::SlowFirstByte, 200, None);
        received(&requests, 3).fault(FaultKind::Error503, 200, Some(300));
        received(&requests, 4).refuse(200, 300);
        drop(received(&requests, 5));
        requests.admit().reject();
        drop(requests.admit());
        let mut open = received(&requests, 6);
        open.begin_work(Capacity::new(None).slot().await);
        let counts = requests.counts();
        assert_eq!(
            (counts.requests, counts.ok, counts.rejected),
            (8, 1, 1),
            "{counts:?}"
        );
        assert_eq!((counts.refused, counts.abandoned), (1, 1));
        let met = [
            FaultKind::NotJson,
            FaultKind::SlowFirstByte,
            FaultKind::Error503,
        ];
        assert_eq!(counts.faults, met.map(|kind| (kind, 1)).into());
        assert_eq!(
            (counts.pending, counts.in_flight, counts.max_working),
            (1, 1, 1)
        );
        let ends = |requests: &Requests| {
            let page = requests.page(0, requests.next(), 100);
            page.iter().map(|record| record.end).collect::<Vec<_>>()
        };
        use RequestEnd::{Abandoned, Answered, Failed, Pending, Refused};
        let first = [Answered, Failed, Answered, Refused, Refused, Abandoned];
        assert_eq!(ends(&requests)[..6], first);
        assert_eq!(ends(&requests)[6..], [Pending]);

        open.fault(FaultKind::Hang, 200, None);
        let counts = requests.counts();
        assert_eq!((counts.pending, counts.in_flight), (0, 1));
        drop(open);
        assert_eq!(requests.counts().in_flight, 0);
        assert_eq!(ends(&requests)[6..], [Failed]);
    }

    #[test]
    fn the_high_water_mark_stays() {
        let requests = Arc::new(Requests::default());
        let open: Vec<Admission> = (0..3).map(|_| requests.admit()).collect();
        drop(open);
        drop(requests.admit());
        assert_eq!(requests.counts().max_in_flight, 3);
    }

    fn key(task: u64) -> Key {
        Key {
            task,
            rollout: 1,
            attempt: 2,
        }
    }

    fn open(requests: &Arc<Requests>, task: u64) -> Admission {
        let mut admission = requests.admit();
        admission.received(record(key(task)));
        admission
    }

    #[test]
    fn a_request_is_pending_until_its_end() {
        let log = Arc::new(Requests::default());
        let mut admission = open(&log, 7);
        let pending = RequestRecord {
            number: 0,
            task_index: 7,
            rollout_index: 1,
            attempt: 2,
            arrived_at_us: 100,
            end: RequestEnd::Pending,
            fault: None,
            ended_at_us: None,
            not_before_us: None,
            path: None,
            request_id: None,
        };
        assert_eq!(log.page(0, log.next(), 10), std::slice::from_ref(&pending));
        admission.refuse(200, 205);
        let ended = RequestRecord {
            end: RequestEnd::Refused,
            ended_at_us: Some(200),
            not_before_us: Some(205),
            ..pending
        };
        assert_eq!(log.page(0, log.next(), 10), [ended]);
    }

    #[test]
    fn the_oldest_are_forgotten_and_their_ends_too() {
        let log = Arc::new(Requests {
            limit: 3,
            state: Mutex::default(),
        });
        let open: Vec<Admission> = (0..5).map(|task| open(&log, task)).collect();
        let numbers: Vec<u64> = open.iter().filter_map(|admission| admission.open).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        for (n, mut admission) in (200..).zip(open) {
            admission.refuse(n, n + 5);
        }
        let page = |from, to, count| {
            let page = log.page(from, to, count);
            let brief = page.iter().map(|r| (r.number, r.task_index, r.ended_at_us));
            brief.collect::<Vec<_>>()
        };
        let all = [2, 3, 4].map(|n| (n, n, Some(200 + n)));
        assert_eq!(page(0, 5, 10), all);
        assert_eq!(page(0, 5, 2), all[..2]);
        assert_eq!(page(3, 4, 10), all[1..2]);
        assert_eq!(page(5, 5, 10), []);
        assert_eq!(page(9, 10, 10), []);
    }

    #[test]
    fn a_record_is_the_same_when_it_is_read_back() {
        let log = Arc::new(Requests::default());
        let mut admission = log.admit();
        admission.received(RequestRecord {
            path: Some("/verify".into()),
            request_id: Some("3-1-a0-c2".into()),
            ..record(key(u64::MAX))
        });
        admission.fault(FaultKind::RateLimited429, 200, Some(205));
        let record = log.page(0, 1, 1).remove(0);
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""end":"refused","fault":"rate_limited_429""#));
        assert!(text.contains(r#""path":"/verify","request_id":"3-1-a0-c2""#));
        assert_eq!(
            serde_json::from_str::<RequestRecord>(&text).unwrap(),
            record
        );
    }
}
