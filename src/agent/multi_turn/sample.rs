use std::collections::BTreeMap;

use serde_json::Value;

use super::content::text_in;
use super::{Limits, Prompt};
use crate::config::Rules;
use crate::environment::StepResult;
use crate::model::{Encoding, Generation, Message, Tokenizer};

/// The state of one sample between a model and an environment. It asks nobody anything: what comes of
/// a turn is given to it.
#[derive(Debug)]
pub struct Sample {
    rules: Rules,
    max_turns: u32,
    max_seq_len: u64,
    log: Vec<Message>,
    /// Tokens of the log, cut observations with what is left of them.
    log_tokens: u64,
    stop_strings: Option<Vec<String>>,
    env_info: Value,
    reward: Reward,
    counts: Counts,
    /// The model gave nothing more, and the rules keep what there is.
    given_up: bool,
    terminated: bool,
    truncated: bool,
}

/// What a sample counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Turns that were begun.
    pub turns: u32,
    /// Tokens that the model generated.
    pub assistant_tokens: u64,
    /// Tokens of observations, without what was cut off.
    pub env_tokens: u64,
    /// Of each turn, the tokens that were generated.
    pub turn_gen_tokens: Vec<u64>,
    /// Of each turn, the tokens of the log before it.
    pub turn_input_tokens: Vec<u64>,
    /// Tokens that each worker generated.
    pub per_worker: BTreeMap<String, u64>,
}

/// A sum of rewards. Each of them passes through 32 bit.
#[derive(Debug, Clone, Copy)]
enum Reward {
    Wide(f64),
    Narrow(f32),
}

/// Why what came of a turn can't be taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TurnError {
    /// The log is longer than it may be, and the rules take that for a fault of the engine.
    #[error(
        "tokens_left_for_obs={0} should not be negative. This should not happen if the inference engine \
         respects the max sequence length."
    )]
    Overfull(i128),
    /// The reward is no number that 32 bit hold.
    #[error("the environment gave the reward {0}, which is not a finite number of 32 bit")]
    Reward(f64),
}

impl Sample {
    /// A sample that has taken no turn. The tokenizer counts the messages whose tokens are unknown.
    pub fn new(
        prompt: &mut Prompt,
        rules: Rules,
        limits: &Limits,
        tokenizer: &dyn Tokenizer,
    ) -> Self {
        let mut log = std::mem::take(&mut prompt.message_log);
        for message in &mut log {
            count(message, tokenizer);
        }
        Self {
            rules,
            max_turns: limits.max_turns,
            max_seq_len: limits.max_seq_len,
            log_tokens: log.iter().map(|message| message.token_count).sum(),
            log,
            stop_strings: prompt.stop_strings.take(),
            env_info: prompt.extra_env_info.take(),
            reward: match rules.adds_rewards_in_32_bit() {
                true => Reward::Narrow(0.0),
                false => Reward::Wide(0.0),
            },
            counts: Counts::default(),
            given_up: false,
            terminated: false,
            truncated: false,
        }
    }

    /// What the environment says before the first turn.
    pub fn observed_at_the_start(&mut self, mut observation: Message, tokenizer: &dyn Tokenizer) {
        count(&mut observation, tokenizer);
        self.append_observation(observation);
    }

    /// It takes another turn.
    pub fn goes_on(&self) -> bool {
        !self.has_ended() && self.counts.turns < self.max_turns
    }

    /// Begins a turn, and gives its number, from 1.
    pub fn begin_turn(&mut self) -> u32 {
        self.counts.turns += 1;
        self.counts.turns
    }

    /// Takes what the model generated in this turn.
    pub fn generated(&mut self, generation: Generation, tokenizer: &dyn Tokenizer) {
        let known = generation.token_ids.as_ref().map(|ids| ids.len() as u64);
        let tokens = known
            .or(generation.num_tokens)
            .unwrap_or_else(|| tokenizer.encode(&generation.text).count);
        self.counts.turn_input_tokens.push(self.log_tokens);
        self.counts.turn_gen_tokens.push(tokens);
        add(&mut self.counts.assistant_tokens, tokens);
        if let Some(worker) = generation.worker {
            add(self.counts.per_worker.entry(worker).or_default(), tokens);
        }
        add(&mut self.log_tokens, tokens);
        self.log.push(Message {
            token_ids: generation.token_ids,
            logprobs: generation.logprobs,
            token_count: tokens,
            ..Message::text("assistant", generation.text)
        });
        if generation.truncated && self.rules.generation_limit_truncates() {
            self.truncated = true;
        }
    }

    /// Ends the sample as it is, since the model generates nothing more.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Takes what the environment answered in this turn.
    ///
    /// # Errors
    /// It can't be taken; the sample is of no use then.
    pub fn stepped(
        &mut self,
        result: StepResult,
        tokenizer: &dyn Tokenizer,
    ) -> Result<(), TurnError> {
        self.reward.add(result.reward)?;
        let mut observation = result.observation;
        count(&mut observation, tokenizer);
        let whole = self.log_tokens.saturating_add(observation.token_count);
        let is_cut = whole >= self.max_seq_len;
        if is_cut {
            let room = i128::from(self.max_seq_len) - i128::from(self.log_tokens);
            if room < 0 && self.rules.refuses_overfull_log() {
                return Err(TurnError::Overfull(room));
            }
            cut(&mut observation, u64::try_from(room).unwrap_or(0));
        }
        self.append_observation(observation);
        self.truncated |= is_cut || result.truncated;
        self.terminated = result.terminated || (is_cut && self.rules.cut_terminates());
        if !self.has_ended() {
            if result.next_stop_strings.is_some() || self.rules.clears_stop_strings() {
                self.stop_strings = result.next_stop_strings;
            }
            if !result.metadata.is_null() {
                self.env_info = result.metadata;
            }
        }
        Ok(())
    }

    /// The conversation so far.
    pub fn log(&self) -> &[Message] {
        &self.log
    }

    /// Texts that end the next generation.
    pub fn stop_strings(&self) -> Option<&[String]> {
        self.stop_strings.as_deref()
    }

    /// What the environment is told at the next step.
    pub fn env_info(&self) -> &Value {
        &self.env_info
    }

    /// What it counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The sum of its rewards.
    pub fn reward(&self) -> f64 {
        match self.reward {
            Reward::Wide(sum) => sum,
            Reward::Narrow(sum) => f64::from(sum),
        }
    }

    /// The environment ended it.
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// It was cut short.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// It counts as out of turns.
    pub fn is_out_of_turns(&self) -> bool {
        let counts = !self.has_ended() || self.rules.end_in_last_turn_is_out_of_turns();
        counts && self.counts.turns >= self.max_turns
    }

    fn has_ended(&self) -> bool {
        self.terminated || self.truncated || self.given_up
    }

    fn append_observation(&mut self, observation: Message) {
        add(&mut self.log_tokens, observation.token_count);
        add(&mut self.counts.env_tokens, observation.token_count);
        self.log.push(observation);
    }
}

impl Counts {
    /// Of each turn, the tokens before it and those generated in it.
    pub fn turn_total_tokens(&self) -> Vec<u64> {
        let turns = self.turn_input_tokens.iter().zip(&self.turn_gen_tokens);
        turns
            .map(|(input, generated)| input.saturating_add(*generated))
            .collect()
    }
}

impl Reward {
    fn add(&mut self, reward: f64) -> Result<(), TurnError> {
        let narrow = reward as f32;
        if !narrow.is_finite() {
            return Err(TurnError::Reward(reward));
        }
        match self {
            Self::Wide(sum) => *sum += f64::from(narrow),
            Self::Narrow(sum) => *sum += narrow,
        }
        Ok(())
    }
}

/// Servers may claim any number of tokens.
fn add(sum: &mut u64, tokens: u64) {
    *sum = sum.saturating_add(tokens);
}

/// Counts a message's tokens. Those that it brings are exact, and stay.
fn count(message: &mut Message, tokenizer: &dyn Tokenizer) {
    if message.token_ids.is_none() {
        let Encoding { count, ids } = tokenizer.encode(&text_in(&message.content));
        message.token_count = count;
        message.token_ids = ids;
    }
    if let Some(ids) = &message.token_ids {
        message.token_count = ids.len() as u64;
    }
}

/// Leaves the first `room` tokens. The content keeps its whole text.
fn cut(observation: &mut Message, room: u64) {
    observation.token_count = observation.token_count.min(room);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if let Some(ids) = &mut observation.token_ids {
        ids.truncate(room);
    }
    if let Some(logprobs) = &mut observation.logprobs {
        logprobs.truncate(room);
    }
}
