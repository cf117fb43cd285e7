//! What the servers answer, and how they end.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::{Client, PATIENCE, config, counts, row, until, with_fault};
use crate::sim::{AgentConfig, Latency, Sim, SimConfig, SimError, oracle};

#[tokio::test]
async fn the_head_server_tells_where_the_agents_are() {
    let agents = ["alpha", "beta: \"odd\""].map(|name| (name.into(), AgentConfig::default()));
    let sim = Sim::start(SimConfig {
        agents: agents.into(),
        ..config()
    })
    .await
    .unwrap();
    let mut head = Client::connect(sim.head_url()).await;

    let text = head.get("/global_config_dict_yaml").await.json();
    let yaml: Value = serde_yaml_ng::from_str(text.as_str().unwrap()).unwrap();
    for (name, url) in sim.agent_urls() {
        let agent = &yaml[&name]["responses_api_agents"]["sim_agent"];
        let host = agent["host"].as_str().unwrap();
        assert_eq!(format!("http://{host}:{}", agent["port"]), url);
        assert_eq!(Client::connect(&url).await.get("/").await.status, 200);
    }
    assert_eq!(head.get("/").await.status, 200);
    let instances = head.get("/server_instances").await.json();
    for (name, url) in sim.agent_urls() {
        let mut instances = instances.as_array().unwrap().iter();
        assert!(
            instances.any(|instance| instance["process_name"] == name && instance["url"] == url)
        );
    }
    assert_eq!(head.get("/run").await.status, 404);
}

#[tokio::test]
async fn answers_are_verify_responses_on_a_connection_that_is_kept() {
    let sim = Sim::start(config()).await.unwrap();
    let mut client = Client::agent(&sim).await;
    for rollout in 0..50 {
        let planned = oracle(&config(), 3, rollout, 0);
        let answer = client.run(&row(3, rollout, 0)).await;
        assert_eq!(answer.status, 200);
        assert!(answer.is_whole());
        assert_eq!(answer.body.len(), config().body_size);
        let body = answer.json();
        assert_eq!(body["reward"], planned.reward);
        assert_eq!(body["extracted_answer"] == 42, planned.correct);
        assert_eq!(body["_ng_rollout_index"], rollout);
        assert_eq!(
            body["response"]["usage"]["output_tokens"],
            planned.output_tokens
        );
    }
    assert_eq!((counts(&sim).requests, counts(&sim).ok), (50, 50));
}

#[tokio::test]
async fn the_same_request_has_the_same_answer_to_the_byte() {
    let (one, other) = (
        Sim::start(config()).await.unwrap(),
        Sim::start(config()).await.unwrap(),
    );
    let first = Client::agent(&one).await.run(&row(1, 2, 0)).await.body;
    assert_eq!(
        Client::agent(&other).await.run(&row(1, 2, 0)).await.body,
        first
    );
    assert_ne!(
        Client::agent(&one).await.run(&row(1, 3, 0)).await.body,
        first
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_on_record() {
    let latency = Latency::Fixed(Duration::from_secs(3600));
    let sim = Sim::start(SimConfig {
        latency,
        ..config()
    })
    .await
    .unwrap();
    let mut client = Client::agent(&sim).await;
    client.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.max_working == 1).await;
    drop(client);
    until(&sim, |counts| {
        counts.abandoned == 1 && counts.in_flight == 0
    })
    .await;
}

#[tokio::test]
async fn capacity_makes_requests_wait_in_line() {
    let sim = Sim::start(SimConfig {
        capacity: Some(1),
        ..with_fault("0=hang")
    })
    .await
    .unwrap();
    let (mut hung, mut waiting) = (Client::agent(&sim).await, Client::agent(&sim).await);
    hung.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.max_working == 1).await;
    waiting.send("POST", "/run", row(1, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.max_in_flight == 2).await;
    assert_eq!((counts(&sim).ok, counts(&sim).pending), (0, 1));
    drop(hung);
    assert_eq!(
        timeout(PATIENCE, waiting.receive())
            .await
            .unwrap()
            .unwrap()
            .status,
        200
    );
    assert_eq!(counts(&sim).max_working, 1);
}

#[tokio::test]
async fn large_rows_come_back_whole() {
    let sim = Sim::start(config()).await.unwrap();
    let mut client = Client::agent(&sim).await;
    let large = format!(r#"{{"blob": "{}", "n": 1.0}}"#, "x".repeat(24 << 20));
    for _ in 0..2 {
        let answer = client.run(&large).await;
        assert!(
            answer
                .body
                .starts_with(large.strip_suffix('}').unwrap().as_bytes())
        );
        assert!(answer.body.ends_with(b"}"));
    }
}

#[tokio::test]
async fn what_is_no_row_is_refused_and_on_record() {
    let sim = Sim::start(config()).await.unwrap();
    let mut client = Client::agent(&sim).await;
    for body in ["", "[]", "{\"a\": nope}", "{\"a\": 1} x"] {
        assert_eq!(client.run(body).await.status, 422, "{body}");
    }
    assert_eq!(
        client
            .call("POST", "/run", b"{\"a\": \"\xff\"}")
            .await
            .unwrap()
            .status,
        422
    );
    let head = format!(
        "POST /run HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n\r\n",
        1_u64 << 40
    );
    client.0.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(
        timeout(PATIENCE, client.receive())
            .await
            .unwrap()
            .unwrap()
            .status,
        413
    );
    assert_eq!((counts(&sim).requests, counts(&sim).rejected), (6, 6));
}

#[tokio::test]
async fn metrics_are_aggregated() {
    let sim = Sim::start(config()).await.unwrap();
    let mut client = Client::agent(&sim).await;
    let body = json!({"verify_responses": [{"reward": 1.0}, {"reward": 0.0}]}).to_string();
    let metrics = client
        .call("POST", "/aggregate_metrics", body.as_bytes())
        .await
        .unwrap()
        .json();
    assert_eq!(
        metrics["agent_metrics"],
        json!({"mean/reward": 0.5, "sim/answers": 2})
    );
    let refused = client
        .call("POST", "/aggregate_metrics", b"{}")
        .await
        .unwrap();
    assert_eq!(refused.status, 422);
}

#[tokio::test]
async fn shutdown_answers_what_is_in_flight() {
    let latency = Latency::Fixed(Duration::from_millis(20));
    let sim = Sim::start(SimConfig {
        latency,
        ..config()
    })
    .await
    .unwrap();
    let url = sim.agent_url("sim").unwrap();
    let (mut idle, mut busy) = (Client::agent(&sim).await, Client::agent(&sim).await);
    assert_eq!(idle.run(&row(1, 0, 0)).await.status, 200);
    busy.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.in_flight == 1).await;
    sim.shutdown(PATIENCE).await;
    assert_eq!(
        timeout(PATIENCE, busy.receive())
            .await
            .unwrap()
            .unwrap()
            .status,
        200
    );
    assert_eq!(idle.0.read(&mut [0]).await.unwrap(), 0);
    assert!(
        TcpStream::connect(url.strip_prefix("http://").unwrap())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn dropping_the_simulation_ends_everything() {
    let sim = Sim::start(with_fault("0=hang")).await.unwrap();
    let mut hung = Client::agent(&sim).await;
    hung.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.in_flight == 1).await;
    drop(sim);
    let ended = timeout(PATIENCE, hung.0.read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_that_names_it() {
    let sim = Sim::start(config()).await.unwrap();
    let port = sim.head_url().rsplit(':').next().unwrap().parse().unwrap();
    let error = Sim::start(SimConfig { port, ..config() })
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{error}"
    );
    let error = Sim::start(SimConfig {
        difficulty: 2.0,
        ..config()
    })
    .await
    .unwrap_err();
    assert!(matches!(error, SimError::Setting { .. }));
}
