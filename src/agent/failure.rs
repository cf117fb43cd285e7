use std::fmt;

/// Why an attempt gave no rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// What happened to what, without secrets.
    pub message: String,
    /// The rollout must not be tried again.
    pub terminal: bool,
}

impl Failure {
    /// A failure that another attempt may mend.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            terminal: false,
        }
    }
}

/// The kinds of failure. What follows from each is decided by its class alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureClass {
    /// The way to the agent or the agent's server: connect, reset, 408, 429, 5xx.
    Infra,
    /// The same request would fail anywhere: other statuses, an answer that is not JSON, no reward.
    Data,
    /// A deadline passed.
    Timeout,
    /// The agent said so, with `_ng_failure_class`.
    AgentFlagged,
    /// The agent asked for the answer to be forgotten, with `_ng_no_persist`.
    NotPersisted,
    /// Cut off by our own shutdown.
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
