//! The settings that one agent lives by: [`Profile`], what is for all and what is its own in one.

use std::sync::Arc;
use std::time::Duration;

use super::config::{AgentConfig, OverCapacity, SimConfig};
use super::fault::{FaultAt, FaultRates};
use super::latency::Latency;

/// The settings that one agent lives by.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub(super) seed: u64,
    pub(super) latency: Latency,
    pub(super) difficulty: f64,
    pub(super) difficulty_spread: f64,
    pub(super) input_tokens: (f64, f64),
    pub(super) output_tokens: (f64, f64),
    pub(super) faults: FaultRates,
    pub(super) fault_at: Arc<[FaultAt]>,
    pub(super) fault_attempts: Option<u64>,
    pub(super) slow_first_byte: Duration,
    /// Size of the whole answer, in bytes.
    pub body_size: usize,
    /// The answer repeats the row.
    pub echo: bool,
    /// What a 429 or a 503 asks for.
    pub retry_after: Duration,
    /// Rollouts at a time.
    pub capacity: Option<usize>,
    /// What happens to a request beyond the capacity.
    pub over_capacity: OverCapacity,
    /// Turns of the model.
    pub(super) turns: Option<u64>,
    /// Tokens of a prompt and its answer.
    pub(super) context_window: Option<u64>,
}

impl Profile {
    /// The profile of the agent called `agent`; a name that is not configured has the settings
    /// that are for all.
    pub fn new(config: &SimConfig, agent: &str) -> Self {
        let own = config.agents.get(agent).cloned().unwrap_or_default();
        Self::with(config, own)
    }

    /// The profile of an agent or server that has these settings of its own.
    pub(super) fn with(config: &SimConfig, own: AgentConfig) -> Self {
        Self {
            seed: config.seed,
            latency: own.latency.unwrap_or(config.latency),
            difficulty: own.difficulty.unwrap_or(config.difficulty),
            difficulty_spread: config.difficulty_spread,
            input_tokens: (config.input_tokens, config.input_tokens_spread),
            output_tokens: (config.output_tokens, config.output_tokens_spread),
            faults: own.faults.unwrap_or_else(|| config.faults.clone()),
            fault_at: own
                .fault_at
                .unwrap_or_else(|| config.fault_at.clone())
                .into(),
            fault_attempts: own.fault_attempts.or(config.fault_attempts),
            slow_first_byte: config.slow_first_byte,
            body_size: own.body_size.unwrap_or(config.body_size),
            echo: config.echo,
            retry_after: config.retry_after,
            capacity: own.capacity.or(config.capacity),
            over_capacity: own.over_capacity.unwrap_or(config.over_capacity),
            turns: config.turns,
            context_window: config.context_window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{Key, RowDifficulty, oracle};
    use super::*;

    #[test]
    fn an_agent_has_its_own_settings_over_those_for_all() {
        let mut config = SimConfig {
            capacity: Some(8),
            ..SimConfig::default()
        };
        let own = AgentConfig {
            latency: Some(Latency::Fixed(Duration::from_millis(7))),
            capacity: Some(1),
            ..AgentConfig::default()
        };
        config.agents.insert("own".into(), own);
        let plan = |agent| {
            Profile::new(&config, agent).plan(
                Key {
                    task: 0,
                    rollout: 0,
                    attempt: 0,
                },
                RowDifficulty::Medium,
            )
        };
        assert_eq!(plan("own").latency, Duration::from_millis(7));
        assert_eq!(plan("sim"), oracle(&config, 0, 0, 0));
        assert_eq!(Profile::new(&config, "own").capacity, Some(1));
        assert_eq!(Profile::new(&config, "sim").capacity, Some(8));
    }
}
