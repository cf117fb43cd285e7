//! An environment that is stepped in batches: `POST /step`.

use hyper::StatusCode;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::super::answer::{Verdict, verify};
use super::super::arithmetic::{Number, extract_answer};
use super::super::call::Call;
use super::super::draws::digest;
use super::super::model::Item;
use super::super::oracle::{Key, RowDifficulty};
use super::super::profile::Profile;
use super::super::service::{Answer, Rejected, Service};
use super::turn::{go_on, turn_told};
use super::verdict::unreadable;

/// What ends a generation after every third turn: a word that the model uses.
const STOP: &[&str] = &["finally"];

/// An environment. It has no state of its own: the turn of an episode is in its metadata, and a
/// request whose metadata are not those of the last turn of its log is wrong.
#[derive(Debug)]
pub(in crate::sim) struct Environment;

type Metadata = IndexMap<String, Box<RawValue>>;

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    message_log_batch: Vec<Vec<Item<'a>>>,
    metadata: Vec<Option<Metadata>>,
    rollout_ids: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Stepped {
    observations: Vec<Observation>,
    metadata: Vec<Metadata>,
    next_stop_strings: Vec<Option<&'static [&'static str]>>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    answers: Vec<Option<String>>,
}

#[derive(Serialize)]
struct Observation {
    role: &'static str,
    content: String,
}

impl Service for Environment {
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        if call.path != "/step" {
            return Err(Rejected::detail(StatusCode::NOT_FOUND, "Not Found"));
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
        let mut stepped = Stepped {
            observations: Vec::with_capacity(samples),
            metadata: Vec::with_capacity(samples),
            next_stop_strings: Vec::with_capacity(samples),
            rewards: Vec::with_capacity(samples),
            terminateds: Vec::with_capacity(samples),
            answers: Vec::with_capacity(samples),
        };
        let logs = batch.message_log_batch.iter().zip(batch.metadata);
        for (sample, (log, metadata)) in logs.enumerate() {
            stepped.add(log, metadata.unwrap_or_default(), sample, profile)?;
        }
        let body = serde_json::to_vec(&stepped).map_err(unreadable)?;
        Ok(body.into())
    }
}

impl Stepped {
    fn add(
        &mut self,
        log: &[Item],
        mut metadata: Metadata,
        sample: usize,
        profile: &Profile,
    ) -> Result<(), Rejected> {
        let Some((last, before)) = log
            .split_last()
            .filter(|(last, _)| last.role() == "assistant")
        else {
            let why = format!("the message log of sample {sample} does not end with the assistant");
            return Err(wrong(why));
        };
        let number = |name: &str| {
            metadata
                .get(name)
                .and_then(|value| Number::parse(value.get().trim_matches('"')))
        };
        let turn = match number("turn") {
            Some(Number::Int(turn)) => u64::try_from(turn).unwrap_or(0),
            _ => 0,
        };
        let told = before.iter().rfind(|message| message.role() != "assistant");
        let told = told.map_or(0, |message| turn_told(message.text()));
        if told != turn {
            return Err(wrong(format!(
                "the message log of sample {sample} is at turn {told}, but its metadata at turn {turn}"
            )));
        }
        let verdict = match number("expected_answer") {
            Some(expected) => verify(last.text(), expected),
            None => Verdict {
                extracted: extract_answer(last.text()),
                correct: by_chance(log, profile),
            },
        };
        let turn = turn + 1;
        let terminated = verdict.extracted.is_some();
        let content = match (terminated, verdict.correct) {
            (false, _) => go_on(turn),
            (true, true) => "That is right.".to_owned(),
            (true, false) => "That is wrong.".to_owned(),
        };
        metadata.insert("turn".to_owned(), to_raw_value(&turn).map_err(unreadable)?);
        self.observations.push(Observation {
            role: "environment",
            content,
        });
        self.metadata.push(metadata);
        self.next_stop_strings.push(match turn % 3 {
            1 => Some(STOP),
            2 => None,
            _ => Some(&[]),
        });
        self.rewards
            .push(f64::from(u8::from(terminated && verdict.correct)));
        self.terminateds.push(terminated);
        self.answers
            .push(verdict.extracted.map(|answer| answer.to_string()));
        Ok(())
    }
}

/// Whether an answer is right to a question whose answer nobody knows.
fn by_chance(log: &[Item], profile: &Profile) -> bool {
    let first = log.first().map_or("", Item::text);
    let last = log.last().map_or("", Item::text);
    let key = Key {
        task: digest(first.as_bytes()),
        rollout: digest(last.as_bytes()),
        attempt: 0,
    };
    profile.plan(key, RowDifficulty::Medium).correct
}

fn wrong(why: String) -> Rejected {
    Rejected::detail(StatusCode::UNPROCESSABLE_ENTITY, why)
}
