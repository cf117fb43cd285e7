//! What became of every request: [`AgentCounters`] counts while the server runs, [`Counts`] is a
//! reading, and [`Admission`] makes sure that each request is counted once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::fault::FaultKind;

/// Counts the requests to one agent's `POST /run`.
#[derive(Debug, Default)]
pub struct AgentCounters {
    requests: AtomicU64,
    ok: AtomicU64,
    faults: [AtomicU64; FaultKind::ALL.len()],
    rejected: AtomicU64,
    abandoned: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
    max_working: AtomicU64,
    working: AtomicU64,
}

/// A reading of [`AgentCounters`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests received.
    pub requests: u64,
    /// Answered as a good agent answers.
    pub ok: u64,
    /// Met with a fault, by kind; kinds that never happened are left out. A hang is counted when
    /// it begins.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Refused, since the body was too large, too slow or no JSON object.
    pub rejected: u64,
    /// The client left before there was an answer.
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
    /// Counts a request in; what is returned counts it out.
    pub(super) fn admit(self: &Arc<Self>) -> Admission {
        self.requests.fetch_add(1, Relaxed);
        let in_flight = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.max_in_flight.fetch_max(in_flight, Relaxed);
        Admission {
            counters: Arc::clone(self),
            settled: false,
            working: false,
        }
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
        let abandoned = self.abandoned.load(Relaxed);
        let requests = self.requests.load(Relaxed);
        let settled = ok + rejected + abandoned + faults.values().sum::<u64>();
        Counts {
            requests,
            ok,
            faults,
            rejected,
            abandoned,
            pending: requests.saturating_sub(settled),
            in_flight: self.in_flight.load(Relaxed),
            max_in_flight: self.max_in_flight.load(Relaxed),
            max_working: self.max_working.load(Relaxed),
        }
    }
}

/// A request in flight. Dropped unsettled, it counts as abandoned.
#[derive(Debug)]
pub(super) struct Admission {
    counters: Arc<AgentCounters>,
    settled: bool,
    working: bool,
}

impl Admission {
    /// The agent begins to work on it.
    pub fn begin_work(&mut self) {
        self.working = true;
        let working = self.counters.working.fetch_add(1, Relaxed) + 1;
        self.counters.max_working.fetch_max(working, Relaxed);
    }

    /// It gets a good answer, or a fault.
    pub fn settle(&mut self, fault: Option<FaultKind>) {
        let slot = match fault {
            None => Some(&self.counters.ok),
            Some(kind) => FaultKind::ALL
                .iter()
                .position(|other| *other == kind)
                .and_then(|place| self.counters.faults.get(place)),
        };
        self.settled = true;
        slot.map(|counter| counter.fetch_add(1, Relaxed));
    }

    /// It is refused.
    pub fn reject(&mut self) {
        self.settled = true;
        self.counters.rejected.fetch_add(1, Relaxed);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if !self.settled {
            self.counters.abandoned.fetch_add(1, Relaxed);
        }
        if self.working {
            self.counters.working.fetch_sub(1, Relaxed);
        }
        self.counters.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_once() {
        let counters = Arc::new(AgentCounters::default());
        counters.admit().settle(None);
        counters.admit().settle(Some(FaultKind::NotJson));
        counters.admit().reject();
        drop(counters.admit());
        let mut open = counters.admit();
        open.begin_work();
        let counts = counters.read();
        assert_eq!(
            (
                counts.requests,
                counts.ok,
                counts.rejected,
                counts.abandoned
            ),
            (5, 1, 1, 1)
        );
        assert_eq!(counts.faults, BTreeMap::from([(FaultKind::NotJson, 1)]));
        assert_eq!(
            (counts.pending, counts.in_flight, counts.max_working),
            (1, 1, 1)
        );
        open.settle(Some(FaultKind::Hang));
        let counts = counters.read();
        assert_eq!((counts.pending, counts.in_flight), (0, 1));
        drop(open);
        assert_eq!(counters.read().in_flight, 0);
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
