use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// Why an attempt gave no rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// What happened to what, without secrets.
    pub message: String,
    /// The agent said never again.
    pub failure_terminal: bool,
    /// How long the agent asked to be left alone.
    pub retry_after: Option<Duration>,
    /// Status code of the call within the attempt that failed, where it was one.
    pub http_status: Option<u16>,
    /// No connection came about: nothing that was asked can be the cause.
    pub unreachable: bool,
    /// What was answered, as JSON: the whole of it where the agent flagged it; of an HTTP error its beginning, as a text.
    /// Valid UTF-8.
    pub answer: Option<Bytes>,
}

impl Failure {
    /// Bytes that a message may have: what others say can be of any length, and a row has one for each attempt.
    pub const LONGEST_MESSAGE: usize = 1500;

    /// A failure that another attempt may mend. A message that is too long loses its end.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(Self::LONGEST_MESSAGE));
        Self {
            class,
            message,
            failure_terminal: false,
            retry_after: None,
            http_status: None,
            unreachable: false,
            answer: None,
        }
    }
}

/// The kinds of failure. What follows from each is decided by its class and status alone:
///
/// | what happened | class | budget |
/// |---|---|---|
/// | no connection | `infra` | none: the agent is waited for |
/// | reset, closed before or within the answer | `infra` | infra |
/// | 408, 500 to 599 | `infra` | infra |
/// | 429 | `infra` | rate limit |
/// | a deadline passed | `timeout` | infra |
/// | any other status but 200, a redirect that is not followed | `data` | data |
/// | an answer of more than 256 headers or 64 KiB of them (100 and 400 KiB over TLS or a proxy) | `data` | data |
/// | 200, but not JSON, not UTF-8, too large, no reward | `data` | data |
/// | `_ng_failure_class` | `agent_flagged` | attempts |
/// | `_ng_no_persist` | `not_persisted` | none: pending again, by a resume |
/// | cut off by our own end | `interrupted` | none: pending again, by a resume |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// The way to the agent, or the agent's server.
    Infra,
    /// The same request would fail anywhere.
    Data,
    /// A deadline passed.
    Timeout,
    /// The agent said so, with `_ng_failure_class`.
    AgentFlagged,
    /// The agent asked for the answer to be forgotten, with `_ng_no_persist`.
    NotPersisted,
    /// Cut off by our own shutdown or crash.
    Interrupted,
}

/// What a failed attempt counts against. A rollout is given up when one of its budgets is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Budget {
    /// Failures of networks and servers.
    Infra,
    /// Refusals by a rate limit: the agent is well, and only asks to be asked later.
    RateLimit,
    /// Failures that the request itself seems to cause.
    Data,
    /// Failures that the agent reported: NeMo Gym's attempts.
    Attempts,
}

impl Budget {
    /// The budget that a failure counts against, if any.
    pub fn of(class: FailureClass, http_status: Option<u16>) -> Option<Self> {
        match (class, http_status) {
            (FailureClass::Infra, Some(429)) => Some(Self::RateLimit),
            (FailureClass::Infra | FailureClass::Timeout, _) => Some(Self::Infra),
            (FailureClass::Data, _) => Some(Self::Data),
            (FailureClass::AgentFlagged, _) => Some(Self::Attempts),
            (FailureClass::NotPersisted | FailureClass::Interrupted, _) => None,
        }
    }
}

impl FailureClass {
    /// Every class.
    pub const ALL: [Self; 6] = [
        Self::Infra,
        Self::Data,
        Self::Timeout,
        Self::AgentFlagged,
        Self::NotPersisted,
        Self::Interrupted,
    ];

    /// The class of an HTTP status that is not 200.
    pub fn of_status(status: u16) -> Self {
        match status {
            408 | 429 | 500..=599 => Self::Infra,
            _ => Self::Data,
        }
    }

    /// Its name, as it stands in the `outcome` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Infra => "infra",
            Self::Data => "data",
            Self::Timeout => "timeout",
            Self::AgentFlagged => "agent_flagged",
            Self::NotPersisted => "not_persisted",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Statuses of which NeMo Gym takes the server's surroundings to be the cause.
const AROUND: [i64; 4] = [429, 502, 503, 504];

/// NeMo Gym's class (`_ng_failure_class`) of an attempt that gave no answer: whether its server ran at all.
pub fn gym_class(http_status: Option<i64>) -> &'static str {
    match http_status {
        Some(status) if !AROUND.contains(&status) => "agent_run_error",
        _ => "agent_request_failed",
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_that_another_attempt_may_mend_are_infra() {
        let infra: Vec<u16> = (100..600)
            .filter(|status| FailureClass::of_status(*status) == FailureClass::Infra)
            .collect();
        let expected: Vec<u16> = [408, 429].into_iter().chain(500..600).collect();
        assert_eq!(infra, expected);
    }
}
