use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Limits, Prompt};
use crate::config::Rules;
use crate::environment::StepResult;
use crate::model::{Encoding, Generation, Message, Tokenizer, text_in};

/// The state of one sample between a model and an environment. It does no I/O: callers pass in the results of a turn.
#[derive(Debug)]
pub struct SampleState {
    rules: Rules,
    max_turns: u32,
    max_seq_len: u64,
    log: Vec<Message>,
    /// The tokens of the log; a cut observation counts with its remaining tokens.
    log_tokens: u64,
    stop_strings: Option<Vec<String>>,
    env_info: Value,
    reward: Reward,
    /// The part of the last answer that the environment judged.
    extracted_answer: Option<String>,
    counts: TokenCounts,
    /// Whether the model returned no further generation, and the rules keep the sample as it is.
    ended_by_model: bool,
    terminated: bool,
    truncated: bool,
    /// Whether a generation hit its length limit, where that does not end the sample.
    hit_limit: bool,
}

/// The counts of a sample.
#[derive(Debug, Default)]
struct TokenCounts {
    /// Turns that were begun.
    turns: u32,
    /// Tokens that the model generated.
    assistant_tokens: u64,
    /// Tokens of observations, without what was cut off.
    env_tokens: u64,
    /// The tokens generated in each turn.
    turn_gen_tokens: Vec<u64>,
    /// The tokens of the log before each turn.
    turn_input_tokens: Vec<u64>,
    /// Tokens that each worker generated.
    per_worker: BTreeMap<String, u64>,
}

/// A sum of rewards. Each reward is rounded to 32 bits first.
#[derive(Debug, Clone, Copy)]
enum Reward {
    Wide(f64),
    Narrow(f32),
}

/// Fields of the row that are copied into the answer.
const KEPT: [&str; 3] = ["_ng_task_index", "_ng_rollout_index", "agent_ref"];

/// The answer of a finished sample. The names of the counts are those of NeMo RL.
#[derive(Serialize)]
struct AnswerBody<'a> {
    #[serde(flatten)]
    kept: serde_json::Map<String, Value>,
    task_name: &'a str,
    reward: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    extracted_answer: Option<&'a str>,
    message_log: &'a [Message],
    env_extras: &'a Value,
    final_stop_strings: Option<&'a [String]>,
    truncated: bool,
    terminated: bool,
    max_turns_reached: bool,
    turn_count: u32,
    total_tokens: u64,
    assistant_tokens: u64,
    env_tokens: u64,
    turn_gen_tokens: &'a [u64],
    turn_input_tokens: &'a [u64],
    turn_total_tokens: Vec<u64>,
    per_worker_token_counts: &'a BTreeMap<String, u64>,
    /// Status and usage as a Responses object: a sample that was cut short is incomplete; turns read the whole log.
    response: Value,
}

impl SampleState {
    /// Creates a sample that has taken no turn. The tokenizer counts the messages whose tokens are unknown.
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
            reward: if rules.is_lockstep() {
                Reward::Narrow(0.0)
            } else {
                Reward::Wide(0.0)
            },
            extracted_answer: None,
            counts: TokenCounts::default(),
            ended_by_model: false,
            terminated: false,
            truncated: false,
            hit_limit: false,
        }
    }

    /// Adds the environment's observation before the first turn.
    pub fn observed_at_the_start(&mut self, mut observation: Message, tokenizer: &dyn Tokenizer) {
        count(&mut observation, tokenizer);
        self.append_observation(observation);
    }

    /// Returns whether the sample takes another turn.
    pub fn goes_on(&self) -> bool {
        !self.has_ended() && self.counts.turns < self.max_turns
    }

    /// Begins a turn, and returns its number, from 1.
    pub fn begin_turn(&mut self) -> u32 {
        self.counts.turns += 1;
        self.counts.turns
    }

    /// Adds the model's generation of this turn.
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
        self.truncated |= generation.truncated && self.rules == Rules::PerSample;
        self.hit_limit |= generation.truncated && self.rules == Rules::Lockstep;
    }

    /// Ends the sample as it is, since the model generates nothing more.
    pub fn give_up(&mut self) {
        self.ended_by_model = true;
    }

    /// Adds the environment's answer to this turn.
    ///
    /// # Errors
    /// The answer can't be used, and neither can the sample from then on.
    pub fn stepped(&mut self, result: StepResult, tokenizer: &dyn Tokenizer) -> Result<(), String> {
        self.reward.add(result.reward)?;
        self.extracted_answer = result.answer;
        let mut observation = result.observation;
        count(&mut observation, tokenizer);
        let whole = self.log_tokens.saturating_add(observation.token_count);
        let is_cut = whole >= self.max_seq_len;
        if is_cut {
            let room = i128::from(self.max_seq_len) - i128::from(self.log_tokens);
            if room < 0 && self.rules.is_lockstep() {
                return Err(format!(
                    "tokens_left_for_obs={room} should not be negative. This should not happen if the inference engine \
                     respects the max sequence length."
                ));
            }
            cut(&mut observation, u64::try_from(room).unwrap_or(0));
        }
        self.append_observation(observation);
        self.truncated |= is_cut || result.truncated;
        self.terminated = result.terminated || (is_cut && self.rules.is_lockstep());
        if !self.has_ended() {
            if result.next_stop_strings.is_some() || self.rules.is_lockstep() {
                self.stop_strings = result.next_stop_strings;
            }
            if !result.metadata.is_null() {
                self.env_info = result.metadata;
            }
        }
        Ok(())
    }

    /// Returns the conversation so far.
    pub fn log(&self) -> &[Message] {
        &self.log
    }

    /// Returns the texts that end the next generation.
    pub fn stop_strings(&self) -> Option<&[String]> {
        self.stop_strings.as_deref()
    }

    /// Returns the metadata for the next step of the environment.
    pub fn env_info(&self) -> &Value {
        &self.env_info
    }

    fn reward(&self) -> f64 {
        match self.reward {
            Reward::Wide(sum) => sum,
            Reward::Narrow(sum) => f64::from(sum),
        }
    }

    fn is_out_of_turns(&self) -> bool {
        let counts = !self.has_ended() || !self.rules.is_lockstep();
        counts && self.counts.turns >= self.max_turns
    }

    /// Returns the answer of the ended sample, as JSON text.
    pub fn into_answer(self, row: &Value, task_name: &str) -> Vec<u8> {
        let counts = &self.counts;
        let truncated = self.truncated || self.hit_limit;
        let kept = KEPT.into_iter().filter_map(|name| {
            let value = row.get(name)?;
            Some((name.to_owned(), value.clone()))
        });
        let inputs = counts.turn_input_tokens.iter().copied();
        let input_tokens = inputs.fold(0, u64::saturating_add);
        let body = AnswerBody {
            kept: kept.collect(),
            task_name,
            reward: self.reward(),
            extracted_answer: self.extracted_answer.as_deref(),
            message_log: &self.log,
            env_extras: &self.env_info,
            final_stop_strings: self.stop_strings.as_deref(),
            truncated,
            terminated: self.terminated,
            max_turns_reached: self.is_out_of_turns(),
            turn_count: counts.turns,
            total_tokens: counts.assistant_tokens.saturating_add(counts.env_tokens),
            assistant_tokens: counts.assistant_tokens,
            env_tokens: counts.env_tokens,
            turn_gen_tokens: &counts.turn_gen_tokens,
            turn_input_tokens: &counts.turn_input_tokens,
            turn_total_tokens: counts.turn_total_tokens(),
            per_worker_token_counts: &counts.per_worker,
            response: json!({
                "status": if truncated { "incomplete" } else { "completed" },
                "usage": {
                    "input_tokens": input_tokens,
                    "output_tokens": counts.assistant_tokens,
                    "total_tokens": input_tokens.saturating_add(counts.assistant_tokens),
                },
            }),
        };
        // Every key is a text, so serialization cannot fail.
        serde_json::to_vec(&body).unwrap_or_default()
    }

    fn has_ended(&self) -> bool {
        self.terminated || self.truncated || self.ended_by_model
    }

    fn append_observation(&mut self, observation: Message) {
        add(&mut self.log_tokens, observation.token_count);
        add(&mut self.counts.env_tokens, observation.token_count);
        self.log.push(observation);
    }
}

impl TokenCounts {
    /// Returns for each turn the tokens before it plus those generated in it.
    fn turn_total_tokens(&self) -> Vec<u64> {
        let turns = self.turn_input_tokens.iter().zip(&self.turn_gen_tokens);
        turns
            .map(|(input, generated)| input.saturating_add(*generated))
            .collect()
    }
}

impl Reward {
    fn add(&mut self, reward: f64) -> Result<(), String> {
        let narrow = reward as f32;
        if !narrow.is_finite() {
            return Err(format!(
                "the environment gave the reward {reward}, which is not a finite 32-bit number"
            ));
        }
        match self {
            Self::Wide(sum) => *sum += f64::from(narrow),
            Self::Narrow(sum) => *sum += narrow,
        }
        Ok(())
    }
}

/// Adds without overflow: servers may claim any number of tokens.
fn add(sum: &mut u64, tokens: u64) {
    *sum = sum.saturating_add(tokens);
}

/// Counts a message's tokens, unless the message has exact ones.
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

/// Cuts an observation to its first `room` tokens. The content keeps its whole text.
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
