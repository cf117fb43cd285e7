//! Answers that a case scripts for the calls of each rollout.

use std::collections::HashMap;
use std::sync::Mutex;

use rollstream::json::{Object, unquote};
use serde_json::Value;

/// Answers by task and rollout, as `TASK-ROLLOUT`; the last one of each is repeated.
#[derive(Debug, Default)]
pub struct ScriptedReplies {
    script: HashMap<String, Vec<Reply>>,
    calls: Mutex<HashMap<String, usize>>,
}

/// What a server does with a call.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub text: String,
    /// The body ends before its length says so.
    pub is_cut: bool,
    /// The connection ends without an answer.
    pub is_disconnect: bool,
}

impl Reply {
    /// An answer with status 200.
    pub fn ok(text: impl Into<String>) -> Self {
        Self {
            status: 200,
            text: text.into(),
            is_cut: false,
            is_disconnect: false,
        }
    }

    /// The server has no such route.
    pub fn none() -> Self {
        Self {
            status: 404,
            ..Self::ok("{}")
        }
    }

    fn of(reply: &Value) -> Self {
        let text = match &reply["json"] {
            Value::Null => reply["text"].as_str().unwrap_or_default().to_owned(),
            json => json.to_string(),
        };
        Self {
            status: u16::try_from(reply["status"].as_u64().unwrap_or(200)).unwrap(),
            text,
            is_cut: reply["cut"] == true,
            is_disconnect: reply["disconnect"] == true,
        }
    }
}

impl ScriptedReplies {
    /// Reads `replies.jsonl`.
    pub fn parse(replies: &str) -> Result<Self, String> {
        Self::of_lines(replies, |line| {
            let replies = line["replies"].as_array().into_iter().flatten();
            replies.map(Reply::of).collect()
        })
    }

    /// Reads `results.jsonl`: one result for each rollout.
    pub fn results(results: &str) -> Result<Self, String> {
        Self::of_lines(results, |line| vec![Reply::ok(line["result"].to_string())])
    }

    fn of_lines(text: &str, replies: impl Fn(&Value) -> Vec<Reply>) -> Result<Self, String> {
        let mut script = HashMap::new();
        for line in text.split('\n').filter(|line| !line.trim().is_empty()) {
            let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
            let key = key(&line["task"].to_string(), &line["rollout"].to_string());
            script.insert(key, replies(&line));
        }
        Ok(Self {
            script,
            calls: Mutex::default(),
        })
    }

    /// The answer to the next call with this body.
    pub fn next(&self, body: &str) -> Option<Reply> {
        let key = rollout_of(body);
        let replies = self.script.get(&key)?;
        let mut calls = self.calls.lock().unwrap();
        let call = calls.entry(key).or_default();
        *call += 1;
        replies.get(*call - 1).or(replies.last()).cloned()
    }

    /// How many of a rollout's calls get no answer before the first that gets one.
    pub fn disconnects(&self, rollout: &str) -> usize {
        let replies = self.script.get(rollout).map_or(&[][..], Vec::as_slice);
        let disconnects = replies.iter().take_while(|reply| reply.is_disconnect);
        disconnects.count()
    }

    /// Some call gets no answer.
    pub fn has_disconnects(&self) -> bool {
        let mut replies = self.script.values().flatten();
        replies.any(|reply| reply.is_disconnect)
    }
}

fn key(task: &str, rollout: &str) -> String {
    let plain =
        |text: &str| unquote(text).map_or_else(|| text.to_owned(), |text| text.into_owned());
    format!("{}-{}", plain(task), plain(rollout))
}

/// The rollout that a request, or a row, is of.
pub fn rollout_of(body: &str) -> String {
    let row = Object::parse(body).unwrap_or_default();
    let part = |name: &str| row.get(name).unwrap_or_default().to_owned();
    match row.get("episode_id").map(Object::parse) {
        Some(Ok(episode)) => {
            let id = episode.get("rollout_id").and_then(unquote);
            id.map(|id| id.into_owned()).unwrap_or_default()
        }
        _ => key(&part("_ng_task_index"), &part("_ng_rollout_index")),
    }
}
