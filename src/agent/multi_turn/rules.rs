use crate::config::Rules;

/// Which form of NeMo RL's rollout a sample follows. The forms differ in this, and in nothing else:
///
/// | | `per-sample` | `per-sample-legacy` | `lockstep-legacy` |
/// |---|---|---|---|
/// | a generation that hit its length limit ends the sample, after its step | yes | no | no |
/// | a generation that fails | fails the sample | ends the sample, which is kept | fails the batch |
/// | an environment that fails | fails the sample | fails the sample | fails the batch |
/// | no room at all for an observation | none of its tokens count | none of its tokens count | failure |
/// | a sample whose observation was cut counts as terminated | no | no | yes |
/// | an environment that names no stop strings | leaves them | leaves them | clears them |
/// | an end in the last turn counts as out of turns | yes | yes | no |
/// | rewards are added in | 64 bit | 64 bit | 32 bit |
impl Rules {
    /// A generation that hit its length limit ends the sample, after its step.
    pub fn generation_limit_truncates(self) -> bool {
        self == Self::PerSample
    }

    /// A generation that fails ends the sample, which is kept as it is.
    pub fn keeps_sample_without_generation(self) -> bool {
        self == Self::PerSampleLegacy
    }

    /// A sample of a batch that fails takes the whole batch with it.
    pub fn fails_whole_batch(self) -> bool {
        self == Self::LockstepLegacy
    }

    /// A log that is longer than it may be before the observation comes is a failure.
    pub fn refuses_overfull_log(self) -> bool {
        self == Self::LockstepLegacy
    }

    /// A sample whose observation was cut counts as terminated too.
    pub fn cut_terminates(self) -> bool {
        self == Self::LockstepLegacy
    }

    /// An environment that names no stop strings clears those that there were.
    pub fn clears_stop_strings(self) -> bool {
        self == Self::LockstepLegacy
    }

    /// A sample that ends in its last turn counts as out of turns.
    pub fn end_in_last_turn_is_out_of_turns(self) -> bool {
        self != Self::LockstepLegacy
    }

    /// Rewards are added in 32 bit.
    pub fn adds_rewards_in_32_bit(self) -> bool {
        self == Self::LockstepLegacy
    }
}
