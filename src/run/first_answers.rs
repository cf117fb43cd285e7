use std::collections::HashSet;

use crate::agent::Reply;
use crate::retry::FailureClass;

/// This many first answers that fail in the same way are enough; fewer if the agent has fewer rollouts.
const ENOUGH: u64 = 20;

/// This many are reason to look whether other tasks fail, too.
const SUSPICIOUS: u64 = 3;

/// The HTTP status of a key that is missing or wrong.
const UNAUTHORIZED: u16 = 401;

/// They must be of this many tasks: fewer tasks may be what is wrong.
const TASKS: usize = 8;

/// The first answers of an agent. If all of them fail as `data` with the same status, then the agent can't work as it
/// is configured.
#[derive(Debug)]
pub(super) struct FirstAnswers {
    enough: u64,
    count: u64,
    tasks: HashSet<i64>,
    http_status: Option<u16>,
    /// Whether a retry must have failed, too: the first answers may fail only because they are the first.
    needs_retry: bool,
    /// Whether an answer was good, or failed in another way.
    do_differ: bool,
}

impl FirstAnswers {
    /// Creates the record of an agent that has this many rollouts. `has_retries`: it gets another call after a failure.
    pub(super) fn of(rollouts: u64, has_retries: bool) -> Self {
        Self {
            enough: rollouts.min(ENOUGH),
            count: 0,
            tasks: HashSet::new(),
            http_status: None,
            needs_retry: has_retries,
            do_differ: false,
        }
    }

    /// Returns whether the agent may be unable to work, but too few answers failed to tell.
    pub(super) fn are_suspicious(&self) -> bool {
        let are_enough = self.count >= self.enough && self.tasks.len() >= TASKS;
        !self.do_differ && self.count >= SUSPICIOUS && !are_enough
    }

    /// Notes a reply to a task; `is_first` unless its rollout had failed before. Returns the number of first answers that
    /// failed, if that is enough: all answers, and more than half of the `sent` first calls. Good answers may take
    /// longer.
    pub(super) fn add(
        &mut self,
        task_index: i64,
        is_first: bool,
        sent: u64,
        reply: &Reply,
    ) -> Option<u64> {
        let class = reply.result.as_ref().err().map(|failure| failure.class);
        let is_bad = class == Some(FailureClass::Data);
        let is_answer = is_bad || class.is_none_or(FailureClass::is_answered);
        if self.do_differ || !is_answer {
            return None;
        }
        let status = reply.http_status;
        self.do_differ = !is_bad || self.count > 0 && self.http_status != status;
        if self.do_differ {
            return None;
        }
        if is_first {
            self.http_status = status;
            self.tasks.insert(task_index);
            self.count += 1;
        } else {
            self.needs_retry = false;
        }
        // A key that is refused is wrong for every task and every retry.
        let is_unauthorized = status == Some(UNAUTHORIZED);
        let enough = if is_unauthorized {
            self.enough.min(SUSPICIOUS)
        } else {
            self.enough
        };
        let is_general = self.tasks.len() >= TASKS && !self.needs_retry;
        let are_enough = self.count >= enough && self.count > sent / 2;
        (are_enough && (is_general || is_unauthorized)).then_some(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::Failure;

    fn reply(class: FailureClass, http_status: u16) -> Reply {
        Reply {
            http_status: Some(http_status),
            ..Reply::new(Err(Failure::new(class, "")))
        }
    }

    /// The number of answers after which the agent is abandoned, if the first `answers` of its 168 rollouts are these
    /// and `in_flight` are in flight.
    fn abandoned(answers: u64, in_flight: u64, of: impl Fn(u64) -> Reply) -> Option<u64> {
        let mut first = FirstAnswers::of(168, true);
        let mut answers = 0..answers;
        answers.find_map(|n| both(&mut first, n as i64, (n + in_flight).min(168), &of(n)))
    }

    /// Notes the same reply to a first call and to a retry.
    fn both(first: &mut FirstAnswers, task: i64, sent: u64, reply: &Reply) -> Option<u64> {
        let found = first.add(task, true, sent, reply);
        found.or_else(|| first.add(task, false, sent, reply))
    }

    #[test]
    fn twenty_answers_that_fail_in_the_same_way_are_enough() {
        let bad = |_| reply(FailureClass::Data, 400);
        assert_eq!(abandoned(100, 1, bad), Some(20));
        assert_eq!(abandoned(100, 168, bad), Some(85));
        let mut few = FirstAnswers::of(9, true);
        let answers = (0..9).filter_map(|task| both(&mut few, task, 9, &bad(0)));
        assert_eq!(answers.collect::<Vec<_>>(), [9]);
        let mut one = FirstAnswers::of(100, true);
        assert!((0..100).all(|sent| both(&mut one, 7, sent, &bad(0)).is_none()));
    }

    #[test]
    fn a_refused_key_is_found_at_once() {
        let refused = |_| reply(FailureClass::Data, 401);
        assert_eq!(abandoned(100, 1, refused), Some(3));
        let mut few = FirstAnswers::of(2, true);
        let answers = (0..2).filter_map(|task| few.add(task, true, 2, &refused(0)));
        assert_eq!(answers.collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_retry_that_succeeds_is_proof_that_the_agent_can_work() {
        let bad = reply(FailureClass::Data, 400);
        let mut first = FirstAnswers::of(168, true);
        assert!((0..100).all(|task| first.add(task, true, 100, &bad).is_none()));
        let flagged = reply(FailureClass::AgentFlagged, 200);
        assert_eq!(first.add(0, false, 100, &flagged), None);
        assert_eq!(both(&mut first, 101, 100, &bad), None);
        let mut once = FirstAnswers::of(168, false);
        let found = (0..100).find_map(|task| once.add(task, true, 20, &bad));
        assert_eq!(found, Some(20));
    }

    #[test]
    fn one_other_answer_is_proof_that_the_agent_can_work() {
        for other in [FailureClass::Data, FailureClass::AgentFlagged] {
            let of = |n| match n {
                3 => reply(other, 200),
                _ => reply(FailureClass::Data, 400),
            };
            assert_eq!(abandoned(168, 1, of), None);
        }
        let of = |n| match n % 3 {
            0 => reply(FailureClass::Infra, 500),
            _ => reply(FailureClass::Data, 400),
        };
        assert_eq!(abandoned(100, 1, of), Some(20));
    }
}
