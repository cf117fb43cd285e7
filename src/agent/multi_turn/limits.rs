use std::time::Duration;

/// How far a sample may go.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Turns at most.
    pub max_turns: u32,
    /// Tokens of a log, from which on it is full.
    pub max_seq_len: u64,
    /// The longest time of a generation, repetitions included.
    pub generation_timeout: Option<Duration>,
    /// The longest time of an environment's step.
    pub step_timeout: Option<Duration>,
}
