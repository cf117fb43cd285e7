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

pub(crate) use self::answer::{CREATED_AT, append_filler, begin_answer, write_answer};
pub(crate) use self::bad_answer::{Refusal, fail, spoil, truncated};
pub(crate) use self::row::Row;
use super::server::endpoint::Endpoint;
use super::server::http::{Abrupt, Reply, alive, detail, json_of, not_found, read_body};
use super::server::requests::RequestRecord;
use crate::outcome::MASK_SAMPLE;

#[derive(Debug)]
pub(crate) struct Agent {
    endpoint: Arc<Endpoint>,
}

impl Agent {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self { endpoint }
    }

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
        let mut admission = self.endpoint.requests().admit();
        let body = match admission.read(body).await {
            Ok(body) => body,
            Err(refused) => return Ok(refused),
        };
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
        admission.received(RequestRecord::arrived(row.key()));
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
        Err(refused) => return refused,
    };
    match aggregate(&body) {
        Ok(metrics) => json_of(&metrics),
        Err(error) => detail(StatusCode::UNPROCESSABLE_ENTITY, error),
    }
}

#[derive(Deserialize)]
struct Collected {
    verify_responses: Vec<Map<String, Value>>,
}

/// Returns the metrics of the responses in a request: the mean reward, over all responses and per task, and two that
/// NeMo Gym lacks: the number of responses and the first reward of each task.
pub(crate) fn aggregate(body: &[u8]) -> Result<Value, serde_json::Error> {
    let Collected { verify_responses } = serde_json::from_slice(body)?;
    let mut rewards = Vec::new();
    let mut per_task: BTreeMap<i64, Vec<&Value>> = BTreeMap::new();
    let is_masked =
        |response: &&Map<String, Value>| response.get(MASK_SAMPLE) == Some(&json!(true));
    for response in verify_responses.iter().filter(|it| !is_masked(it)) {
        let reward = response.get("reward").unwrap_or(&Value::Null);
        if let Some(task) = response.get("_ng_task_index").and_then(Value::as_i64) {
            per_task.entry(task).or_default().push(reward);
        }
        rewards.push(reward);
    }
    let mut metrics = json!({});
    add_mean(&mut metrics, &rewards);
    if !verify_responses.is_empty() {
        metrics["sim/answers"] = json!(verify_responses.len());
    }
    let group = |(task, rewards): (i64, Vec<&Value>)| {
        let mut group = json!({ "_ng_task_index": task });
        add_mean(&mut group, &rewards);
        group["sim/first_reward"] = json!(rewards.first());
        group
    };
    let group_level_metrics: Vec<_> = per_task.into_iter().map(group).collect();
    Ok(json!({
        "agent_metrics": metrics,
        "key_metrics": metrics,
        "group_level_metrics": group_level_metrics,
    }))
}

/// Adds the mean of the rewards that are numbers, if there are any.
fn add_mean(metrics: &mut Value, rewards: &[&Value]) {
    let rewards: Vec<f64> = rewards
        .iter()
        .filter_map(|reward| reward.as_f64())
        .collect();
    if !rewards.is_empty() {
        metrics["mean/reward"] = json!(rewards.iter().sum::<f64>() / rewards.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_all_and_per_task() {
        let body = json!({"verify_responses": [
            {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 1.0},
            {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.0},
            {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 7.0, "mask_sample": true},
            {"_ng_task_index": 1, "_ng_rollout_index": 1, "reward": 0.5},
        ]});
        let metrics = aggregate(body.to_string().as_bytes()).unwrap();
        let all = json!({"mean/reward": 0.5, "sim/answers": 4});
        assert_eq!(
            (&metrics["agent_metrics"], &metrics["key_metrics"]),
            (&all, &all)
        );
        assert_eq!(
            metrics["group_level_metrics"],
            json!([
                {"_ng_task_index": 0, "mean/reward": 0.0, "sim/first_reward": 0.0},
                {"_ng_task_index": 1, "mean/reward": 0.75, "sim/first_reward": 1.0},
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
