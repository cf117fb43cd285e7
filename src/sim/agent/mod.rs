//! The simulated agent: [`Agent`] answers `POST /run` as planned, `POST /aggregate_metrics` and `GET /`.
//!
//! [`Row`] reads the request, [`write_answer`] builds the answer, and `bad_answer` does what a fault does.

mod answer;
mod bad_answer;
mod row;

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) use self::answer::{CREATED_AT, append, append_filler, write_answer};
pub(crate) use self::bad_answer::{Refusal, fail, spoil, truncated};
pub(crate) use self::row::Row;
use super::server::endpoint::Endpoint;
use super::server::http::{Abrupt, Reply, alive, detail, json_of, not_found, read_body};
use super::server::requests::now_us;
use crate::outcome::MASK_SAMPLE;

/// A simulated agent.
#[derive(Debug)]
pub(crate) struct Agent {
    endpoint: Arc<Endpoint>,
}

impl Agent {
    /// Creates the agent of an endpoint.
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint }
    }

    /// Answers a request.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Reply, Abrupt> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/run") => self.run(request.into_body()).await,
            (&Method::POST, "/aggregate_metrics") => Ok(aggregated(request.into_body()).await),
            (&Method::GET, "/") => Ok(alive()),
            _ => Ok(not_found()),
        }
    }

    async fn run(&self, body: Incoming) -> Result<Reply, Abrupt> {
        let mut admission = self.endpoint.admit();
        let body = match admission.read(body).await {
            Ok(body) => body,
            Err(refused) => return Ok(refused),
        };
        let arrived_at_us = now_us();
        let text = std::str::from_utf8(&body).map_err(|error| error.to_string());
        let row = text.and_then(|text| Row::parse(text).map_err(|error| error.to_string()));
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                admission.reject();
                let why = format!("the body is not a row: {why}");
                return Ok(detail(StatusCode::UNPROCESSABLE_ENTITY, why));
            }
        };
        admission.received(row.key(), arrived_at_us, None);
        let profile = self.endpoint.profile();
        let planned = profile.plan(row.key(), row.difficulty());
        let answer = || Ok(write_answer(&row, &planned, &profile).into());
        let (fault, latency) = (planned.fault, planned.latency);
        let replied = self
            .endpoint
            .reply(&mut admission, &profile, fault, latency, answer);
        replied.await
    }
}

async fn aggregated(body: Incoming) -> Reply {
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => return error.reply(),
    };
    match aggregate(&body) {
        Ok(metrics) => json_of(&metrics),
        Err(error) => detail(StatusCode::UNPROCESSABLE_ENTITY, error),
    }
}

/// A field that describes the rollout and measures nothing.
fn is_reserved(name: &str) -> bool {
    name.starts_with('_') || name == MASK_SAMPLE
}

/// The number of responses, and the reward of the first response of a task.
const ANSWERS: &str = "sim/answers";
const FIRST_REWARD: &str = "sim/first_reward";

const KEY_METRICS: [&str; 2] = ["mean/reward", ANSWERS];

#[derive(Deserialize)]
struct Collected {
    verify_responses: Vec<Map<String, Value>>,
}

/// Sum and count of values, by metric in order of first appearance.
#[derive(Default)]
struct Means(Vec<(String, f64, f64)>);

impl Means {
    fn add(&mut self, response: &Map<String, Value>) {
        let usage = response
            .get("response")
            .and_then(|r| r.get("usage"))
            .and_then(Value::as_object);
        for (name, value) in response.iter().chain(usage.into_iter().flatten()) {
            let number = value
                .as_bool()
                .map(|b| f64::from(u8::from(b)))
                .or(value.as_f64());
            let Some(number) = number.filter(|_| !is_reserved(name)) else {
                continue;
            };
            match self.0.iter_mut().find(|(known, ..)| known == name) {
                Some((_, sum, n)) => (*sum, *n) = (*sum + number, *n + 1.0),
                None => self.0.push((name.clone(), number, 1.0)),
            }
        }
    }

    fn write(self, to: &mut Map<String, Value>) {
        to.extend(
            self.0
                .into_iter()
                .map(|(name, sum, n)| (format!("mean/{name}"), json!(sum / n))),
        );
    }
}

/// Returns the metrics of the responses in a request: the mean of every number, over all responses and per task, and two
/// metrics of its own.
///
/// # Errors
/// The body is not `{"verify_responses": [{...}, ...]}`.
pub(crate) fn aggregate(body: &[u8]) -> Result<Value, serde_json::Error> {
    let Collected { verify_responses } = serde_json::from_slice(body)?;
    let mut all = Means::default();
    let mut per_task: BTreeMap<i64, (Means, Value)> = BTreeMap::new();
    let is_masked = |response: &Map<String, Value>| {
        let mask = response.get(MASK_SAMPLE);
        mask.is_some_and(|mask| *mask == true)
    };
    for response in verify_responses
        .iter()
        .filter(|response| !is_masked(response))
    {
        all.add(response);
        if let Some(task) = response.get("_ng_task_index").and_then(Value::as_i64) {
            let first_reward = || response.get("reward").cloned().unwrap_or_default();
            let of_task = per_task.entry(task);
            let (means, _) = of_task.or_insert_with(|| (Means::default(), first_reward()));
            means.add(response);
        }
    }
    let mut agent_metrics = Map::new();
    all.write(&mut agent_metrics);
    let mut key_metrics = Map::new();
    if !verify_responses.is_empty() {
        agent_metrics.insert(ANSWERS.into(), json!(verify_responses.len()));
        let key = agent_metrics
            .iter()
            .filter(|(name, _)| KEY_METRICS.contains(&name.as_str()));
        key_metrics.extend(key.map(|(name, value)| (name.clone(), value.clone())));
    }
    let group = |(task, (means, first_reward)): (i64, (Means, Value))| {
        let mut group = Map::from_iter([("_ng_task_index".to_owned(), json!(task))]);
        means.write(&mut group);
        group.insert(FIRST_REWARD.into(), first_reward);
        group
    };
    let group_level_metrics: Vec<_> = per_task.into_iter().map(group).collect();
    Ok(json!({
        "agent_metrics": agent_metrics,
        "key_metrics": key_metrics,
        "group_level_metrics": group_level_metrics,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_and_per_task() {
        let body = json!({"verify_responses": [
            {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 1.0, "ok": true, "name": "x"},
            {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.0, "ok": false,
             "response": {"usage": {"output_tokens": 8, "details": {"n": 1}}}},
            {"_ng_task_index": 1, "_ng_rollout_index": 1, "reward": 0.5},
        ]});
        let metrics = aggregate(body.to_string().as_bytes()).unwrap();
        let all = json!({"mean/reward": 0.5, "mean/ok": 0.5, "mean/output_tokens": 8.0, "sim/answers": 3});
        assert_eq!(metrics["agent_metrics"], all);
        let key = json!({"mean/reward": 0.5, "sim/answers": 3});
        assert_eq!(metrics["key_metrics"], key);
        assert_eq!(
            metrics["group_level_metrics"],
            json!([
                {"_ng_task_index": 0, "mean/reward": 0.0, "mean/ok": 0.0, "mean/output_tokens": 8.0,
                 "sim/first_reward": 0.0},
                {"_ng_task_index": 1, "mean/reward": 0.75, "mean/ok": 1.0, "sim/first_reward": 1.0},
            ])
        );
    }

    #[test]
    fn no_responses_have_no_metrics() {
        let metrics = aggregate(br#"{"verify_responses": []}"#).unwrap();
        assert_eq!(
            metrics,
            json!({"agent_metrics": {}, "key_metrics": {}, "group_level_metrics": []})
        );
        assert!(aggregate(b"[]").is_err());
    }
}
