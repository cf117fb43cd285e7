//! Suite `multi_turn`: scripted models and environments behind HTTP, and the agent that settings make to
//! talk to them, in each form of the rules, with each driver, in texts and in token ids.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use futures::future::join_all;
use rollstream::agent::{Agents, RolloutRequest};
use rollstream::call::{CallLog, RolloutKey};
use rollstream::config::{Driver, Layers};
use rollstream::group::{
    LegacyForm, SampleFacts, batch_metrics, batch_metrics_legacy, group_metrics,
};
use rollstream::retry::Failure;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::expected_error::{check_error, read};
use super::same_json::{Keys, same, same_but};
use super::scripted_servers::{Asked, ScriptedServers};

/// Folder of what is expected, and the rules that give it.
const FORMS: [(&str, &str); 4] = [
    ("expected", "per-sample"),
    ("expected_older_async", "per-sample-legacy"),
    ("expected_lockstep", "lockstep"),
    ("expected_older_sync", "lockstep-legacy"),
];

const DRIVERS: [&str; 2] = ["per-sample", "lockstep"];

const MODEL_APIS: [&str; 2] = ["chat-completions", "completions"];

/// One way to run a case.
struct Way {
    rules: &'static str,
    driver: &'static str,
    model_api: &'static str,
}

/// Runs a case.
pub fn run(directory: &Path, case: &Value) -> Result<(), String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    for (folder, rules) in FORMS {
        let folder = directory.join(folder);
        if !folder.is_dir() {
            continue;
        }
        for driver in DRIVERS {
            for model_api in MODEL_APIS {
                let way = Way {
                    rules,
                    driver,
                    model_api,
                };
                let compared = runtime.block_on(compare(directory, &folder, case, &way));
                compared
                    .map_err(|why| format!("rules {rules}, driver {driver}, {model_api}: {why}"))?;
            }
        }
    }
    Ok(())
}

async fn compare(directory: &Path, folder: &Path, case: &Value, way: &Way) -> Result<(), String> {
    let script: Value = parse(&read(&directory.join("script.json"))?)?;
    let error = folder.join("error.json");
    let error: Option<Value> = if error.exists() {
        Some(parse(&read(&error)?)?)
    } else {
        None
    };
    let is_infra = error
        .as_ref()
        .is_some_and(|error| error["class"] == "infra");
    let place = TempDir::new().map_err(|error| error.to_string())?;
    let words = words(&script);
    let status = if is_infra { 503 } else { 400 };
    let servers = ScriptedServers::start(&script["samples"], words.clone(), status).await?;
    let answers = answers(&servers, &script, case, way, &words, place.path()).await?;
    if let Some(error) = error {
        return failed(answers, folder, &error);
    }
    let answers = answers.into_iter().collect::<Result<Vec<Value>, Failure>>();
    let answers = answers.map_err(|failure| failure.message)?;
    let complaints = servers.complaints();
    if !complaints.is_empty() {
        return Err(complaints);
    }
    let expected = expected(folder)?;
    let wanted = list(&expected["samples"]);
    if wanted.len() != answers.len() {
        return Err(format!(
            "{} answers for {} samples",
            answers.len(),
            wanted.len()
        ));
    }
    let words = (way.model_api == "completions").then_some(&words);
    let mut facts = Vec::new();
    for (rollout, (wanted, answer)) in wanted.iter().zip(&answers).enumerate() {
        let named = |why: String| format!("rollout {rollout}: {why}");
        sample(wanted, answer).map_err(named)?;
        let prompt = list(&script["prompt"]["message_log"]).len();
        calls(wanted, prompt, &servers.asked(rollout), words).map_err(named)?;
        facts.push(SampleFacts::of(answer).map_err(|error| named(error.to_string()))?);
    }
    let current = folder.join("current_batch_metrics.json");
    if current.exists() {
        let metrics = Value::from(batch_metrics(&facts, Driver::PerSample)).to_string();
        same_but(&read(&current)?, &metrics, Keys::Unordered)?;
    }
    let (name, metrics) = match way.rules {
        "per-sample" => ("group_metrics", group_metrics(&facts)),
        "lockstep" => {
            let metrics = Value::from(batch_metrics(&facts, Driver::Lockstep)).to_string();
            let expected = expected["batch_metrics"].to_string();
            return same_but(&expected, &metrics, Keys::Unordered);
        }
        "per-sample-legacy" => {
            let metrics = batch_metrics_legacy(&facts, LegacyForm::PerSample);
            ("batch_metrics", metrics)
        }
        _ => {
            let metrics = batch_metrics_legacy(&facts, LegacyForm::Lockstep);
            ("batch_metrics", metrics)
        }
    };
    // The cases leave out what is only drawn.
    let metrics = metrics
        .into_iter()
        .filter(|(name, _)| !name.ends_with("/histogram"));
    let metrics = Value::Object(metrics.collect()).to_string();
    same(&expected[name].to_string(), &metrics).map_err(|why| format!("{name}: {why}"))
}

/// What the agent of the settings answers for each sample.
async fn answers(
    servers: &ScriptedServers,
    script: &Value,
    case: &Value,
    way: &Way,
    words: &HashMap<String, u32>,
    place: &Path,
) -> Result<Vec<Result<Value, Failure>>, String> {
    let samples = list(&script["samples"]).len();
    let tokenizer = match way.model_api {
        "completions" => {
            let path = place.join("tokenizer.json");
            fs::write(&path, tokenizer(words).to_string()).map_err(|error| error.to_string())?;
            path.to_string_lossy().into_owned()
        }
        _ => "whitespace".to_owned(),
    };
    let config = format!(
        r#"
        [agents.scripted]
        kind = "multi-turn"
        model_url = "{url}"
        model = "scripted"
        model_api = "{model_api}"
        model_retries = 0
        tokenizer = '{tokenizer}'
        max_turns = {max_turns}
        max_seq_len = {max_seq_len}
        rules = "{rules}"
        driver = "{driver}"
        batch_size = {samples}

        [agents.scripted.environments.scripted]
        kind = "step"
        url = "{url}"
        "#,
        url = servers.url(),
        model_api = way.model_api,
        max_turns = case["options"]["max_rollout_turns"],
        max_seq_len = case["options"]["max_seq_len"],
        rules = way.rules,
        driver = way.driver,
    );
    let path = place.join("rollstream.toml");
    fs::write(&path, config).map_err(|error| error.to_string())?;
    let resolved = Layers::new().file(path).resolve();
    let settings = resolved.map_err(|error| error.to_string())?.settings;
    let agents = Agents::connect(&["scripted".to_owned()], &settings).await;
    let agents = agents.map_err(|error| error.to_string())?;
    let member = agents.get("scripted").ok_or("the agent is missing")?;
    let requests = (0..samples as i64).map(|rollout_index| {
        let key = RolloutKey::new(0, rollout_index, 0);
        let mut row = script["prompt"].clone();
        row["_ng_task_index"] = 0.into();
        row["_ng_rollout_index"] = rollout_index.into();
        member.agent.run(RolloutRequest {
            body: row.to_string().into(),
            calls: CallLog::new(key, None),
            as_given: false,
        })
    });
    let replies = join_all(requests).await.into_iter();
    let answers = replies.map(|reply| {
        let answer = reply.result?;
        let text = std::str::from_utf8(&answer.body).unwrap_or_default();
        Ok(parse(text).unwrap_or_default())
    });
    Ok(answers.collect())
}

/// The group must have failed, with the class of failure that is expected. What a server says stands within the message,
/// after its address.
fn failed(
    answers: Vec<Result<Value, Failure>>,
    folder: &Path,
    error: &Value,
) -> Result<(), String> {
    let failures: Vec<Failure> = answers.into_iter().filter_map(Result::err).collect();
    let message = error["message"].as_str().unwrap_or_default();
    let is_meant = |failure: &&Failure| {
        if !message.starts_with("generation ") {
            return check_error(folder, folder, &failure.message).is_ok();
        }
        let (whose, why) = message.split_once(": ").unwrap_or((message, ""));
        failure.message.starts_with(whose) && failure.message.contains(why)
    };
    let of_class = |failure: &&Failure| failure.class.is_transient() == (error["class"] == "infra");
    match failures.iter().filter(of_class).find(is_meant) {
        Some(_) => Ok(()),
        None => Err(format!("expected the failure {error}, got {failures:?}")),
    }
}

/// Compares what an answer says of its sample, by the names that the suite has.
fn sample(wanted: &Value, answer: &Value) -> Result<(), String> {
    let none = Map::new();
    let fields = wanted.as_object().unwrap_or(&none);
    for (name, wanted) in fields.iter().filter(|(name, _)| *name != "calls") {
        let got = match name.as_str() {
            "total_reward" => answer["reward"].clone(),
            "final_env_info" => answer["env_extras"].clone(),
            "message_log" => list(&answer["message_log"])
                .iter()
                .map(|message| {
                    json!({
                        "role": message["role"],
                        "content": message["content"],
                        "token_count": message["token_count"],
                    })
                })
                .collect(),
            name => answer[name].clone(),
        };
        same(&wanted.to_string(), &got.to_string()).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// Compares what the servers were asked, turn by turn. `words` are the tokens, where the model is asked
/// with them.
fn calls(
    wanted: &Value,
    prompt: usize,
    asked: &[Asked],
    words: Option<&HashMap<String, u32>>,
) -> Result<(), String> {
    let calls = list(&wanted["calls"]);
    if calls.len() != asked.len() {
        return Err(format!("{} calls, expected {}", asked.len(), calls.len()));
    }
    let log = list(&wanted["message_log"]);
    for (turn, (call, asked)) in calls.iter().zip(asked).enumerate() {
        let named = |why: String| format!("turn {turn}: {why}");
        // A request without stop strings and one with none of them say the same.
        let stop = match list(&call["stop_strings"]) {
            [] => &Value::Null,
            _ => &call["stop_strings"],
        };
        same(&stop.to_string(), &asked.stop.to_string()).map_err(named)?;
        if let Some(metadata) = &asked.metadata {
            same(&call["env_info"].to_string(), &metadata.to_string()).map_err(named)?;
        }
        let before = log.iter().take(prompt + 2 * turn);
        let conversation: Vec<Value> = match words {
            None => before.map(|message| message["content"].clone()).collect(),
            Some(words) => before.flat_map(|message| tokens(message, words)).collect(),
        };
        if words.is_some() && call["input_tokens"] != conversation.len() {
            return Err(named("the expectation contradicts itself".into()));
        }
        if asked.conversation != conversation {
            let got = Value::from(asked.conversation.clone());
            return Err(named(format!(
                "the model saw {got}, expected {conversation:?}"
            )));
        }
    }
    Ok(())
}

/// The tokens of a message; those of one that was cut are fewer than its words.
fn tokens(message: &Value, words: &HashMap<String, u32>) -> Vec<Value> {
    let text = message["content"].as_str().unwrap_or_default();
    let count = message["token_count"].as_u64().unwrap_or_default() as usize;
    let words = text.split_whitespace().map(|word| Value::from(words[word]));
    words.take(count).collect()
}

/// A number for every word of a script.
fn words(script: &Value) -> HashMap<String, u32> {
    let mut words = HashMap::new();
    let mut add = |text: &Value| {
        for word in text.as_str().unwrap_or_default().split_whitespace() {
            let next = words.len() as u32 + 1;
            words.entry(word.to_owned()).or_insert(next);
        }
    };
    for message in list(&script["prompt"]["message_log"]) {
        add(&message["content"]);
    }
    for turn in list(&script["samples"])
        .iter()
        .flat_map(|sample| list(&sample["turns"]))
    {
        add(&turn["generate"]["text"]);
        add(&turn["env"]["content"]);
    }
    words
}

/// A `tokenizer.json` that takes a word for a token.
fn tokenizer(words: &HashMap<String, u32>) -> Value {
    let mut vocabulary: Map<String, Value> = words
        .iter()
        .map(|(word, number)| (word.clone(), (*number).into()))
        .collect();
    vocabulary.insert("[UNK]".into(), 0.into());
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    })
}

/// What is expected; each form has its own file.
fn expected(folder: &Path) -> Result<Value, String> {
    let name = ["async.json", "rollout.json"]
        .into_iter()
        .find(|name| folder.join(name).exists());
    let name = name.ok_or_else(|| format!("nothing is expected in {}", folder.display()))?;
    parse(&read(&folder.join(name))?)
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
