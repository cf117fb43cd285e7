//! A client that runs episodes itself.

use std::time::Duration;

use reqwest::StatusCode;
use rollstream::sim::{Latency, Sim, SimConfig};
use serde_json::{Value, json};

pub const QUESTION: &str = "What is 30 + 12?";

pub fn config() -> SimConfig {
    SimConfig {
        latency: Latency::Fixed(Duration::ZERO),
        difficulty: 0.0,
        ..SimConfig::default()
    }
}

pub async fn sim(turns: u64) -> Sim {
    let turns = Some(turns);
    Sim::start(SimConfig { turns, ..config() }).await.unwrap()
}

pub fn row() -> Value {
    json!({
        "responses_create_params": {"input": [{"role": "user", "content": QUESTION}]},
        "expected_answer": 42,
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "topic": "sums",
    })
}

/// A client that sends the cookies it was given, and counts its requests.
pub struct Client {
    pub http: reqwest::Client,
    pub cookie: Option<String>,
    rollout: &'static str,
    calls: u64,
}

impl Client {
    pub fn new() -> Self {
        Self::of("3-1-a0")
    }

    pub fn of(rollout: &'static str) -> Self {
        Self {
            http: reqwest::Client::new(),
            cookie: None,
            rollout,
            calls: 0,
        }
    }

    pub async fn send(&mut self, url: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let id = format!("{}-c{}", self.rollout, self.calls);
        self.calls += 1;
        self.send_as(&id, url, path, body).await
    }

    pub async fn send_as(
        &mut self,
        id: &str,
        url: &str,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let mut request = self.http.post(format!("{url}{path}"));
        request = request.header("x-request-id", id).body(body.to_string());
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        if let Some(cookie) = response.headers().get("set-cookie") {
            let pair = cookie.to_str().unwrap().split(';').next().unwrap();
            self.cookie = Some(pair.to_owned());
        }
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    pub async fn post(&mut self, url: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.send(url, path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    pub async fn refused(&mut self, url: &str, path: &str, body: &Value) -> (u16, String) {
        let (status, answer) = self.send(url, path, body).await;
        (
            status.as_u16(),
            answer["detail"].as_str().unwrap().to_owned(),
        )
    }
}

pub async fn get(url: &str) -> Value {
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    serde_json::from_str(&text).unwrap()
}
