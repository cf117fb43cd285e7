//! What a manager is told, and why it has no group for a prompt.

use std::time::Duration;

use super::{GymOptions, Sampling};
use crate::config::GroupFailure;
use crate::error::{Fatal, USAGE};
use crate::retry::{Backoff, Budgets, Failure};

/// Options of a [`RolloutManager`](super::RolloutManager). The defaults are NeMo RL's.
#[derive(Debug, Clone)]
pub struct RolloutOptions {
    /// Rollouts of each prompt; at least 1.
    pub num_generations: usize,
    /// The sampling parameters.
    pub sampling: Sampling,
    /// The most tokens of a conversation. A multi-turn agent cuts observations there; without it, its own setting counts.
    /// A rollout of NeMo Gym with exactly this many is truncated, and answers without token ids are then refused.
    pub max_seq_len: Option<u64>,
    /// The most turns of a multi-turn agent; without it, the agent's own setting counts. NeMo Gym takes none but 1.
    pub max_rollout_turns: Option<u32>,
    /// How answers of NeMo Gym's agents are read.
    pub gym: GymOptions,
    /// Whether a failed rollout fails its group, which is then sent again as a whole. Otherwise the others are kept, and
    /// only the failed ones are sent again.
    pub group: GroupFailure,
    /// The time limit of one try of a group, including the retries of its rows.
    pub group_timeout: Option<Duration>,
    /// The number of failures of network and servers after which a prompt has failed; at least 1.
    pub max_infra_attempts: u32,
    /// The number of failures that the prompt itself seems to cause after which it has failed; at least 1.
    pub max_data_attempts: u32,
    /// The largest number of attempts at a single rollout while the others of its group are kept; at least 1. NeMo RL counts
    /// the attempts of all rows of a group together, and sends the rows in flight again with a failed one: it makes more
    /// calls and fails a group sooner, but the groups that it makes have the same names and values.
    pub max_row_attempts: u32,
    /// The number of prompts that may fail because they seem to cause failures.
    pub max_skipped_prompts: u64,
    /// The number of consecutive prompts that may fail because of network and servers.
    pub max_consecutive_dropped_prompts: u64,
    /// The pause after failures of network and servers; the pause of a single rollout has jitter.
    pub backoff: Backoff,
    /// The most groups in flight in a batch.
    pub max_groups: usize,
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            num_generations: 1,
            sampling: Sampling::default(),
            max_seq_len: None,
            max_rollout_turns: None,
            gym: GymOptions::default(),
            group: GroupFailure::All,
            group_timeout: None,
            max_infra_attempts: 5,
            max_data_attempts: 2,
            max_row_attempts: 3,
            max_skipped_prompts: 0,
            max_consecutive_dropped_prompts: 0,
            backoff: Backoff {
                base: Duration::from_secs(1),
                cap: Duration::from_secs(30),
            },
            max_groups: 64,
        }
    }
}

/// The option with which no manager can be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutOptionsError {
    /// A number is 0.
    #[error("{0} must be >= 1, and is 0")]
    Zero(&'static str),
    /// An option has no meaning for an agent of NeMo Gym, which runs its turns and samples itself.
    #[error("{option} is not supported for agents of NeMo Gym: {remedy}")]
    NotForGym {
        /// The option.
        option: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}

impl Fatal for RolloutOptionsError {
    const CONTEXT: &'static str = "the options of the rollout manager";

    fn exit_code(&self) -> u8 {
        USAGE
    }
}

impl RolloutOptions {
    /// Checks the options as NeMo RL does when it creates a manager.
    ///
    /// # Errors
    /// A number is 0, or an agent of NeMo Gym can't follow an option.
    pub(super) fn check(&self, is_native: bool) -> Result<(), RolloutOptionsError> {
        for (name, number) in [
            ("num_generations", self.num_generations as u64),
            ("max_infra_attempts", self.max_infra_attempts.into()),
            ("max_data_attempts", self.max_data_attempts.into()),
            ("max_row_attempts", self.max_row_attempts.into()),
        ] {
            if number == 0 {
                return Err(RolloutOptionsError::Zero(name));
            }
        }
        let sampling = &self.sampling;
        let temperature = "set temperature to 0";
        let (elsewhere, one) = ("set it for the model's server", "set it to 1, or not");
        for (option, is_set, remedy) in [
            ("stop_strings", !sampling.stop_strings.is_empty(), elsewhere),
            (
                "stop_token_ids",
                !sampling.stop_token_ids.is_empty(),
                elsewhere,
            ),
            (
                "top_k",
                sampling.top_k.is_some_and(|top_k| top_k != 0),
                elsewhere,
            ),
            ("greedy", sampling.greedy, temperature),
            (
                "max_rollout_turns",
                self.max_rollout_turns.is_some_and(|turns| turns != 1),
                one,
            ),
        ] {
            if is_set && !is_native {
                return Err(RolloutOptionsError::NotForGym { option, remedy });
            }
        }
        Ok(())
    }

    /// Returns how many attempts at one rollout may fail within a try of its group. In a group that needs all of its
    /// rollouts, a failure that another attempt can't mend fails the group at once, and so does any failure of a native
    /// agent. A row of NeMo Gym is an independent episode, which is retried alone.
    pub(super) fn budgets(&self, is_native: bool) -> Budgets {
        let most = self.max_row_attempts;
        let (all, data) = match (self.group, is_native) {
            (GroupFailure::Each, _) => (most, most),
            (GroupFailure::All, false) => (most, 1),
            (GroupFailure::All, true) => (1, 1),
        };
        Budgets {
            infra: all,
            rate_limit: all,
            data,
            attempts: data,
            all,
        }
    }
}

/// The reason why a prompt has no group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// The prompt failed, which the budgets allow: continue with the next.
    #[error("prompt {prompt_idx} failed and is skipped: {}", failure.message)]
    Skipped {
        /// The prompt.
        prompt_idx: i64,
        /// The last failure.
        failure: Failure,
    },
    /// The prompt failed, and exceeds a budget.
    #[error("prompt {prompt_idx} failed, and more prompts have failed than {budget} allows: {}", failure.message)]
    Exhausted {
        /// The prompt.
        prompt_idx: i64,
        /// The name of the budget.
        budget: &'static str,
        /// The last failure.
        failure: Failure,
    },
}
