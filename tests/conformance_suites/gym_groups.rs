//! Suite `gym_groups`: groups through an agent of NeMo Gym, against the records that NeMo RL's manager makes of the same
//! answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rollstream::config::Settings;
use rollstream::group::{GymOptions, RolloutError, Sampling};
use rollstream::model::BytesTokenizer;
use rollstream::retry::Backoff;
use rollstream::{PromptGroup, RolloutManager, RolloutOptions, TrainingPrompt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::case::Case;
use super::expected_error::{block_on, check_error, read};
use super::outcome::Outcome;
use super::recording_agent::RecordingAgent;
use super::same_json::same;

/// The file `group.json` of a case.
#[derive(Deserialize)]
struct Group {
    idx: i64,
    extra_env_info: Value,
    /// The answers to each row, one after the other: JSON, or an HTTP status.
    answers: Vec<Vec<Value>>,
}

/// Runs a case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let group = read(&case.directory.join("group.json"))?;
    let group: Group = serde_json::from_str(&group).map_err(|error| error.to_string())?;
    let texts = |answers: &Vec<Value>| answers.iter().map(Value::to_string).collect();
    let answers = group.answers.iter().enumerate();
    let answers = answers.map(|(row, answers)| ((String::new(), row.to_string()), texts(answers)));
    let agent = RecordingAgent::start(answers.collect::<HashMap<_, _>>())?;
    let name = &group.extra_env_info["agent_ref"]["name"];
    let name = name.as_str().unwrap_or_default();
    let settings = json!({"agents": {name: {"url": agent.url()}}});
    let settings: Settings = serde_json::from_value(settings).map_err(|error| error.to_string())?;
    let options = options(&case.json["options"], group.answers.len());
    let prompt = TrainingPrompt {
        idx: group.idx,
        extra_env_info: group.extra_env_info.clone(),
        ..TrainingPrompt::default()
    };
    let made = block_on(async {
        let manager = RolloutManager::connect(&settings, name, options).await;
        let manager = manager.map_err(|error| error.report())?;
        Ok::<_, String>(manager.run_rollout(prompt).await)
    });
    match made? {
        Err(message) => ended_with_error(case, &message),
        Ok(Err(error)) => failed(case, &error),
        Ok(Ok(group)) => compare(case, &group, &agent.received()),
    }
}

fn ended_with_error(case: &Case, message: &str) -> Result<Outcome, String> {
    if !case.expects_error() {
        return Err(message.to_owned());
    }
    check_error(&case.directory, &case.expected, message)
}

/// The class of a failure decides whether another server is asked, so it is compared too.
fn failed(case: &Case, error: &RolloutError) -> Result<Outcome, String> {
    let (RolloutError::Exhausted { failure, .. } | RolloutError::Skipped { failure, .. }) = error
    else {
        return Err(format!("an unknown error: {error}"));
    };
    let outcome = ended_with_error(case, &failure.message)?;
    let expected = read(&case.expected.join("error.json"))?;
    let expected: Value = serde_json::from_str(&expected).map_err(|error| error.to_string())?;
    let is_infra = expected["class"] == "infra";
    if failure.class.is_transient() != is_infra {
        return Err(format!(
            "expected the class {}, got {failure:?}",
            expected["class"]
        ));
    }
    Ok(outcome)
}

fn compare(case: &Case, group: &PromptGroup, received: &str) -> Result<Outcome, String> {
    if case.expects_error() {
        return Err("expected an error, and there was none".into());
    }
    let without_times = |mut record: Value| {
        let metrics = record["rollout_metrics"]
            .as_object_mut()
            .into_iter()
            .flatten();
        for (_, value) in metrics.filter(|(name, _)| name.starts_with("timing/")) {
            *value = Value::Null;
        }
        record.to_string()
    };
    let expected = read(&case.expected.join("record.json"))?;
    let expected = serde_json::from_str(&expected).map_err(|error| error.to_string())?;
    same(&without_times(expected), &without_times(group.record()))?;
    let mut rows: Vec<Value> = received
        .lines()
        .filter_map(|row| serde_json::from_str(row).ok())
        .collect();
    rows.retain(|row| row.get("_ng_attempt_index").is_none());
    rows.sort_by_key(|row| row["_rowidx"].as_u64());
    let expected = read(&case.expected.join("rows.json"))?;
    same(&expected, &Value::from(rows).to_string()).map_err(|why| format!("rows: {why}"))?;
    Ok(Outcome::Passed)
}

/// The options of NeMo RL's manager.
fn options(given: &Value, num_generations: usize) -> RolloutOptions {
    let number = |name: &str| given[name].as_u64();
    RolloutOptions {
        num_generations,
        sampling: Sampling {
            temperature: given["temperature"].as_f64(),
            top_p: given["top_p"].as_f64(),
            max_new_tokens: number("max_new_tokens"),
            top_k: number("top_k"),
            greedy: given["greedy"] == true,
            ..Sampling::default()
        },
        max_seq_len: number("max_seq_len"),
        max_rollout_turns: number("max_rollout_turns").and_then(|turns| turns.try_into().ok()),
        gym: GymOptions {
            mask_env_flagged_samples: given["mask_env_flagged_samples"] != false,
            tokenizer: Some(Arc::new(BytesTokenizer)),
            ..GymOptions::default()
        },
        max_infra_attempts: 1,
        max_data_attempts: 1,
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_millis(1),
        },
        ..RolloutOptions::default()
    }
}
