//! What became of every request: [`AgentCounters`] counts while the server runs and keeps a record
//! of each, [`Counts`] is a reading, and [`Admission`] makes sure that each is counted once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::capacity::Slot;
use super::fault::FaultKind;
use super::oracle::Key;
use super::requests::{Ending, Origin, RequestEnd, RequestLog, now_us};

/// Counts the requests to one agent's `POST /run`, or all that are posted to a server.
#[derive(Debug, Default)]
pub struct AgentCounters {
    requests: AtomicU64,
    ok: AtomicU64,
    faults: [AtomicU64; FaultKind::ALL.len()],
    rejected: AtomicU64,
    refused: AtomicU64,
    abandoned: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
    max_working: AtomicU64,
    working: AtomicU64,
    log: RequestLog,
}

/// A reading of [`AgentCounters`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests received: those whose body was read, and those rejected. One whose client left
    /// while it was being sent does not count.
    pub requests: u64,
    /// Answered as a good agent answers.
    pub ok: u64,
    /// Met with a fault, by kind; kinds that never happened are left out. A hang is counted when
    /// it begins.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Rejected, since the body was too large, too slow or no JSON object, or, by a server, since the
    /// request was wrong: no session, no such tool.
    pub rejected: u64,
    /// Refused for want of capacity.
    pub refused: u64,
    /// The connection ended before there was an answer: the client left, or the agent went down.
    pub abandoned: u64,
    /// Nothing became of them yet. `requests` is the sum of all the others and this.
    pub pending: u64,
    /// Being received, waiting, worked on or hanging at this moment.
    pub in_flight: u64,
    /// The most that were ever in flight at a time.
    pub max_in_flight: u64,
    /// The most that were ever worked on at a time, which capacity limits.
    pub max_working: u64,
}

impl AgentCounters {
    /// Begins with a request; what is returned counts it.
    pub(super) fn admit(self: &Arc<Self>) -> Admission {
        let in_flight = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.max_in_flight.fetch_max(in_flight, Relaxed);
        Admission {
            counters: Arc::clone(self),
            open: None,
            slot: None,
        }
    }

    /// The record of every request.
    pub(super) fn log(&self) -> &RequestLog {
        &self.log
    }

    /// Reads all counters. A reading while requests are on their way is not of one moment.
    pub fn read(&self) -> Counts {
        let fault = |(kind, n): (FaultKind, &AtomicU64)| {
            Some((kind, n.load(Relaxed))).filter(|(_, n)| *n > 0)
        };
        let faults: BTreeMap<_, _> = FaultKind::ALL
            .into_iter()
            .zip(&self.faults)
            .filter_map(fault)
            .collect();
        let (ok, rejected) = (self.ok.load(Relaxed), self.rejected.load(Relaxed));
        let (refused, abandoned) = (self.refused.load(Relaxed), self.abandoned.load(Relaxed));
        let requests = self.requests.load(Relaxed);
        let settled = ok + rejected + refused + abandoned + faults.values().sum::<u64>();
        Counts {
            requests,
            ok,
            faults,
            rejected,
            refused,
            abandoned,
            pending: requests.saturating_sub(settled),
            in_flight: self.in_flight.load(Relaxed),
            max_in_flight: self.max_in_flight.load(Relaxed),
            max_working: self.max_working.load(Relaxed),
        }
    }
}

/// A request in flight. Dropped with its end open, it counts as abandoned.
#[derive(Debug)]
pub(super) struct Admission {
    counters: Arc<AgentCounters>,
    /// Its number on record, from when it counts to its end.
    open: Option<u64>,
    slot: Option<Slot>,
}

impl Admission {
    /// It has been read, at this time in microseconds since 1970, and counts from now on.
    pub fn received(&mut self, key: Key, arrived_at_us: u64, origin: Option<Box<Origin>>) {
        self.counters.requests.fetch_add(1, Relaxed);
        self.open = Some(self.counters.log.open(key, arrived_at_us, origin));
    }

    /// It is no request that could be answered.
    pub fn reject(&mut self) {
        self.counters.requests.fetch_add(1, Relaxed);
        self.counters.rejected.fetch_add(1, Relaxed);
    }

    /// It has been received, and the client is told that it is wrong.
    pub fn decline(&mut self, at_us: u64) {
        self.counters.rejected.fetch_add(1, Relaxed);
        self.close(RequestEnd::Rejected, None, at_us, None);
    }

    /// The agent begins to work on it, and has a slot for it until it is done.
    pub fn begin_work(&mut self, slot: Slot) {
        self.slot = Some(slot);
        let working = self.counters.working.fetch_add(1, Relaxed) + 1;
        self.counters.max_working.fetch_max(working, Relaxed);
    }

    /// It gets a good answer.
    pub fn answer(&mut self, at_us: u64) {
        self.counters.ok.fetch_add(1, Relaxed);
        self.close(RequestEnd::Answered, None, at_us, None);
    }

    /// It meets with a fault, which may tell the client when to come back.
    pub fn fault(&mut self, kind: FaultKind, at_us: u64, not_before_us: Option<u64>) {
        let place = FaultKind::ALL.iter().position(|other| *other == kind);
        if let Some(counter) = place.and_then(|place| self.counters.faults.get(place)) {
            counter.fetch_add(1, Relaxed);
        }
        let end = match not_before_us {
            Some(_) => RequestEnd::Refused,
            None if kind.gives_rollout() => RequestEnd::Answered,
            None => RequestEnd::Failed,
        };
        self.close(end, Some(kind), at_us, not_before_us);
    }

    /// It is refused for want of capacity.
    pub fn refuse(&mut self, at_us: u64, not_before_us: u64) {
        self.counters.refused.fetch_add(1, Relaxed);
        self.close(RequestEnd::Refused, None, at_us, Some(not_before_us));
    }

    fn close(
        &mut self,
        end: RequestEnd,
        fault: Option<FaultKind>,
        at_us: u64,
        not_before_us: Option<u64>,
    ) {
        let ending = Ending {
            end,
            fault,
            at_us,
            not_before_us,
        };
        if let Some(number) = self.open.take() {
            self.counters.log.close(number, ending);
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.open.is_some() {
            self.counters.abandoned.fetch_add(1, Relaxed);
            self.close(RequestEnd::Abandoned, None, now_us(), None);
        }
        if self.slot.is_some() {
            // Before the slot is free, or there would seem to be more at work than there are slots.
            self.counters.working.fetch_sub(1, Relaxed);
        }
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::capacity::Capacity;
    use super::*;

    fn received(counters: &Arc<AgentCounters>, task: u64) -> Admission {
        let mut admission = counters.admit();
        let key = Key {
            task,
            rollout: 0,
            attempt: 0,
        };
        admission.received(key, 100 + task, None);
        admission
    }

    #[tokio::test]
    async fn every_request_is_counted_once() {
        let counters = Arc::new(AgentCounters::default());
        received(&counters, 0).answer(200);
        received(&counters, 1).fault(FaultKind::NotJson, 200, None);
        received(&counters, 2).fault(FaultKind::SlowFirstByte, 200, None);
        received(&counters, 3).fault(FaultKind::Error503, 200, Some(300));
        received(&counters, 4).refuse(200, 300);
        drop(received(&counters, 5));
        counters.admit().reject();
        drop(counters.admit());
        let mut open = received(&counters, 6);
        open.begin_work(Capacity::new(None).slot().await);
        let counts = counters.read();
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
        let ends = |log: &RequestLog| {
            let page = log.page(0, log.next(), 100);
            page.iter().map(|record| record.end).collect::<Vec<_>>()
        };
        use RequestEnd::{Abandoned, Answered, Failed, Pending, Refused};
        let first = [Answered, Failed, Answered, Refused, Refused, Abandoned];
        assert_eq!(ends(counters.log())[..6], first);
        assert_eq!(ends(counters.log())[6..], [Pending]);

        open.fault(FaultKind::Hang, 200, None);
        let counts = counters.read();
        assert_eq!((counts.pending, counts.in_flight), (0, 1));
        drop(open);
        assert_eq!(counters.read().in_flight, 0);
        assert_eq!(ends(counters.log())[6..], [Failed]);
    }

    #[test]
    fn the_high_water_mark_stays() {
        let counters = Arc::new(AgentCounters::default());
        let open: Vec<Admission> = (0..3).map(|_| counters.admit()).collect();
        drop(open);
        drop(counters.admit());
        assert_eq!(counters.read().max_in_flight, 3);
    }
}
