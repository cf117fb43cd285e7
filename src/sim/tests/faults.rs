//! Every fault, as it arrives.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use super::client::{Client, config, counts, row, until, with_fault};
use crate::sim::{FaultKind, Sim, SimConfig, oracle};

#[tokio::test]
async fn a_status_500_is_an_answer_and_the_connection_stays() {
    let sim = Sim::start(with_fault("0:0:0=error_500")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    assert_eq!(client.run(&row(0, 0, 0)).await.status, 500);
    assert_eq!(client.run(&row(0, 0, 1)).await.status, 200);
}

#[tokio::test]
async fn a_status_429_says_when_to_come_back() {
    let retry_after = Duration::from_millis(1200);
    let sim = Sim::start(SimConfig {
        retry_after,
        ..with_fault("0=rate_limited_429")
    })
    .await
    .unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert_eq!(answer.status, 429);
    assert!(
        answer.head.contains("\r\nretry-after: 2\r\n"),
        "{}",
        answer.head
    );
}

#[tokio::test]
async fn a_reset_is_a_reset() {
    let sim = Sim::start(with_fault("0=reset")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    assert_eq!(client.run(&row(1, 0, 0)).await.status, 200);
    let error = client
        .call("POST", "/run", row(0, 0, 0).as_bytes())
        .await
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_truncated_body_promises_more_than_comes() {
    for body_size in [1000, 3_000_000] {
        let sim = Sim::start(SimConfig {
            body_size,
            ..with_fault("0=truncated_body")
        })
        .await
        .unwrap();
        let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body.len(), answer.promised / 2);
        assert!(answer.promised >= 1000);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_json_is_html() {
    let sim = Sim::start(with_fault("0=not_json")).await.unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("text/html"));
    assert!(answer.body.starts_with(b"<!doctype html>"));
}

#[tokio::test]
async fn flags_and_a_missing_reward_reach_the_client() {
    for (kind, field) in [
        ("no_persist", "_ng_no_persist"),
        ("failure_class", "_ng_failure_class"),
        ("failure_terminal", "_ng_failure_terminal"),
    ] {
        let sim = Sim::start(with_fault(&format!("0={kind}"))).await.unwrap();
        let body = Client::agent(&sim).await.run(&row(0, 0, 0)).await.json();
        assert!(!body[field].is_null(), "{kind}");
    }
    let sim = Sim::start(with_fault("0=missing_reward")).await.unwrap();
    let body = Client::agent(&sim).await.run(&row(0, 0, 0)).await.json();
    assert!(body.get("reward").is_none() && body.get("response").is_some());
}

#[tokio::test]
async fn a_slow_first_byte_still_brings_the_answer() {
    let slow_first_byte = Duration::from_millis(30);
    let sim = Sim::start(SimConfig {
        slow_first_byte,
        ..with_fault("0=slow_first_byte")
    })
    .await
    .unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert!(answer.json()["reward"].is_f64());
    assert_eq!(
        counts(&sim).faults,
        BTreeMap::from([(FaultKind::SlowFirstByte, 1)])
    );
}

#[tokio::test]
async fn a_hang_lasts_until_the_client_goes() {
    let sim = Sim::start(with_fault("0=hang")).await.unwrap();
    let mut hung = Client::agent(&sim).await;
    hung.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.faults.contains_key(&FaultKind::Hang)).await;
    assert_eq!(
        Client::agent(&sim).await.run(&row(1, 0, 0)).await.status,
        200
    );
    assert_eq!((counts(&sim).in_flight, counts(&sim).pending), (1, 0));
    drop(hung);
    until(&sim, |counts| counts.in_flight == 0).await;
    assert_eq!(counts(&sim).abandoned, 0);
}

/// What a client can tell of a request's end.
async fn observed(url: String, row: String) -> &'static str {
    let mut client = Client::connect(&url).await;
    let Ok(answer) = client.call("POST", "/run", row.as_bytes()).await else {
        return "reset";
    };
    match answer.status {
        500 => "error_500",
        429 => "rate_limited_429",
        _ if !answer.is_whole() => "truncated_body",
        _ if answer.body.starts_with(b"<") => "not_json",
        _ if answer.json().get("reward").is_none() => "missing_reward",
        _ if answer.json().get("_ng_no_persist").is_some() => "no_persist",
        _ if answer.json().get("_ng_failure_terminal").is_some() => "failure_terminal",
        _ if answer.json().get("_ng_failure_class").is_some() => "failure_class",
        _ => "ok",
    }
}

#[tokio::test]
async fn every_request_ends_as_the_oracle_says_and_is_on_record() {
    let mut config = SimConfig {
        seed: 5,
        fault_attempts: Some(1),
        ..config()
    };
    let seen = |kind: &FaultKind| !matches!(kind, FaultKind::Hang | FaultKind::SlowFirstByte);
    config.faults.0 = FaultKind::ALL
        .into_iter()
        .filter(seen)
        .map(|kind| (kind, 0.08))
        .collect();
    let sim = Sim::start(config.clone()).await.unwrap();
    let url = sim.agent_url("sim").unwrap();
    let mut requests = JoinSet::new();
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for (task, rollout) in (0..40).flat_map(|task| (0..5).map(move |rollout| (task, rollout))) {
        for attempt in [0, 1] {
            let fault = oracle(&config, task, rollout, attempt).fault;
            *expected
                .entry(fault.map_or("ok", FaultKind::name))
                .or_default() += 1;
            requests.spawn(observed(url.clone(), row(task, rollout, attempt)));
        }
    }
    let mut tally: BTreeMap<&str, u64> = BTreeMap::new();
    for end in requests.join_all().await {
        *tally.entry(end).or_default() += 1;
    }
    assert_eq!(tally, expected);
    assert_eq!(tally.len(), 10);

    let stats = Client::connect(sim.head_url())
        .await
        .get("/stats")
        .await
        .json();
    let stats = &stats["agents"]["sim"];
    assert_eq!(
        (&stats["requests"], &stats["pending"]),
        (&json!(400), &json!(0))
    );
    assert_eq!(stats["ok"], tally.remove("ok").unwrap());
    assert_eq!(stats["faults"], json!(tally));
}
