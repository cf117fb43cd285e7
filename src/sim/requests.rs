//! Every request that an agent or server counted, one by one: [`RequestRecord`], kept in a bounded
//! [`RequestLog`].

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::fault::FaultKind;
use super::oracle::Key;

/// An agent remembers this many requests; older ones are forgotten.
pub const MAX_REQUESTS: usize = 2_000_000;

/// A request that an agent counted: its body was read and is a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What went wrong, where something did.
    pub fault: Option<FaultKind>,
    /// When it came to its end, in microseconds since 1970: when its answer began, or never would.
    pub ended_at_us: Option<u64>,
    /// The client was told to send nothing before this, in microseconds since 1970. All that is
    /// refused has one, and nothing else.
    pub not_before_us: Option<u64>,
    /// The request's path. An agent's is always `/run`, and left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Box<str>>,
    /// The request's `x-request-id`, where it has one; an agent's is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Box<str>>,
}

/// What a server knows of a request beside its place, and an agent does not keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub path: Box<str>,
    pub request_id: Option<Box<str>>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestEnd {
    /// Nothing yet: it waits in line or is worked on.
    Pending,
    /// An answer that gives a rollout.
    Answered,
    /// 429 or 503, and when to come back: by a fault, or, where there is none, for want of capacity.
    Refused,
    /// Another fault.
    Failed,
    /// The connection ended before there was an answer: the client left, or the agent went down.
    Abandoned,
    /// A server told the client that the request is wrong: 4xx.
    Rejected,
}

/// Now, in microseconds since 1970.
pub(super) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// How a request ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    pub end: RequestEnd,
    pub fault: Option<FaultKind>,
    pub at_us: u64,
    pub not_before_us: Option<u64>,
}

/// The last requests of an agent.
#[derive(Debug)]
pub(super) struct RequestLog {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Number of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
}

/// A record without its number. There is no time 0: it stands for none.
#[derive(Debug, Clone)]
struct Entry {
    key: Key,
    arrived_at_us: u64,
    ended_at_us: u64,
    not_before_us: u64,
    end: RequestEnd,
    fault: Option<FaultKind>,
    origin: Option<Box<Origin>>,
}

impl Default for RequestLog {
    fn default() -> Self {
        Self::new(MAX_REQUESTS)
    }
}

impl RequestLog {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            kept: Mutex::default(),
        }
    }

    /// Notes a request that has arrived; gives its number.
    pub(super) fn open(&self, key: Key, arrived_at_us: u64, origin: Option<Box<Origin>>) -> u64 {
        let mut kept = self.kept();
        if kept.entries.len() >= self.limit {
            kept.entries.pop_front();
            kept.first += 1;
        }
        kept.entries.push_back(Entry {
            key,
            arrived_at_us,
            ended_at_us: 0,
            not_before_us: 0,
            end: RequestEnd::Pending,
            fault: None,
            origin,
        });
        kept.next() - 1
    }

    /// Notes the end of the request `number`, if it is not forgotten.
    pub(super) fn close(&self, number: u64, ending: Ending) {
        let mut kept = self.kept();
        if let Some(entry) = kept
            .place(number)
            .and_then(|place| kept.entries.get_mut(place))
        {
            entry.end = ending.end;
            entry.fault = ending.fault;
            entry.ended_at_us = ending.at_us;
            entry.not_before_us = ending.not_before_us.unwrap_or(0);
        }
    }

    /// Number of the next request.
    pub(super) fn next(&self) -> u64 {
        self.kept().next()
    }

    /// At most `count` records with numbers in `from..to`, in order; those that are forgotten are
    /// passed over.
    pub(super) fn page(&self, from: u64, to: u64, count: usize) -> Vec<RequestRecord> {
        let kept = self.kept();
        let from = from.max(kept.first);
        let Some(place) = kept.place(from) else {
            return Vec::new();
        };
        let numbered = (from..to).zip(kept.entries.iter().skip(place));
        numbered
            .take(count)
            .map(|(number, entry)| entry.record(number))
            .collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

impl Entry {
    fn record(&self, number: u64) -> RequestRecord {
        let time = |us| Some(us).filter(|us| *us > 0);
        let origin = self.origin.as_deref();
        RequestRecord {
            number,
            task_index: self.key.task,
            rollout_index: self.key.rollout,
            attempt: self.key.attempt,
            arrived_at_us: self.arrived_at_us,
            end: self.end,
            fault: self.fault,
            ended_at_us: time(self.ended_at_us),
            not_before_us: time(self.not_before_us),
            path: origin.map(|origin| origin.path.clone()),
            request_id: origin.and_then(|origin| origin.request_id.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task: u64) -> Key {
        Key {
            task,
            rollout: 1,
            attempt: 2,
        }
    }

    fn refused(at_us: u64) -> Ending {
        Ending {
            end: RequestEnd::Refused,
            fault: None,
            at_us,
            not_before_us: Some(at_us + 5),
        }
    }

    #[test]
    fn a_request_is_pending_until_its_end() {
        let log = RequestLog::default();
        let number = log.open(key(7), 100, None);
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
        log.close(number, refused(200));
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
        let log = RequestLog::new(3);
        let numbers: Vec<u64> = (0..5).map(|task| log.open(key(task), 100, None)).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        numbers.iter().for_each(|n| log.close(*n, refused(200 + n)));
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
        let log = RequestLog::default();
        let origin = Origin {
            path: "/verify".into(),
            request_id: Some("3-1-a0-c2".into()),
        };
        let number = log.open(key(u64::MAX), 100, Some(Box::new(origin)));
        let fault = Some(FaultKind::RateLimited429);
        log.close(
            number,
            Ending {
                fault,
                ..refused(200)
            },
        );
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
