//! The calls (HTTP requests) within an attempt at a rollout that rollstream runs itself.
//!
//! A [`CallLog`] knows every call of an attempt before it is sent, and becomes rows of the table `calls`. A [`Target`] is a
//! server that calls go to, and a [`CookieJar`] keeps what servers set. Models, environments and agents use them.

#[cfg(test)]
pub(crate) mod scripted;
mod target;

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::retry::{Failure, FailureClass};

pub use target::{CookieJar, Post, Posted, Target};

/// An attempt at a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RolloutKey {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within the task.
    pub rollout_index: i64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
}

impl RolloutKey {
    /// Creates the key of attempt `attempt` (from 0) at a rollout.
    pub fn new(task_index: i64, rollout_index: i64, attempt: u32) -> Self {
        Self {
            task_index,
            rollout_index,
            attempt,
        }
    }
}

/// Prints task and rollout as in `rollout_ids`, without the attempt.
impl fmt::Display for RolloutKey {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}-{}", self.task_index, self.rollout_index)
    }
}

/// The purpose of a call within an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Opens a session at a resources server.
    SeedSession,
    /// Asks a model for a generation.
    Model,
    /// Calls a tool.
    Tool,
    /// Begins an episode of an environment.
    Reset,
    /// Takes a step of an environment.
    Step,
    /// Scores an answer.
    Verify,
    /// Ends an episode of an environment.
    Close,
    /// Asks a model to score an answer.
    Judge,
}

impl CallKind {
    /// Every kind, in the order of its number in the journal.
    pub const ALL: [Self; 8] = [
        Self::SeedSession,
        Self::Model,
        Self::Tool,
        Self::Reset,
        Self::Step,
        Self::Verify,
        Self::Close,
        Self::Judge,
    ];

    /// Returns the name of the kind in the `kind` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::SeedSession => "seed_session",
            Self::Model => "model",
            Self::Tool => "tool",
            Self::Reset => "reset",
            Self::Step => "step",
            Self::Verify => "verify",
            Self::Close => "close",
            Self::Judge => "judge",
        }
    }
}

/// The data of a call that is known before it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallStart {
    /// Number of the call within the attempt, from 0.
    pub call: u32,
    /// The number of the call's turn, from 1; 0 before the first turn.
    pub turn: u32,
    /// What it is for.
    pub kind: CallKind,
    /// Number of the retry, from 1; 0 for the first try.
    pub retry: u32,
    /// The time at which the call is sent.
    pub started_at: SystemTime,
}

/// A call within an attempt: a row of `calls`.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    /// The data that was known before the call was sent.
    pub start: CallStart,
    /// The model, tool or task name; none if the collector ended before it noted the name.
    pub name: Option<Arc<str>>,
    /// The method and the address, without secrets; none if the collector ended before it noted them.
    pub address: Option<Arc<str>>,
    /// The end of the call; none if the collector ended first.
    pub end: Option<CallEnd>,
}

/// The end of a call within an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallEnd {
    /// The class of the failure; none if the call succeeded.
    pub failure: Option<FailureClass>,
    /// The status code, if there was an HTTP response.
    pub http_status: Option<u16>,
    /// The error text.
    pub error: Option<String>,
    /// The time from the request to the last byte of the answer.
    pub elapsed: Duration,
    /// The tokens of the input, if the answer says.
    pub input_tokens: Option<u64>,
    /// The tokens of the output, if the answer says.
    pub output_tokens: Option<u64>,
    /// Bytes of the request.
    pub request_bytes: u64,
    /// Bytes of the answer.
    pub response_bytes: u64,
}

/// Notes calls before they are sent, so that they are known even if this process dies.
pub trait CallJournal: Debug + Send + Sync {
    /// Notes a call that is about to be sent.
    ///
    /// # Errors
    /// The call could not be noted, and must not be sent.
    fn note(&self, key: &RolloutKey, start: &CallStart) -> Result<(), String>;
}

/// The calls of one attempt. The code that runs the attempt and the code that waits for it share the log, so that its rows
/// survive if the attempt is cut off.
#[derive(Debug, Clone)]
pub struct CallLog {
    key: RolloutKey,
    journal: Option<Arc<dyn CallJournal>>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    rows: Vec<CallRow>,
    /// Whether the rows were taken: a call that began now would have no row.
    closed: bool,
}

/// A call that is about to be sent, for its row.
#[derive(Debug, Clone)]
pub struct CallSpec {
    /// Number of the turn, from 1; 0 before the first.
    pub turn: u32,
    /// What it is for.
    pub kind: CallKind,
    /// The model, tool or task name.
    pub name: Arc<str>,
    /// The number of the retry, from 1, and of the first try's call; none for a first try.
    pub repeats: Option<(u32, u32)>,
}

impl CallSpec {
    /// Creates the first try of a call.
    pub fn new(turn: u32, kind: CallKind, name: Arc<str>) -> Self {
        Self {
            turn,
            kind,
            name,
            repeats: None,
        }
    }

    /// Returns the next retry of the call after its try `before`.
    pub fn again(&self, before: &OpenCall) -> Self {
        let retry = self.repeats.map_or(0, |(retry, _)| retry);
        let first = self.repeats.map_or(before.call, |(_, first)| first);
        Self {
            repeats: Some((retry + 1, first)),
            ..self.clone()
        }
    }
}

impl CallLog {
    /// Creates an empty log of an attempt.
    pub fn new(key: RolloutKey, journal: Option<Arc<dyn CallJournal>>) -> Self {
        Self {
            key,
            journal,
            calls: Arc::default(),
        }
    }

    /// Returns the attempt.
    pub fn key(&self) -> RolloutKey {
        self.key
    }

    /// Begins a call; it may be sent when this returns.
    ///
    /// # Errors
    /// The journal could not note it, or the attempt is over.
    pub fn begin(&self, call: &CallSpec, address: &Arc<str>) -> Result<OpenCall, Failure> {
        let mut calls = self.calls();
        if calls.closed {
            let why = "a call was not sent, since its attempt is over";
            return Err(Failure::new(FailureClass::Interrupted, why));
        }
        let start = CallStart {
            call: u32::try_from(calls.rows.len()).unwrap_or(u32::MAX),
            turn: call.turn,
            kind: call.kind,
            retry: call.repeats.map_or(0, |(retry, _)| retry),
            started_at: SystemTime::now(),
        };
        if let Some(journal) = &self.journal
            && let Err(why) = journal.note(&self.key, &start)
        {
            let why = format!("a call was not sent, since it could not be noted: {why}");
            return Err(Failure::new(FailureClass::Interrupted, why));
        }
        calls.rows.push(CallRow {
            start,
            name: Some(Arc::clone(&call.name)),
            address: Some(Arc::clone(address)),
            end: None,
        });
        Ok(OpenCall {
            log: self.clone(),
            call: start.call,
            repeats: call.repeats,
        })
    }

    /// Returns the starts of all calls so far.
    pub fn starts(&self) -> Vec<CallStart> {
        self.calls().rows.iter().map(|call| call.start).collect()
    }

    /// Takes all calls so far. No other can begin afterwards, even if the attempt has not noticed yet that it is over.
    pub fn take(&self) -> Vec<CallRow> {
        let mut calls = self.calls();
        calls.closed = true;
        // A call for several attempts still reads its end from the log: see [`OpenCall::ended`].
        calls.rows.clone()
    }

    /// Returns whether the calls were taken, so that no other can begin.
    pub fn is_closed(&self) -> bool {
        self.calls().closed
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that was begun. If it is dropped, its end stays unknown. A clone is the same call.
#[derive(Debug, Clone)]
pub struct OpenCall {
    log: CallLog,
    call: u32,
    repeats: Option<(u32, u32)>,
}

impl OpenCall {
    /// Returns the request's identity, for the header `x-request-id`.
    pub fn request_id(&self) -> String {
        let RolloutKey {
            task_index,
            rollout_index,
            attempt,
        } = self.log.key;
        let call = self.repeats.map_or(self.call, |(_, first)| first);
        let retry = match self.repeats {
            Some((retry, _)) => format!("-t{retry}"),
            None => String::new(),
        };
        format!("{task_index}-{rollout_index}-a{attempt}-c{call}{retry}")
    }

    /// Notes the end of the call.
    pub fn end(&self, end: CallEnd) {
        let mut calls = self.log.calls();
        if let Some(call) = calls.rows.get_mut(self.call as usize) {
            call.end = Some(end);
        }
    }

    /// Returns the end of the call, if it has ended.
    pub fn ended(&self) -> Option<CallEnd> {
        let calls = self.log.calls();
        calls.rows.get(self.call as usize)?.end.clone()
    }

    /// Adds the token counts of the answer.
    pub fn used(&self, input_tokens: Option<u64>, output_tokens: Option<u64>) {
        let mut calls = self.log.calls();
        let call = calls.rows.get_mut(self.call as usize);
        if let Some(end) = call.and_then(|call| call.end.as_mut()) {
            end.input_tokens = input_tokens;
            end.output_tokens = output_tokens;
        }
    }

    /// Notes that a whole answer can't be used.
    pub fn refuse(&self, failure: &Failure) {
        let mut calls = self.log.calls();
        let call = calls.rows.get_mut(self.call as usize);
        if let Some(end) = call.and_then(|call| call.end.as_mut()) {
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
        let log = CallLog::new(key, None);
        let address: Arc<str> = "POST http://a".into();
        let call = CallSpec::new(1, CallKind::Model, "m".into());
        let first = log.begin(&call, &address).unwrap();
        let again = call.again(&first);
        let second = log.begin(&again, &address).unwrap();
        let third = log.begin(&again.again(&second), &address).unwrap();
        let tool = CallSpec::new(1, CallKind::Tool, "add".into());
        let tool = log.begin(&tool, &address).unwrap();
        let ids = [&first, &second, &third, &tool].map(OpenCall::request_id);
        assert_eq!(
            ids,
            ["3-1-a2-c0", "3-1-a2-c0-t1", "3-1-a2-c0-t2", "3-1-a2-c3"]
        );
        second.end(CallEnd {
            http_status: Some(200),
            ..CallEnd::default()
        });
        second.used(Some(7), None);
        let calls = log.take();
        let ended: Vec<_> = calls.iter().map(|call| call.end.is_some()).collect();
        assert_eq!(ended, [false, true, false, false]);
        assert_eq!(calls[1].end.as_ref().unwrap().input_tokens, Some(7));
        assert_eq!(calls[2].start.retry, 2);
    }

    #[test]
    fn nothing_begins_after_the_rows_were_taken_and_ends_are_still_known() {
        let log = CallLog::new(RolloutKey::default(), None);
        let call = CallSpec::new(1, CallKind::Step, "e".into());
        let open = log.begin(&call, &"POST http://a".into()).unwrap();
        assert!(!log.is_closed());
        assert_eq!(log.take().len(), 1);
        assert!(log.is_closed());
        let failure = log.begin(&call, &"POST http://a".into()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Interrupted);
        open.end(CallEnd {
            http_status: Some(503),
            ..CallEnd::default()
        });
        assert_eq!(open.ended().unwrap().http_status, Some(503));
    }

    #[test]
    fn what_cannot_be_noted_is_not_sent() {
        #[derive(Debug)]
        struct Full;
        impl CallJournal for Full {
            fn note(&self, _: &RolloutKey, _: &CallStart) -> Result<(), String> {
                Err("the disk is full".into())
            }
        }
        let log = CallLog::new(RolloutKey::default(), Some(Arc::new(Full)));
        let call = CallSpec::new(0, CallKind::Reset, "e".into());
        let failure = log.begin(&call, &"POST http://a".into()).unwrap_err();
        assert_eq!(failure.class, FailureClass::Interrupted);
        assert!(failure.message.contains("the disk is full"), "{failure:?}");
        assert!(log.take().is_empty());
    }
}
