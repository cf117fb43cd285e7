//! Rollouts without an agent: [`Answers`].

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use bytes::Bytes;
use rollstream::call::RolloutKey;
use rollstream::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, Waited};
use rollstream::sim::Draws;

/// Rows of a batch, as the collector gathers them.
const BATCH_ROWS: i64 = 1024;

/// A compressor's window sees little of the text twice.
const TEXT_BYTES: usize = 1 << 20;

const WORDS: &str = "the of each group total number count share half twice remaining price cost unit hour minute \
    distance speed because since therefore gives leaves means check result sum product difference carry multiply \
    divide subtract exact estimate compare before after every whole part over box bag row shelf ticket bottle coin";

/// Makes outcomes of rollouts with eight metrics each, in about the order in which they would complete.
#[derive(Debug)]
pub struct Answers {
    agents: Vec<Arc<str>>,
    text: String,
    num_tasks: i64,
    num_repeats: i64,
    body_size: usize,
}

impl Answers {
    /// `num_repeats` rollouts of each of `num_tasks` tasks, with answers of `body_size` bytes, or as few as it takes.
    pub fn new(num_tasks: i64, num_repeats: i64, body_size: usize) -> Self {
        let words: Vec<&str> = WORDS.split_whitespace().collect();
        let mut draws = Draws::from_state(0);
        let mut text = String::with_capacity(TEXT_BYTES + 16);
        while text.len() < TEXT_BYTES {
            match draws.below(12) {
                0 => text.push_str(&draws.below(1000).to_string()),
                _ => text.push_str(words.get(draws.below(words.len())).unwrap_or(&"so")),
            }
            text.push(' ');
        }
        text.truncate(TEXT_BYTES);
        Self {
            agents: ["left", "right"].map(Arc::from).to_vec(),
            text,
            num_tasks,
            num_repeats,
            body_size,
        }
    }

    /// The same, all by one agent.
    pub fn of_agent(self, name: &str) -> Self {
        Self {
            agents: vec![Arc::from(name)],
            ..self
        }
    }

    /// Rollouts in all.
    pub fn num_rollouts(&self) -> i64 {
        self.num_tasks * self.num_repeats
    }

    /// The outcomes, a batch at a time.
    pub fn batches(&self) -> impl Iterator<Item = anyhow::Result<RecordBatch>> + '_ {
        let firsts = (0..self.num_rollouts()).step_by(BATCH_ROWS as usize);
        firsts.map(|first| {
            let mut batch = OutcomeBatchBuilder::new();
            for place in 0..BATCH_ROWS {
                // Calls in flight overtake each other: the order within a batch is mixed.
                let number = first + (place ^ 0x155);
                if number < self.num_rollouts() {
                    batch.append(self.outcome(number)?)?;
                }
            }
            Ok(batch.finish()?)
        })
    }

    fn outcome(&self, number: i64) -> anyhow::Result<Outcome> {
        let task_index = number / self.num_repeats;
        let agent = task_index as usize % self.agents.len();
        let agent_name = self.agents.get(agent).cloned().unwrap_or_default();
        let key = RolloutKey::new(task_index, number % self.num_repeats, 0);
        let dispatched_at = UNIX_EPOCH + Duration::from_millis(number.unsigned_abs());
        let verdict = Verdict::Ok(Answer::parse(self.body(number))?);
        Ok(Outcome {
            http_status: Some(200),
            times: Times {
                waited: Waited {
                    permit: Duration::from_micros(50),
                    rate: Duration::ZERO,
                },
                connect: Some(Duration::ZERO),
                first_byte: Some(Duration::from_millis(19)),
                server: Some(Duration::from_millis(20)),
                client: Some(Duration::from_micros(10)),
            },
            concurrency_limit: Some(256),
            ..Outcome::new(key, agent_name, dispatched_at, verdict)
        })
    }

    /// The answer of a rollout, by its number.
    pub fn body(&self, number: i64) -> String {
        let mut draws = Draws::from_state(number.unsigned_abs());
        let (reward, turns, input, output) = (
            draws.below(2),
            draws.below(9),
            draws.below(900),
            draws.below(4000),
        );
        let score = draws.below(1000) as f64 / 1000.0;
        let from = draws.below(TEXT_BYTES / 2);
        let head = format!(
            r#"{{"reward":{reward},"accuracy":{score},"turns":{turns},"is_valid":true,"format_score":{},"response":{{"usage":{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{}}},"output_text":""#,
            1.0 - score,
            input + output,
        );
        let text = self
            .text
            .get(from..from + self.body_size.saturating_sub(head.len() + 3))
            .unwrap_or_default();
        format!("{head}{text}\"}}}}")
    }
}
