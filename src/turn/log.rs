use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::{RolloutKey, Turn, TurnEnd, TurnKind, TurnStart};
use crate::retry::{Failure, FailureClass};

/// Who notes calls before they are sent, so that they are known whatever becomes of this process.
pub trait TurnJournal: Debug + Send + Sync {
    /// Notes a call that is about to be sent.
    ///
    /// # Errors
    /// It could not be noted, and must not be sent.
    fn note(&self, key: &RolloutKey, start: &TurnStart) -> Result<(), String>;
}

/// The calls of one attempt. Who runs the attempt and who waits for it hold the same log, so that
/// its rows are there if the attempt is cut off.
#[derive(Debug, Clone)]
pub struct TurnLog {
    key: RolloutKey,
    journal: Option<Arc<dyn TurnJournal>>,
    turns: Arc<Mutex<Turns>>,
}

#[derive(Debug, Default)]
struct Turns {
    rows: Vec<Turn>,
    /// The rows were taken: what would begin now would have none.
    closed: bool,
}

/// A call that is about to be sent, for its row.
#[derive(Debug, Clone)]
pub struct TurnCall {
    /// Number of the turn, from 1; 0 before the first.
    pub turn: u32,
    /// What it is for.
    pub kind: TurnKind,
    /// The model, tool or task name.
    pub name: Arc<str>,
    /// How many times the same call was sent before, and the number that it had then.
    pub repeats: Option<(u32, u32)>,
}

impl TurnCall {
    /// The first try of a call.
    pub fn new(turn: u32, kind: TurnKind, name: Arc<str>) -> Self {
        Self {
            turn,
            kind,
            name,
            repeats: None,
        }
    }

    /// The same call once more, after `before`.
    pub fn again(&self, before: &OpenTurn) -> Self {
        let repetition = self.repeats.map_or(0, |(repetition, _)| repetition);
        let first = self.repeats.map_or(before.call, |(_, first)| first);
        Self {
            repeats: Some((repetition + 1, first)),
            ..self.clone()
        }
    }
}

impl TurnLog {
    /// An empty log of an attempt.
    pub fn new(key: RolloutKey, journal: Option<Arc<dyn TurnJournal>>) -> Self {
        Self {
            key,
            journal,
            turns: Arc::default(),
        }
    }

    /// The attempt.
    pub fn key(&self) -> RolloutKey {
        self.key
    }

    /// Begins a call; it may be sent when this returns.
    ///
    /// # Errors
    /// The journal could not note it, or the attempt is over.
    pub fn begin(&self, call: &TurnCall, address: &Arc<str>) -> Result<OpenTurn, Failure> {
        let mut turns = self.turns();
        if turns.closed {
            let why = "a call was not sent, since its attempt is over";
            return Err(Failure::new(FailureClass::Interrupted, why));
        }
        let start = TurnStart {
            call: u32::try_from(turns.rows.len()).unwrap_or(u32::MAX),
            turn: call.turn,
            kind: call.kind,
            repetition: call.repeats.map_or(0, |(repetition, _)| repetition),
            started_at: SystemTime::now(),
        };
        if let Some(journal) = &self.journal
            && let Err(why) = journal.note(&self.key, &start)
        {
            let why = format!("a call was not sent, since it could not be noted: {why}");
            return Err(Failure::new(FailureClass::Interrupted, why));
        }
        turns.rows.push(Turn {
            start,
            name: Some(Arc::clone(&call.name)),
            address: Some(Arc::clone(address)),
            end: None,
        });
        Ok(OpenTurn {
            log: self.clone(),
            call: start.call,
            repeats: call.repeats,
        })
    }

    /// Keys and starts of all calls so far.
    pub fn starts(&self) -> Vec<TurnStart> {
        self.turns().rows.iter().map(|turn| turn.start).collect()
    }

    /// All calls so far. No other can begin afterwards, though who runs the attempt may not know yet
    /// that it is over.
    pub fn take(&self) -> Vec<Turn> {
        let mut turns = self.turns();
        turns.closed = true;
        // A call of several attempts at once asks here how it ended: see [`OpenTurn::ended`].
        turns.rows.clone()
    }

    /// The calls were taken, and no other can begin.
    pub fn is_closed(&self) -> bool {
        self.turns().closed
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that was begun. If it is dropped, nobody saw its end. A copy is the same call.
#[derive(Debug, Clone)]
pub struct OpenTurn {
    log: TurnLog,
    call: u32,
    repeats: Option<(u32, u32)>,
}

impl OpenTurn {
    /// The request's identity, for the header `x-request-id`.
    pub fn request_id(&self) -> String {
        let RolloutKey {
            task_index,
            rollout_index,
            attempt,
        } = self.log.key;
        let call = self.repeats.map_or(self.call, |(_, first)| first);
        let repetition = match self.repeats {
            Some((repetition, _)) => format!("-t{repetition}"),
            None => String::new(),
        };
        format!("{task_index}-{rollout_index}-a{attempt}-c{call}{repetition}")
    }

    /// Notes how it ended.
    pub fn end(&self, end: TurnEnd) {
        let mut turns = self.log.turns();
        if let Some(turn) = turns.rows.get_mut(self.call as usize) {
            turn.end = Some(end);
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<TurnEnd> {
        let turns = self.log.turns();
        turns.rows.get(self.call as usize)?.end.clone()
    }

    /// Adds what the answer says of tokens, once it was read.
    pub fn used(&self, input_tokens: Option<u64>, output_tokens: Option<u64>) {
        let mut turns = self.log.turns();
        let turn = turns.rows.get_mut(self.call as usize);
        if let Some(end) = turn.and_then(|turn| turn.end.as_mut()) {
            end.input_tokens = input_tokens;
            end.output_tokens = output_tokens;
        }
    }

    /// Notes that an answer that came whole can't be used.
    pub fn refuse(&self, failure: &Failure) {
        let mut turns = self.log.turns();
        let turn = turns.rows.get_mut(self.call as usize);
        if let Some(end) = turn.and_then(|turn| turn.end.as_mut()) {
            end.failure = Some(failure.class);
            end.error = Some(failure.message.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_row_and_a_name_of_its_own() {
        let key = RolloutKey {
            task_index: 3,
            rollout_index: 1,
            attempt: 2,
        };
        let log = TurnLog::new(key, None);
        let address: Arc<str> = "POST http://a".into();
        let call = TurnCall::new(1, TurnKind::Model, "m".into());
        let first = log.begin(&call, &address).unwrap();
        let again = call.again(&first);
        let second = log.begin(&again, &address).unwrap();
        let third = log.begin(&again.again(&second), &address).unwrap();
        let tool = TurnCall::new(1, TurnKind::Tool, "add".into());
        let tool = log.begin(&tool, &address).unwrap();
        let ids = [&first, &second, &third, &tool].map(OpenTurn::request_id);
        assert_eq!(
            ids,
            ["3-1-a2-c0", "3-1-a2-c0-t1", "3-1-a2-c0-t2", "3-1-a2-c3"]
        );
        second.end(TurnEnd {
            http_status: Some(200),
            ..TurnEnd::default()
        });
        second.used(Some(7), None);
        let turns = log.take();
        let ended: Vec<_> = turns.iter().map(|turn| turn.end.is_some()).collect();
        assert_eq!(ended, [false, true, false, false]);
        assert_eq!(turns[1].end.as_ref().unwrap().input_tokens, Some(7));
        assert_eq!(turns[2].start.repetition, 2);
    }

    #[test]
    fn nothing_begins_after_the_rows_were_taken_and_ends_are_still_known() {
        let log = TurnLog::new(RolloutKey::default(), None);
        let call = TurnCall::new(1, TurnKind::Step, "e".into());
        let open = log.begin(&call, &"POST http://a".into()).unwrap();
        assert!(!log.is_closed());
        assert_eq!(log.take().len(), 1);
        assert!(log.is_closed());
        let failure = log.begin(&call, &"POST http://a".into()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Interrupted);
        open.end(TurnEnd {
            http_status: Some(503),
            ..TurnEnd::default()
        });
        assert_eq!(open.ended().unwrap().http_status, Some(503));
    }

    #[test]
    fn what_cannot_be_noted_is_not_sent() {
        #[derive(Debug)]
        struct Full;
        impl TurnJournal for Full {
            fn note(&self, _: &RolloutKey, _: &TurnStart) -> Result<(), String> {
                Err("the disk is full".into())
            }
        }
        let log = TurnLog::new(RolloutKey::default(), Some(Arc::new(Full)));
        let call = TurnCall::new(0, TurnKind::Reset, "e".into());
        let failure = log.begin(&call, &"POST http://a".into()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Interrupted);
        assert!(failure.message.contains("the disk is full"), "{failure:?}");
        assert!(log.take().is_empty());
    }
}
