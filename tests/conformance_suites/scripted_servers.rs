//! A model and an environment that say what a script says, and note what they are asked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Serves until it is dropped.
pub struct ScriptedServers {
    url: String,
    stage: Arc<Mutex<Stage>>,
    _serving: JoinSet<()>,
}

/// What was asked of a model and an environment in one turn.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Texts of the messages, or token ids.
    pub conversation: Vec<Value>,
    /// `stop`; null where there was none.
    pub stop: Value,
    /// What the environment was told; none where it was not asked.
    pub metadata: Option<Value>,
}

struct Stage {
    samples: Vec<Value>,
    /// Numbers of the words, where the model speaks in them.
    words: HashMap<String, u32>,
    /// Status of an answer where the script has an error.
    error_status: u16,
    asked: HashMap<usize, Vec<Asked>>,
    /// What did not fit the script.
    complaints: Vec<String>,
}

impl ScriptedServers {
    pub async fn start(
        samples: &Value,
        words: HashMap<String, u32>,
        error_status: u16,
    ) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let stage = Arc::new(Mutex::new(Stage {
            samples: samples.as_array().cloned().unwrap_or_default(),
            words,
            error_status,
            asked: HashMap::new(),
            complaints: Vec::new(),
        }));
        let kept = Arc::clone(&stage);
        let mut serving = JoinSet::new();
        let serve = async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let stage = Arc::clone(&kept);
                let service = service_fn(move |request| answer(request, Arc::clone(&stage)));
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        };
        serving.spawn_on(serve, &Handle::current());
        Ok(Self {
            url: format!("http://{address}"),
            stage,
            _serving: serving,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// What was asked for a rollout, turn by turn.
    pub fn asked(&self, rollout: usize) -> Vec<Asked> {
        let stage = self.stage.lock().unwrap();
        stage.asked.get(&rollout).cloned().unwrap_or_default()
    }

    /// What did not fit the script.
    pub fn complaints(&self) -> String {
        self.stage.lock().unwrap().complaints.join("; ")
    }
}

async fn answer(
    request: Request<Incoming>,
    stage: Arc<Mutex<Stage>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let id = request.headers().get("x-request-id").cloned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut stage = stage.lock().unwrap();
    let id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("");
    let answer = match path.as_str() {
        "/v1/chat/completions" | "/v1/completions" => stage.generate(id, &body),
        "/step" => stage.step(&body),
        _ => Err(format!("nothing is at {path}")),
    };
    let (status, answer) = answer.unwrap_or_else(|complaint| {
        stage.complaints.push(complaint.clone());
        (400, json!({ "error": complaint }))
    });
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap();
    Ok(response)
}

impl Stage {
    /// The answer of the model, and its status. `id` is T-R-aA-cC: every turn is two calls.
    fn generate(&mut self, id: &str, body: &Value) -> Result<(u16, Value), String> {
        let rollout = rollout_of(id)?;
        let asked = self.asked.entry(rollout).or_default();
        let turn = asked.len();
        if !id.ends_with(&format!("-a0-c{}", 2 * turn)) {
            return Err(format!("turn {turn} has the request {id}"));
        }
        let conversation = match &body["messages"] {
            Value::Array(messages) => messages.iter().map(|it| it["content"].clone()).collect(),
            _ => body["prompt"].as_array().cloned().unwrap_or_default(),
        };
        asked.push(Asked {
            conversation,
            stop: body["stop"].clone(),
            metadata: None,
        });
        let generate = &self.samples[rollout]["turns"][turn]["generate"];
        if generate.is_null() {
            return Err(format!(
                "the script has no turn {turn} of rollout {rollout}"
            ));
        }
        if let Some(error) = generate.get("error") {
            return Ok((self.error_status, json!({ "error": error })));
        }
        let text = generate["text"].as_str().unwrap_or_default();
        let tokens: Vec<&str> = text.split_whitespace().collect();
        let mut choice = json!({
            "index": 0,
            "finish_reason": if generate["truncated"] == true { "length" } else { "stop" },
        });
        if body["prompt"].is_array() {
            let ids: Vec<u32> = tokens.iter().map(|word| self.words[*word]).collect();
            choice["text"] = text.into();
            choice["logprobs"] = json!({"tokens": tokens, "token_logprobs": vec![-0.5; ids.len()]});
            choice["token_ids"] = ids.into();
            choice["prompt_token_ids"] = body["prompt"].clone();
        } else {
            choice["message"] = json!({"role": "assistant", "content": text});
        }
        let mut answer = json!({
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": tokens.len()},
        });
        if let Some(worker) = generate.get("worker") {
            answer["worker"] = worker.clone();
        }
        Ok((200, answer))
    }

    fn step(&mut self, body: &Value) -> Result<(u16, Value), String> {
        let none = Vec::new();
        let ids = body["rollout_ids"].as_array().unwrap_or(&none);
        let mut results = Vec::new();
        for (place, id) in ids.iter().enumerate() {
            let rollout = rollout_of(id.as_str().unwrap_or_default())?;
            let asked = self.asked.get_mut(&rollout).ok_or("a step before a turn")?;
            let turn = asked.len().saturating_sub(1);
            let last = asked.last_mut().ok_or("a step before a turn")?;
            if last.metadata.is_some() {
                return Err(format!("a second step in turn {turn} of rollout {rollout}"));
            }
            last.metadata = Some(body["metadata"][place].clone());
            let turn = &self.samples[rollout]["turns"][turn];
            let said = body["message_log_batch"][place]
                .as_array()
                .and_then(|log| log.last());
            let said = said.map(|message| &message["content"]);
            if said != Some(&turn["generate"]["text"]) {
                return Err(format!(
                    "rollout {rollout} does not end with its generation: {said:?}"
                ));
            }
            if let Some(error) = turn["env"].get("error") {
                return Ok((self.error_status, json!({ "error": error })));
            }
            results.push(turn["env"].clone());
        }
        let all = |name: &str| -> Value { results.iter().map(|env| env[name].clone()).collect() };
        let observations = results
            .iter()
            .map(|env| json!({"role": env["role"], "content": env["content"]}));
        let answer = json!({
            "observations": observations.collect::<Value>(),
            "metadata": all("metadata"),
            "next_stop_strings": all("next_stop_strings"),
            "rewards": all("reward"),
            "terminateds": all("terminated"),
            "answers": null,
        });
        Ok((200, answer))
    }
}

/// The rollout in a request's id, or in a rollout's.
fn rollout_of(id: &str) -> Result<usize, String> {
    let rollout = id.split('-').nth(1).and_then(|part| part.parse().ok());
    rollout.ok_or_else(|| format!("'{id}' names no rollout"))
}
