//! [`Failure`] and [`FailureClass`]: why an attempt failed.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// What failed and how, without secrets.
    pub message: String,
    /// Whether the agent asked for no further attempt.
    pub failure_terminal: bool,
    /// How long the server asked callers to wait (`Retry-After`).
    pub retry_after: Option<Duration>,
    /// Status code of the HTTP request that failed, if there was one.
    pub http_status: Option<u16>,
    /// Whether no connection was made. Then the request cannot be the cause.
    pub unreachable: bool,
    /// The answer as JSON: whole if the agent flagged it; the beginning of an HTTP error's body, as a JSON string.
    /// Valid UTF-8.
    pub answer: Option<Bytes>,
}

impl Failure {
    /// The longest message, in bytes. Every attempt stores one, and servers may send any amount.
    pub const LONGEST_MESSAGE: usize = 1500;

    /// A failure that may be retried. The message is cut at [`Self::LONGEST_MESSAGE`].
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

/// The kinds of failure. Class and HTTP status alone decide what a failure counts against
/// ([`Budget`](super::Budget)):
///
/// | what happened | class | budget |
/// |---|---|---|
/// | no connection | `infra` | none: the circuit breaker waits for the agent |
/// | reset, closed before or within the answer | `infra` | infra |
/// | 408, 500 to 599 | `infra` | infra |
/// | 429 | `infra` | rate limit |
/// | a deadline passed | `timeout` | infra |
/// | any other status but 200, a redirect that is not followed | `data` | data |
/// | an answer of more than 256 headers or 64 KiB of them (100 and 400 KiB over TLS or a proxy) | `data` | data |
/// | 200, but not JSON, not UTF-8, too large, no reward | `data` | data |
/// | `_ng_failure_class` | `agent_flagged` | attempts |
/// | `_ng_no_persist` | `not_persisted` | none: a resume tries again |
/// | cut off when this process ended | `interrupted` | none: a resume tries again |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// The network or the server failed.
    Infra,
    /// The request itself is the likely cause: it would fail anywhere.
    Data,
    /// A deadline passed.
    Timeout,
    /// The agent reported a failure, with `_ng_failure_class`.
    AgentFlagged,
    /// The agent asked for its answer to be forgotten, with `_ng_no_persist`.
    NotPersisted,
    /// This process ended before the attempt did.
    Interrupted,
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

    /// The class that a row of `attempts` names in its `outcome` column.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class of an HTTP status that is not 200.
    pub fn of_status(status: u16) -> Self {
        match status {
            408 | 429 | 500..=599 => Self::Infra,
            _ => Self::Data,
        }
    }

    /// Whether the network or a server is the cause, so that the same request may succeed later or elsewhere.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Infra | Self::Timeout)
    }

    /// Whether the agent answered, though without a result: it is alive.
    pub fn is_answered(self) -> bool {
        matches!(self, Self::AgentFlagged | Self::NotPersisted)
    }

    /// Whether the failure says nothing about the rollout: it stays pending, and nothing is counted.
    pub fn leaves_pending(self) -> bool {
        matches!(self, Self::NotPersisted | Self::Interrupted)
    }

    /// Returns its name, as the `outcome` column spells it.
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

/// Returns NeMo Gym's failure class of an attempt without an answer: `agent_run_error` if the agent's server ran it,
/// `agent_request_failed` if the request did not reach it, by the HTTP status.
pub fn gym_class(http_status: Option<i64>) -> &'static str {
    match http_status {
        None | Some(429 | 502 | 503 | 504) => "agent_request_failed",
        Some(_) => "agent_run_error",
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
    fn statuses_that_a_retry_may_mend_are_infra() {
        let infra: Vec<u16> = (100..600)
            .filter(|status| FailureClass::of_status(*status) == FailureClass::Infra)
            .collect();
        let expected: Vec<u16> = [408, 429].into_iter().chain(500..600).collect();
        assert_eq!(infra, expected);
    }
}
