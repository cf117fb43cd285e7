use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::super::agent::Row;
use super::super::draws::digest;
use super::super::model::Item;
use super::super::plan::{Key, Profile, RowDifficulty};
use super::super::server::service::{Answer, Call, Rejected, Service};
use super::super::verifier::{Verdict, number as parse_number};
use super::sessions::{Episode, Sessions};
use super::{last_turn, observation, unreadable, verify, wrong};

/// An episode of a Gymnasium-style server is truncated after this many steps.
const MAX_STEPS: u64 = 64;

/// The first observation of tasks with an odd index.
const HINT: &str = "Take the numbers one by one.";

/// The stop string of a generation after every third turn: a word that the model uses.
const STOP: &str = "finally";

/// A Gymnasium-style server with `/reset` and `/step`. An episode ends with an answer, or after 64 steps.
#[derive(Debug, Default)]
pub(in crate::sim) struct Gymnasium {
    sessions: Sessions<Session>,
}

#[derive(Debug)]
struct Session {
    episode: Episode,
    steps: u64,
}

impl Service for Gymnasium {
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        if !matches!(call.path, "/reset" | "/step") {
            return Err(Rejected::not_found());
        }
        let row = Row::parse(call.body).map_err(unreadable)?;
        let episode = Episode::of(call, Some(&row));
        if call.path == "/reset" {
            let session = Session { episode, steps: 0 };
            let observation = (row.key().task % 2 == 1).then_some(HINT);
            let body = json!({ "observation": observation, "info": { "steps": 0 } });
            return Ok(Answer {
                cookie: Some(self.sessions.open(profile.seed, session)),
                ..body.into()
            });
        }
        let verdict = verify(&row, profile)?;
        let steps = self.sessions.with(call, |session| {
            session.episode.check(&episode)?;
            session.steps += 1;
            Ok(session.steps)
        })?;
        let terminated = verdict.extracted.is_some();
        let truncated = !terminated && steps >= MAX_STEPS;
        let is_ended = terminated || truncated;
        let step = json!({
            "observation": (!is_ended).then(|| observation(steps)),
            "reward": verdict.final_reward(),
            "terminated": terminated,
            "truncated": truncated,
            "info": { "steps": steps },
        });
        Ok(step.into())
    }
}

/// An environment that is stepped in batches by `POST /step`. It has no state: the turn of an episode is in its
/// metadata, and a request whose metadata contradict its message log is rejected.
#[derive(Debug)]
pub(in crate::sim) struct Environment;

type Metadata = IndexMap<String, Box<RawValue>>;

#[derive(Deserialize)]
struct Batch {
    message_log_batch: Vec<Vec<Item>>,
    metadata: Vec<Option<Metadata>>,
    rollout_ids: Option<Vec<String>>,
}

/// The answer, in columns.
#[derive(Default, Serialize)]
struct Stepped {
    observations: Vec<Value>,
    metadata: Vec<Metadata>,
    next_stop_strings: Vec<Value>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    answers: Vec<Option<String>>,
}

impl Service for Environment {
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        if call.path != "/step" {
            return Err(Rejected::not_found());
        }
        let batch: Batch = serde_json::from_str(call.body).map_err(unreadable)?;
        let samples = batch.message_log_batch.len();
        let ids = batch.rollout_ids.as_ref().map_or(samples, Vec::len);
        if batch.metadata.len() != samples || ids != samples {
            return Err(wrong(format!(
                "there are {samples} message logs, {} metadata and {ids} rollout ids",
                batch.metadata.len()
            )));
        }
        let mut stepped = Stepped::default();
        let logs = batch.message_log_batch.iter().zip(batch.metadata);
        for (sample, (log, metadata)) in logs.enumerate() {
            stepped.add(log, metadata.unwrap_or_default(), sample, profile)?;
        }
        let body = serde_json::to_vec(&stepped).map_err(unreadable)?;
        Ok(body.into())
    }
}

impl Stepped {
    /// Steps the episode of one sample.
    fn add(
        &mut self,
        log: &[Item],
        mut metadata: Metadata,
        sample: usize,
        profile: &Profile,
    ) -> Result<(), Rejected> {
        let Some((last, before)) = log
            .split_last()
            .filter(|(last, _)| last.role == "assistant")
        else {
            let why = format!("the message log of sample {sample} does not end with the assistant");
            return Err(wrong(why));
        };
        let number = |name: &str| {
            let value = metadata.get(name)?.get();
            parse_number(value.trim_matches('"'))
        };
        let turn = number("turn").unwrap_or(0.0) as u64;
        let told = before.iter().rfind(|message| message.role != "assistant");
        let told = told.map_or(0, |message| last_turn(&message.content));
        if told != turn {
            return Err(wrong(format!(
                "the message log of sample {sample} is at turn {told}, but its metadata at turn {turn}"
            )));
        }
        let by_chance = || is_right_by_chance(log, profile);
        let verdict = Verdict::of(&last.content, number("expected_answer"), by_chance);
        let turn = turn + 1;
        let terminated = verdict.extracted.is_some();
        let content = match (terminated, verdict.correct) {
            (false, _) => observation(turn),
            (true, true) => "That is right.".to_owned(),
            (true, false) => "That is wrong.".to_owned(),
        };
        self.observations
            .push(json!({"role": "environment", "content": content}));
        metadata.insert("turn".to_owned(), to_raw_value(&turn).map_err(unreadable)?);
        self.metadata.push(metadata);
        self.next_stop_strings.push(match turn % 3 {
            1 => json!([STOP]),
            2 => Value::Null,
            _ => json!([]),
        });
        self.rewards.push(verdict.final_reward());
        self.terminateds.push(terminated);
        let answer = verdict.extracted.map(|answer| answer.to_string());
        self.answers.push(answer);
        Ok(())
    }
}

/// Decides by chance whether an answer is right, if no number is expected.
fn is_right_by_chance(log: &[Item], profile: &Profile) -> bool {
    let first = log.first().map_or("", |item| &item.content);
    let last = log.last().map_or("", |item| &item.content);
    let key = Key {
        task: digest(first.as_bytes()),
        rollout: digest(last.as_bytes()),
        attempt: 0,
    };
    profile.plan(key, RowDifficulty::Medium).correct
}
