//! [`Breaker`], the circuit breaker of one agent. It opens when the agent is down, lets single calls probe it, and
//! abandons it after a while. So rollouts do not spend their budgets on an agent that is down: they stay pending.
//!
//! A rollout that always fails must not open it. So only first failures count, and only if few calls that were sent
//! after them are answered well.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::retry::{Backoff, Failure};

/// First failures of this many distinct tasks without a good answer in between open the breaker. They must be distinct,
/// because a task can be what makes an agent fail.
const FAILED_TASKS: u64 = 8;

/// This many first failures are reason to look whether others fail, too.
const SUSPICIOUS: u64 = 3;

/// The most first failures that are remembered.
const MOST_FAILED: usize = 4096;

/// This many failures to connect in a row open it, too: no task can cause those.
const UNREACHABLE: u32 = 3;

/// The pause from one probe to the next.
const PROBES: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(30),
};

/// Whether a call may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Calls may be sent freely.
    Open,
    /// One call may be sent as a probe, after [`Breaker::probing`].
    Probe,
    /// Send nothing before this instant, and ask again then, or when a call ends.
    Until(Instant),
    /// The wait is over. If the agent is [at fault](Breaker::is_at_fault), send nothing more: its rollouts stay
    /// pending. Otherwise the rollouts that are left are, and [`Breaker::release`] has them tried until they fail.
    Over,
}

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// No connection was made.
    Unreachable,
    /// A proxy or gateway answered in place of the agent: 502, 503 or 504.
    Gateway,
    /// The agent answered with an error, broke the connection, or was not done in time.
    Agent,
}

impl Cause {
    pub(super) fn of(failure: &Failure, http_status: Option<u16>) -> Self {
        match http_status {
            _ if failure.unreachable => Self::Unreachable,
            Some(502..=504) => Self::Gateway,
            _ => Self::Agent,
        }
    }
}

/// A call that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedCall {
    pub(super) task_index: i64,
    /// What [`Breaker::number`] returned for the call. None if the rollout had failed before: then the rollout may be
    /// the cause, and the failure says nothing about the agent.
    pub(super) number: Option<u64>,
    pub(super) cause: Cause,
    /// Whether [`Breaker::probing`] announced the call.
    pub(super) is_probe: bool,
}

/// The circuit breaker of one agent.
#[derive(Debug)]
pub(super) struct Breaker {
    patience: Duration,
    /// Good answers.
    answers: u64,
    /// First failures that good answers followed: the rollouts failed, and not the agent.
    explained: u64,
    /// Numbers that were given to calls.
    numbers: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed {
        /// The tasks of first failures since the last good answer, by the number of the call.
        failed: BTreeMap<u64, i64>,
        unreachable: u32,
        suspicion: Suspicion,
    },
    Broken(Broken),
}

/// What the first failures since the last good answer say of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suspicion {
    None,
    /// It may be down, but too few tasks have failed to tell.
    Few,
    /// It is down.
    Down,
}

#[derive(Debug)]
struct Broken {
    since: Instant,
    failed_probes: u32,
    next_probe: Instant,
    /// Probes in flight.
    probing: u32,
    /// What failed last.
    cause: Cause,
}

/// Where it is unlikely that waiting helps, the breaker waits only for the patience divided by this: an agent that has
/// never answered well probably does not exist or does not work.
const UNLIKELY: u32 = 8;

/// Ten years: a longer patience may overflow a clock.
const ENDLESS: Duration = Duration::from_secs(10 * 365 * 86_400);

impl Broken {
    fn pause(&self) -> Duration {
        PROBES.longest(self.failed_probes + 1)
    }
}

impl State {
    fn alive() -> Self {
        Self::Closed {
            failed: BTreeMap::new(),
            unreachable: 0,
            suspicion: Suspicion::None,
        }
    }
}

/// Judges the first failures since the last good answer, if `sent` first calls were sent in all and `usual` fail for
/// each good answer. The agent is down if the latest failures are more than half of the first calls that were sent
/// meanwhile, more than is usual, and of enough tasks.
fn suspected(failed: &BTreeMap<u64, i64>, sent: u64, usual: u64) -> Suspicion {
    let mut tasks = HashSet::new();
    let latest_first = (1_u64..).zip(failed.iter().rev());
    let suspicions = latest_first.map(|(count, (number, task))| {
        tasks.insert(*task);
        let least = count / (1 + usual);
        let are_most = count > (sent - number).div_ceil(2);
        match least.min(tasks.len() as u64) {
            FAILED_TASKS.. if are_most => Suspicion::Down,
            _ if are_most && least >= SUSPICIOUS => Suspicion::Few,
            _ => Suspicion::None,
        }
    });
    suspicions.max().unwrap_or(Suspicion::None)
}

impl Breaker {
    /// Creates a breaker that abandons the agent after it was open for `patience` without a good answer.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience: patience.min(ENDLESS),
            answers: 0,
            explained: 0,
            numbers: 0,
            state: State::alive(),
        }
    }

    /// Notes that a call is sent for a rollout that has not failed before, and returns its number.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Returns how many calls were numbered.
    pub(super) fn numbers(&self) -> u64 {
        self.numbers
    }

    /// Notes a good answer: one that is no infra failure. A refusal because of load counts, too: an agent that is only
    /// busy must not be abandoned.
    pub(super) fn answered(&mut self) {
        self.answers += 1;
        if let State::Closed { failed, .. } = &self.state {
            self.explained += failed.len() as u64;
        }
        self.state = State::alive();
    }

    /// Notes an infra failure. Failures of calls that were sent before the breaker opened are ignored.
    pub(super) fn failed(&mut self, now: Instant, call: FailedCall) {
        let cause = call.cause;
        match &mut self.state {
            State::Closed {
                failed,
                unreachable,
                suspicion,
            } => {
                *unreachable = if cause == Cause::Unreachable {
                    *unreachable + 1
                } else {
                    0
                };
                if let Some(number) = call.number {
                    failed.insert(number, call.task_index);
                    if failed.len() > MOST_FAILED {
                        failed.pop_first();
                    }
                    let usual = self.explained.checked_div(self.answers).unwrap_or(0);
                    *suspicion = suspected(failed, self.numbers, usual);
                }
                if *unreachable >= UNREACHABLE || *suspicion == Suspicion::Down {
                    self.state = State::Broken(Broken {
                        since: now,
                        failed_probes: 0,
                        next_probe: now + PROBES.base,
                        probing: 0,
                        cause,
                    });
                }
            }
            State::Broken(broken) if call.is_probe => {
                broken.cause = cause;
                broken.probing = broken.probing.saturating_sub(1);
                broken.failed_probes += 1;
                broken.next_probe = now + broken.pause();
            }
            State::Broken(_) => {}
        }
    }

    /// Returns whether a call may be sent at `now`. `has_fresh`: rollouts wait that have not failed before.
    pub(super) fn admission(&self, now: Instant, has_fresh: bool) -> Admission {
        let State::Broken(broken) = &self.state else {
            return Admission::Open;
        };
        let end = broken.since + self.patience(has_fresh);
        match broken.probing {
            0 if now >= end => Admission::Over,
            // A probe is a rollout and may take long: only a failed one shows that the agent is gone.
            _ if now >= end => Admission::Until(now + PROBES.cap),
            _ if now >= broken.next_probe => Admission::Probe,
            0 => Admission::Until(broken.next_probe.min(end)),
            _ => Admission::Until(broken.next_probe),
        }
    }

    /// Returns how long the breaker waits for the agent once it is open.
    pub(super) fn patience(&self, has_fresh: bool) -> Duration {
        if self.has_answered() && self.is_at_fault(has_fresh) {
            self.patience
        } else {
            self.patience / UNLIKELY
        }
    }

    /// Returns whether the agent has ever answered well.
    pub(super) fn has_answered(&self) -> bool {
        self.answers > 0
    }

    /// Returns whether the agent is the likely cause of its failures. If it has answered well before, and all
    /// rollouts that are left have failed before, these are the likely cause.
    pub(super) fn is_at_fault(&self, has_fresh: bool) -> bool {
        let is_gone = self.cause().is_some_and(|cause| cause != Cause::Agent);
        has_fresh || is_gone || !self.has_answered()
    }

    /// Returns whether the next call should be for a rollout that has not failed before: if the agent may be down, and
    /// for every other probe, because either kind of rollout may be what always fails.
    pub(super) fn wants_fresh(&self) -> bool {
        match &self.state {
            State::Closed { suspicion, .. } => *suspicion == Suspicion::Few,
            State::Broken(broken) => broken.failed_probes % 2 == 0,
        }
    }

    /// Closes the breaker though the agent has not answered well.
    pub(super) fn release(&mut self) {
        self.state = State::alive();
    }

    /// Notes a probe; the next one is due after a pause. A probe ends in [`Self::answered`], [`Self::failed`] or
    /// [`Self::probe_dropped`].
    pub(super) fn probing(&mut self, now: Instant) {
        if let State::Broken(broken) = &mut self.state {
            broken.probing += 1;
            broken.next_probe = now + broken.pause();
        }
    }

    /// Notes that a probe was cut off, which says nothing about the agent.
    pub(super) fn probe_dropped(&mut self) {
        if let State::Broken(broken) = &mut self.state {
            broken.probing = broken.probing.saturating_sub(1);
        }
    }

    /// Returns whether the breaker is open: the agent is down.
    pub(super) fn is_open(&self) -> bool {
        self.open_since().is_some()
    }

    /// Returns the instant since which the breaker is open.
    pub(super) fn open_since(&self) -> Option<Instant> {
        match &self.state {
            State::Closed { .. } => None,
            State::Broken(broken) => Some(broken.since),
        }
    }

    /// Returns what failed last, if the breaker is open.
    pub(super) fn cause(&self) -> Option<Cause> {
        match &self.state {
            State::Closed { .. } => None,
            State::Broken(broken) => Some(broken.cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A first call for this task that failed, and the number that it was given.
    fn first(breaker: &mut Breaker, task_index: i64) -> FailedCall {
        FailedCall {
            task_index,
            number: Some(breaker.number()),
            cause: Cause::Agent,
            is_probe: false,
        }
    }

    /// A call that failed for a rollout that had failed before.
    const AGAIN: FailedCall = FailedCall {
        task_index: 1,
        number: None,
        cause: Cause::Agent,
        is_probe: false,
    };

    const UNREACHED: FailedCall = FailedCall {
        cause: Cause::Unreachable,
        ..AGAIN
    };

    const PROBE: FailedCall = FailedCall {
        is_probe: true,
        ..AGAIN
    };

    fn fail(breaker: &mut Breaker, now: Instant, tasks: impl IntoIterator<Item = i64>) {
        for task in tasks {
            let call = first(breaker, task);
            breaker.failed(now, call);
        }
    }

    /// Returns an open breaker of an agent that has answered before, and the instant at which it opened.
    fn open() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        breaker.answered();
        fail(&mut breaker, now, 0..8);
        assert!(breaker.is_open());
        (breaker, now)
    }

    #[test]
    fn one_task_that_always_fails_never_opens_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        assert!(!breaker.wants_fresh());
        fail(&mut breaker, now, std::iter::repeat_n(7, 1000));
        assert_eq!(breaker.admission(now, true), Admission::Open);
        // Rollouts of other tasks show whether it is the task.
        assert!(breaker.wants_fresh());
        assert_eq!(breaker.open_since(), None);
    }

    #[test]
    fn eight_tasks_without_an_answer_in_between_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        fail(&mut breaker, now, 0..7);
        breaker.failed(now, AGAIN);
        assert!(!breaker.is_open());
        fail(&mut breaker, now, 7..8);
        assert_eq!(breaker.open_since(), Some(now));
        let next = Admission::Until(now + seconds(1));
        assert_eq!(breaker.admission(now, true), next);
    }

    #[test]
    fn rollouts_that_failed_before_never_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for task_index in 0..1000 {
            let call = FailedCall {
                task_index,
                ..AGAIN
            };
            breaker.failed(now, call);
        }
        assert!(!breaker.is_open());
    }

    #[test]
    fn slow_failures_among_faster_answers_do_not_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        let mut slow = Vec::new();
        for task in 0..1000 {
            let call = first(&mut breaker, task);
            if task % 3 == 0 {
                slow.push(call);
            } else {
                breaker.answered();
            }
        }
        for call in slow {
            breaker.failed(now, call);
            assert!(!breaker.is_open(), "{call:?}");
        }
    }

    #[test]
    fn when_most_of_what_is_in_flight_fails_it_opens() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        let calls: Vec<FailedCall> = (0..100).map(|task| first(&mut breaker, task)).collect();
        let failures = calls.into_iter().skip(20);
        (0..20).for_each(|_| breaker.answered());
        let opened = failures.enumerate().find(|(_, call)| {
            breaker.failed(now, *call);
            breaker.is_open()
        });
        assert!(matches!(opened, Some((30..50, _))), "{opened:?}");
    }

    #[test]
    fn what_usually_fails_opens_it_later() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for task in 0..100 {
            fail(&mut breaker, now, task * 5..task * 5 + 5);
            breaker.answered();
        }
        fail(&mut breaker, now, 0..47);
        assert!(!breaker.is_open());
        fail(&mut breaker, now, 47..48);
        assert!(breaker.is_open());
    }

    #[test]
    fn three_failures_to_connect_in_a_row_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for call in [UNREACHED, UNREACHED, AGAIN, UNREACHED, UNREACHED] {
            breaker.failed(now, call);
        }
        assert!(!breaker.is_open());
        breaker.failed(now, UNREACHED);
        assert!(breaker.is_open());
    }

    #[test]
    fn sends_one_probe_at_a_time_at_growing_pauses() {
        let (mut breaker, mut now) = open();
        let mut pauses = Vec::new();
        for probe in 0..8 {
            let Admission::Until(next) = breaker.admission(now, true) else {
                panic!("{:?}", breaker.admission(now, true));
            };
            pauses.push((next - now).as_secs());
            now = next;
            assert_eq!(breaker.admission(now, true), Admission::Probe);
            assert_eq!(breaker.wants_fresh(), probe % 2 == 0);
            breaker.probing(now);
            assert!(matches!(breaker.admission(now, true), Admission::Until(_)));
            breaker.failed(now, PROBE);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_call_sent_before_it_opened_is_not_a_probe_that_failed() {
        let (mut breaker, now) = open();
        let later = now + seconds(1);
        breaker.failed(later, AGAIN);
        assert_eq!(breaker.admission(later, true), Admission::Probe);
        breaker.probing(later);
        breaker.failed(later, AGAIN);
        let next = later + seconds(1);
        assert_eq!(breaker.admission(later, true), Admission::Until(next));
        breaker.probe_dropped();
        assert_eq!(breaker.admission(next, true), Admission::Probe);
    }

    #[test]
    fn a_probe_that_takes_long_keeps_it_from_being_abandoned_and_others_follow() {
        let (mut breaker, now) = open();
        breaker.probing(now + seconds(1));
        assert_eq!(breaker.admission(now + seconds(2), true), Admission::Probe);
        let end = now + PATIENCE;
        assert!(matches!(breaker.admission(end, true), Admission::Until(_)));
        breaker.failed(end, PROBE);
        assert_eq!(breaker.admission(end, true), Admission::Over);
    }

    #[test]
    fn an_answer_closes_it_and_the_next_pause_is_short_again() {
        let (mut breaker, now) = open();
        for probe in 1..6 {
            breaker.probing(now + seconds(probe * 40));
            breaker.failed(now + seconds(probe * 40), PROBE);
        }
        breaker.answered();
        let later = now + seconds(250);
        assert_eq!(breaker.admission(later, true), Admission::Open);
        fail(&mut breaker, later, 0..8);
        let next = now + seconds(251);
        assert_eq!(breaker.admission(later, true), Admission::Until(next));
    }

    #[test]
    fn an_agent_that_never_answered_is_waited_for_only_a_while() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        fail(&mut breaker, now, 0..8);
        let end = now + PATIENCE / UNLIKELY;
        assert_eq!(breaker.admission(end - seconds(1), true), Admission::Probe);
        assert_eq!(breaker.admission(end, true), Admission::Over);
        assert!(breaker.is_at_fault(false));
    }

    #[test]
    fn is_abandoned_after_the_patience_and_can_still_come_back() {
        let (mut breaker, now) = open();
        let end = now + PATIENCE;
        assert_eq!(breaker.admission(end - seconds(1), true), Admission::Probe);
        assert_eq!(breaker.admission(end, true), Admission::Over);
        assert!(breaker.is_at_fault(true));
        breaker.answered();
        assert_eq!(breaker.admission(end, true), Admission::Open);
    }

    #[test]
    fn where_all_that_is_left_failed_before_the_agent_is_at_fault_only_if_it_is_gone() {
        let (mut breaker, now) = open();
        let end = now + PATIENCE / UNLIKELY;
        assert!(!breaker.is_at_fault(false));
        assert_eq!(breaker.admission(end, false), Admission::Over);
        assert_eq!(breaker.admission(end, true), Admission::Probe);
        for cause in [Cause::Unreachable, Cause::Gateway] {
            breaker.probing(now);
            breaker.failed(now, FailedCall { cause, ..PROBE });
            assert!(breaker.is_at_fault(false));
            assert_eq!(breaker.admission(end, false), Admission::Probe);
        }
        breaker.release();
        assert_eq!(breaker.admission(end, false), Admission::Open);
    }

    #[test]
    fn patience_may_be_endless() {
        let (mut breaker, now) = (Breaker::new(Duration::MAX), Instant::now());
        for _ in 0..3 {
            breaker.failed(now, UNREACHED);
        }
        let later = now + seconds(1 << 20);
        assert_eq!(breaker.admission(later, true), Admission::Probe);
    }

    proptest! {
        /// Whatever happens, a wait ends later than it began, and what follows it is not a wait.
        #[test]
        fn nobody_waits_for_an_instant_that_has_passed(
            events in prop::collection::vec((0_u8..5, 0_i64..20, 0_u64..40), 0..200),
        ) {
            let (mut breaker, mut now) = (Breaker::new(PATIENCE), Instant::now());
            let mut probing = false;
            for (event, task, pause) in events {
                now += seconds(pause);
                match event {
                    0 if task == 0 => {
                        breaker.answered();
                        probing = false;
                    }
                    1 => breaker.failed(now, UNREACHED),
                    2 => fail(&mut breaker, now, [task]),
                    _ if probing => {
                        breaker.failed(now, PROBE);
                        probing = false;
                    }
                    _ if breaker.admission(now, true) == Admission::Probe => {
                        breaker.probing(now);
                        probing = true;
                    }
                    _ => {}
                }
                if let Admission::Until(next) = breaker.admission(now, true) {
                    prop_assert!(next > now);
                    let is_late = next >= breaker.open_since().map_or(now, |since| since + PATIENCE / 8);
                    prop_assert!(is_late || !matches!(breaker.admission(next, true), Admission::Until(_)));
                }
            }
        }
    }
}
