//! [`Breaker`], the circuit breaker of one agent. It opens when the agent no longer answers, lets single calls
//! probe it, and abandons it after a while. So rollouts do not spend their budgets on an agent that is down: they stay
//! pending.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::retry::Backoff;

/// Infra failures of this many distinct tasks without an answer in between open the breaker. They must be distinct,
/// because a task can be what makes an agent fail.
const FAILED_TASKS: usize = 8;

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
    /// Send nothing more: the agent is abandoned, and its rollouts stay pending.
    Abandon,
}

/// The circuit breaker of one agent.
#[derive(Debug)]
pub(super) struct Breaker {
    patience: Duration,
    /// Whether the agent has ever answered.
    has_answered: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Closed {
        tasks: HashSet<i64>,
        unreachable: u32,
    },
    Broken(Broken),
}

#[derive(Debug)]
struct Broken {
    since: Instant,
    failed_probes: u32,
    next_probe: Instant,
    /// Probes in flight.
    probing: u32,
}

/// An agent that has never answered probably does not exist: its breaker waits only for the patience divided by this.
const NEVER_ANSWERED: u32 = 8;

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
            tasks: HashSet::new(),
            unreachable: 0,
        }
    }
}

impl Breaker {
    /// Creates a breaker that abandons the agent after it was open for `patience` without an answer.
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience: patience.min(ENDLESS),
            has_answered: false,
            state: State::alive(),
        }
    }

    /// Notes a reply that is no infra failure: the agent is alive. A refusal because of load counts, too: an agent
    /// that is only busy must not be abandoned.
    pub(super) fn answered(&mut self) {
        self.has_answered = true;
        self.state = State::alive();
    }

    /// Notes an infra failure of a call for `task_index`: `unreachable` if no connection was made, `probe` if
    /// [`Self::probing`] announced it. Failures of calls that were sent before the breaker opened are ignored.
    pub(super) fn failed(&mut self, now: Instant, task_index: i64, unreachable: bool, probe: bool) {
        match &mut self.state {
            State::Closed {
                tasks,
                unreachable: in_a_row,
            } => {
                tasks.insert(task_index);
                *in_a_row = if unreachable { *in_a_row + 1 } else { 0 };
                if tasks.len() >= FAILED_TASKS || *in_a_row >= UNREACHABLE {
                    self.state = State::Broken(Broken {
                        since: now,
                        failed_probes: 0,
                        next_probe: now + PROBES.base,
                        probing: 0,
                    });
                }
            }
            State::Broken(broken) if probe => {
                broken.probing = broken.probing.saturating_sub(1);
                broken.failed_probes += 1;
                broken.next_probe = now + broken.pause();
            }
            State::Broken(_) => {}
        }
    }

    /// Returns whether a call may be sent at `now`.
    pub(super) fn admission(&self, now: Instant) -> Admission {
        let State::Broken(broken) = &self.state else {
            return Admission::Open;
        };
        let patience = if self.has_answered {
            self.patience
        } else {
            self.patience / NEVER_ANSWERED
        };
        let end = broken.since + patience;
        match broken.probing {
            0 if now >= end => Admission::Abandon,
            // A probe is a rollout and may take long: only a failed one shows that the agent is gone.
            _ if now >= end => Admission::Until(now + PROBES.cap),
            _ if now >= broken.next_probe => Admission::Probe,
            0 => Admission::Until(broken.next_probe.min(end)),
            _ => Admission::Until(broken.next_probe),
        }
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns an open breaker of an agent that has answered before, and the instant at which it opened.
    fn open() -> (Breaker, Instant) {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        breaker.answered();
        for task in 0..8 {
            breaker.failed(now, task, false, false);
        }
        assert!(breaker.is_open());
        (breaker, now)
    }

    #[test]
    fn one_task_that_always_fails_never_opens_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for _ in 0..1000 {
            breaker.failed(now, 7, false, false);
        }
        assert_eq!(breaker.admission(now), Admission::Open);
        assert_eq!(breaker.open_since(), None);
    }

    #[test]
    fn eight_tasks_without_an_answer_in_between_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for task in 0..7 {
            breaker.failed(now, task, false, false);
        }
        breaker.answered();
        for task in 0..7 {
            breaker.failed(now, task, false, false);
        }
        assert!(!breaker.is_open());
        breaker.failed(now, 7, false, false);
        assert_eq!(breaker.open_since(), Some(now));
        assert_eq!(breaker.admission(now), Admission::Until(now + seconds(1)));
    }

    #[test]
    fn three_failures_to_connect_in_a_row_open_it() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for unreachable in [true, true, false, true, true] {
            breaker.failed(now, 1, unreachable, false);
        }
        assert!(!breaker.is_open());
        breaker.failed(now, 1, true, false);
        assert!(breaker.is_open());
    }

    #[test]
    fn sends_one_probe_at_a_time_at_growing_pauses() {
        let (mut breaker, mut now) = open();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Admission::Until(next) = breaker.admission(now) else {
                panic!("{:?}", breaker.admission(now));
            };
            pauses.push((next - now).as_secs());
            now = next;
            assert_eq!(breaker.admission(now), Admission::Probe);
            breaker.probing(now);
            assert!(matches!(breaker.admission(now), Admission::Until(_)));
            breaker.failed(now, 1, true, true);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn a_call_sent_before_it_opened_is_not_a_probe_that_failed() {
        let (mut breaker, now) = open();
        let later = now + seconds(1);
        breaker.failed(later, 9, false, false);
        assert_eq!(breaker.admission(later), Admission::Probe);
        breaker.probing(later);
        breaker.failed(later, 10, false, false);
        let next = later + seconds(1);
        assert_eq!(breaker.admission(later), Admission::Until(next));
        breaker.probe_dropped();
        assert_eq!(breaker.admission(next), Admission::Probe);
    }

    #[test]
    fn a_probe_that_takes_long_keeps_it_from_being_abandoned_and_others_follow() {
        let (mut breaker, now) = open();
        breaker.probing(now + seconds(1));
        assert_eq!(breaker.admission(now + seconds(2)), Admission::Probe);
        let end = now + PATIENCE;
        assert!(matches!(breaker.admission(end), Admission::Until(_)));
        breaker.failed(end, 1, false, true);
        assert_eq!(breaker.admission(end), Admission::Abandon);
    }

    #[test]
    fn an_answer_closes_it_and_the_next_pause_is_short_again() {
        let (mut breaker, now) = open();
        for probe in 1..6 {
            breaker.probing(now + seconds(probe * 40));
            breaker.failed(now + seconds(probe * 40), 1, false, true);
        }
        breaker.answered();
        assert_eq!(breaker.admission(now + seconds(250)), Admission::Open);
        for task in 0..8 {
            breaker.failed(now + seconds(250), task, false, false);
        }
        let next = now + seconds(251);
        assert_eq!(
            breaker.admission(now + seconds(250)),
            Admission::Until(next)
        );
    }

    #[test]
    fn an_agent_that_never_answered_is_waited_for_only_a_while() {
        let (mut breaker, now) = (Breaker::new(PATIENCE), Instant::now());
        for task in 0..8 {
            breaker.failed(now, task, false, false);
        }
        let end = now + PATIENCE / NEVER_ANSWERED;
        assert_eq!(breaker.admission(end - seconds(1)), Admission::Probe);
        assert_eq!(breaker.admission(end), Admission::Abandon);
    }

    #[test]
    fn is_abandoned_after_the_patience_and_can_still_come_back() {
        let (mut breaker, now) = open();
        let end = now + PATIENCE;
        assert_eq!(breaker.admission(end - seconds(1)), Admission::Probe);
        assert_eq!(breaker.admission(end), Admission::Abandon);
        breaker.answered();
        assert_eq!(breaker.admission(end), Admission::Open);
    }

    #[test]
    fn patience_may_be_endless() {
        let (mut breaker, now) = (Breaker::new(Duration::MAX), Instant::now());
        for _ in 0..3 {
            breaker.failed(now, 1, true, false);
        }
        assert_eq!(breaker.admission(now + seconds(1 << 20)), Admission::Probe);
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
                    1 => breaker.failed(now, task, true, false),
                    2 => breaker.failed(now, task, false, false),
                    _ if probing => {
                        breaker.failed(now, task, false, true);
                        probing = false;
                    }
                    _ if breaker.admission(now) == Admission::Probe => {
                        breaker.probing(now);
                        probing = true;
                    }
                    _ => {}
                }
                if let Admission::Until(next) = breaker.admission(now) {
                    prop_assert!(next > now);
                    let is_late = next >= breaker.open_since().map_or(now, |since| since + PATIENCE / 8);
                    prop_assert!(is_late || !matches!(breaker.admission(next), Admission::Until(_)));
                }
            }
        }
    }
}
