//! Every fault, as it arrives.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::time::Duration;

use chrono::DateTime;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{Client, PATIENCE, config, counts, row, until, with_fault};
use crate::sim::{FaultKind, RequestEnd, Sim, SimConfig, oracle};

#[tokio::test]
async fn a_status_500_is_an_answer_and_the_connection_stays() {
    let sim = Sim::start(with_fault("0:0:0=error_500")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    assert_eq!(client.run(&row(0, 0, 0)).await.status, 500);
    assert_eq!(client.run(&row(0, 0, 1)).await.status, 200);
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

#[tokio::test]
async fn a_connection_that_is_closed_in_place_of_an_answer_ends_in_good_order() {
    let sim = Sim::start(with_fault("0=fin")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    assert_eq!(client.run(&row(1, 0, 0)).await.status, 200);
    client.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    let mut rest = Vec::new();
    let end = timeout(PATIENCE, client.0.read_to_end(&mut rest)).await;
    assert_eq!((end.unwrap().unwrap(), rest.len()), (0, 0));
}

#[tokio::test]
async fn every_refusal_says_when_to_come_back_and_is_on_record() {
    for (kind, status, header, value) in [
        ("rate_limited_429", 429, "retry-after", "2"),
        ("error_503", 503, "retry-after", "2"),
        ("rate_limited_date", 429, "retry-after", " GMT"),
        (
            "rate_limited_reset",
            429,
            "x-ratelimit-reset-requests",
            "1.2s",
        ),
    ] {
        let sim = Sim::start(SimConfig {
            retry_after: Duration::from_millis(1200),
            ..with_fault(&format!("0:0:0={kind}"))
        })
        .await
        .unwrap();
        let mut client = Client::agent(&sim).await;
        let answer = client.run(&row(0, 0, 0)).await;
        assert_eq!(answer.status, status, "{kind}");
        let said = answer.header(header).unwrap();
        assert!(said.ends_with(value), "{kind}: {said}");
        let remaining = answer.header("x-ratelimit-remaining-requests");
        assert_eq!(remaining == Some("0"), kind == "rate_limited_reset");
        assert_eq!(client.run(&row(0, 0, 1)).await.status, 200);

        let records = sim.requests("sim").unwrap();
        let [refused, answered] = &*records else {
            panic!("{records:?}")
        };
        assert_eq!(refused.end, RequestEnd::Refused);
        let (ended, not_before) = (refused.ended_at_us, refused.not_before_us);
        assert!(not_before.unwrap() >= ended.unwrap() + 1_200_000, "{kind}");
        assert_eq!(answered.end, RequestEnd::Answered);
        assert_eq!(answered.not_before_us, None);
        if let Ok(date) = DateTime::parse_from_rfc2822(said) {
            let said = u64::try_from(date.timestamp_micros()).unwrap();
            assert_eq!(not_before, Some(said), "{kind}");
        }
    }
}

#[tokio::test]
async fn a_bad_request_has_a_detail() {
    let sim = Sim::start(with_fault("0=bad_request_400")).await.unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.json()["detail"].is_string());
}

#[tokio::test]
async fn a_bomb_is_small_and_says_that_it_is_gzip() {
    let sim = Sim::start(with_fault("0=gzip_bomb")).await.unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert_eq!((answer.status, answer.is_whole()), (200, true));
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert!(answer.body.len() < 1_200_000, "{}", answer.body.len());
    let mut start = [0; 1000];
    flate2::read::MultiGzDecoder::new(&*answer.body)
        .read_exact(&mut start)
        .unwrap();
    assert!(start.starts_with(b"{\"response\"") && start.ends_with(b"     "));
}

#[tokio::test]
async fn an_endless_body_comes_for_as_long_as_it_is_taken() {
    let sim = Sim::start(with_fault("0=endless_body")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    let answer = client.run(&row(0, 0, 0)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
    let mut body = vec![0; 16 << 20];
    let taken = timeout(PATIENCE, client.0.read_exact(&mut body)).await;
    taken.unwrap().unwrap();
    assert!(memchr::memmem::find(&body[..1000], b"{\"response\"").is_some());
    drop(client);
    let mut other = Client::agent(&sim).await;
    assert_eq!(other.run(&row(1, 0, 0)).await.status, 200);
    sim.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn hostile_json_is_the_right_answer_but_for_one_thing() {
    let body = async |kind: &str| {
        let sim = Sim::start(with_fault(&format!("0={kind}"))).await.unwrap();
        let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
        assert_eq!((answer.status, answer.is_whole()), (200, true), "{kind}");
        answer.body
    };
    let deep = String::from_utf8(body("deep_json").await).unwrap();
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let shallow: Value = serde_json::from_str(&deep.replace(&nested, "[]")).unwrap();
    assert!(shallow["reward"].is_f64() && shallow["nested"] == json!([]));

    let bad: Vec<u8> = body("invalid_utf8").await;
    assert!(std::str::from_utf8(&bad).is_err());
    let good: Vec<u8> = bad.into_iter().filter(|byte| *byte != 0xff).collect();
    let good: Value = serde_json::from_slice(&good).unwrap();
    assert!(good["reward"].is_f64());

    let bad = String::from_utf8(body("not_a_number").await).unwrap();
    assert!(serde_json::from_str::<Value>(&bad).is_err());
    let good: Value = serde_json::from_str(&bad.replace("NaN", "0.5")).unwrap();
    assert_eq!(good["reward"], 0.5);
}

#[tokio::test]
async fn a_huge_answer_is_right() {
    let sim = Sim::start(with_fault("0=huge_answer")).await.unwrap();
    let answer = Client::agent(&sim).await.run(&row(0, 0, 0)).await;
    assert_eq!((answer.status, answer.body.len()), (200, 40_000_000));
    let tail = answer.body.len() - 1000;
    let reward = oracle(&with_fault("0=huge_answer"), 0, 0, 0).reward;
    let tail = std::str::from_utf8(&answer.body[tail..]).unwrap();
    assert!(tail.contains(&format!("\"reward\":{reward:.1}")), "{tail}");
    assert_eq!(sim.requests("sim").unwrap()[0].end, RequestEnd::Answered);
}

/// What a client can tell of a request's end.
async fn observed(url: String, row: String) -> &'static str {
    let mut client = Client::connect(&url).await;
    let answer = match client.call("POST", "/run", row.as_bytes()).await {
        Ok(answer) => answer,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return "reset",
        Err(_) => return "fin",
    };
    match answer.status {
        400 => "bad_request_400",
        500 => "error_500",
        503 => "error_503",
        429 => match answer.header("retry-after") {
            None => "rate_limited_reset",
            Some(date) if date.ends_with("GMT") => "rate_limited_date",
            Some(_) => "rate_limited_429",
        },
        _ if answer.header("content-length").is_none() => "endless_body",
        _ if answer.header("content-encoding") == Some("gzip") => "gzip_bomb",
        _ if !answer.is_whole() => "truncated_body",
        _ if answer.body.starts_with(b"<") => "not_json",
        _ if answer.holds("[[[[") => "deep_json",
        _ if answer.holds("NaN") => "not_a_number",
        _ if std::str::from_utf8(&answer.body).is_err() => "invalid_utf8",
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
    let seen = |kind: &FaultKind| {
        let unseen = [
            FaultKind::Hang,
            FaultKind::SlowFirstByte,
            FaultKind::HugeAnswer,
        ];
        !unseen.contains(kind)
    };
    config.faults.0 = FaultKind::ALL
        .into_iter()
        .filter(seen)
        .map(|kind| (kind, 0.05))
        .collect();
    let sim = Sim::start(config.clone()).await.unwrap();
    let url = sim.agent_url("sim").unwrap();
    let mut requests = JoinSet::new();
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let mut plans = BTreeMap::new();
    for (task, rollout) in (0..40).flat_map(|task| (0..5).map(move |rollout| (task, rollout))) {
        for attempt in [0, 1] {
            let plan = oracle(&config, task, rollout, attempt);
            *expected
                .entry(plan.fault.map_or("ok", FaultKind::name))
                .or_default() += 1;
            plans.insert((task, rollout, attempt), plan);
            requests.spawn(observed(url.clone(), row(task, rollout, attempt)));
        }
    }
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for end in requests.join_all().await {
        *ends.entry(end).or_default() += 1;
    }
    assert_eq!(ends, expected);
    assert_eq!(ends.len(), FaultKind::ALL.len() - 2);

    let records = sim.requests("sim").unwrap();
    assert_eq!(records.len(), plans.len());
    for record in records {
        let key = (record.task_index, record.rollout_index, record.attempt);
        let plan = plans.remove(&key).unwrap();
        assert_eq!(record.fault, plan.fault);
        let answered = record.end == RequestEnd::Answered;
        assert_eq!(answered, plan.gives_rollout(), "{record:?}");
        let refused = record.end == RequestEnd::Refused;
        assert_eq!(refused, record.not_before_us.is_some(), "{record:?}");
        assert!(record.ended_at_us.unwrap() >= record.arrived_at_us);
    }

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
    assert_eq!(stats["ok"], ends.remove("ok").unwrap());
    assert_eq!(stats["faults"], json!(ends));
}
