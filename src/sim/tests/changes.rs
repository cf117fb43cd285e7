//! What can be changed while the server runs, from inside and from outside.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::client::{Client, PATIENCE, config, counts, row, until, with_fault};
use crate::sim::{
    AgentChange, AgentConfig, OverCapacity, RequestEnd, RequestRecord, Sim, SimConfig, SimError,
};

async fn refuses(url: &str) -> bool {
    let address = url.strip_prefix("http://").unwrap();
    let connected = TcpStream::connect(address).await;
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

async fn post(sim: &Sim, path: &str, body: &str) -> (u16, Value) {
    let mut head = Client::connect(sim.head_url()).await;
    let answer = head.call("POST", path, body.as_bytes()).await.unwrap();
    (answer.status, answer.json())
}

#[tokio::test]
async fn what_is_beyond_the_capacity_can_be_refused() {
    let sim = Sim::start(SimConfig {
        capacity: Some(1),
        over_capacity: OverCapacity::Refuse,
        retry_after: Duration::from_millis(1500),
        ..with_fault("0=hang")
    })
    .await
    .unwrap();
    let (mut hung, mut other) = (Client::agent(&sim).await, Client::agent(&sim).await);
    hung.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.max_working == 1).await;
    let answer = other.run(&row(1, 2, 3)).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("2"));
    assert_eq!((counts(&sim).refused, counts(&sim).pending), (1, 0));

    let record = sim.requests("sim").unwrap().remove(1);
    let key = (record.task_index, record.rollout_index, record.attempt);
    assert_eq!((record.number, key), (1, (1, 2, 3)));
    assert_eq!((record.end, record.fault), (RequestEnd::Refused, None));
    let wait = record.not_before_us.unwrap() - record.ended_at_us.unwrap();
    assert_eq!(wait, 2_000_000);

    drop(hung);
    until(&sim, |counts| counts.in_flight == 0).await;
    assert_eq!(other.run(&row(1, 2, 4)).await.status, 200);
}

#[tokio::test]
async fn a_capacity_that_rises_lets_in_who_waits() {
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
    sim.set_capacity("sim", Some(2)).await.unwrap();
    let answer = timeout(PATIENCE, waiting.receive()).await.unwrap();
    assert_eq!(answer.unwrap().status, 200);
    assert_eq!(counts(&sim).max_working, 2);
}

#[tokio::test]
async fn an_agent_that_is_down_refuses_and_comes_back_at_the_same_address() {
    let agents = ["sim", "other"].map(|name| (name.into(), AgentConfig::default()));
    let sim = Sim::start(SimConfig {
        agents: agents.into(),
        ..with_fault("0=hang")
    })
    .await
    .unwrap();
    let url = sim.agent_url("sim").unwrap();
    let (mut hung, mut idle) = (Client::agent(&sim).await, Client::agent(&sim).await);
    assert_eq!(idle.run(&row(1, 0, 0)).await.status, 200);
    hung.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| {
        counts.max_in_flight == 1 && counts.requests == 2
    })
    .await;

    for _ in 0..2 {
        sim.set_down("sim", true).await.unwrap();
        assert!(refuses(&url).await);
    }
    for client in [&mut hung, &mut idle] {
        let end = timeout(PATIENCE, client.0.read(&mut [0])).await.unwrap();
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    let mut other = Client::connect(&sim.agent_url("other").unwrap()).await;
    assert_eq!(other.run(&row(1, 0, 0)).await.status, 200);

    for _ in 0..2 {
        sim.set_down("sim", false).await.unwrap();
        let mut client = Client::connect(&url).await;
        assert_eq!(client.run(&row(1, 0, 0)).await.status, 200);
    }
    assert_eq!(counts(&sim).in_flight, 0);
}

#[tokio::test]
async fn a_request_that_is_cut_off_when_the_agent_goes_down_is_on_record() {
    let sim = Sim::start(SimConfig {
        latency: "fixed:1h".parse().unwrap(),
        ..config()
    })
    .await
    .unwrap();
    let mut client = Client::agent(&sim).await;
    client.send("POST", "/run", row(0, 0, 0).as_bytes()).await;
    until(&sim, |counts| counts.max_working == 1).await;
    assert_eq!(sim.requests("sim").unwrap()[0].end, RequestEnd::Pending);
    sim.set_down("sim", true).await.unwrap();
    let record = sim.requests("sim").unwrap().remove(0);
    assert_eq!(record.end, RequestEnd::Abandoned);
    assert!(record.ended_at_us.unwrap() >= record.arrived_at_us);
    assert_eq!(counts(&sim).abandoned, 1);
}

#[tokio::test]
async fn the_head_server_changes_an_agent() {
    let name = "odd+/ &name";
    let agents = [name, "sim"].map(|name| (name.into(), AgentConfig::default()));
    let sim = Sim::start(SimConfig {
        agents: agents.into(),
        ..config()
    })
    .await
    .unwrap();
    let (url, path) = (sim.agent_url(name).unwrap(), "/sim/odd+%2F%20&name");
    let answer = post(&sim, path, r#"{"capacity": 96, "over_capacity": "refuse"}"#).await;
    let expected = json!({
        "capacity": 96, "over_capacity": "refuse", "down": false, "faults": {}, "latency": "fixed:0s",
    });
    assert_eq!(answer, (200, expected.clone()));
    let mut head = Client::connect(sim.head_url()).await;
    assert_eq!(head.get(path).await.json(), expected);

    let change = r#"{"capacity": null, "faults": {"error_500": 1.0}, "latency": "1ms"}"#;
    let refused = post(&sim, path, change).await;
    assert_eq!(refused.0, 422, "{}", refused.1);
    let change = r#"{"capacity": null, "faults": {"error_500": 1.0}, "latency": "fixed:1ms"}"#;
    let (status, state) = post(&sim, path, change).await;
    assert_eq!((status, &state["capacity"]), (200, &Value::Null));
    assert_eq!(state["latency"], "fixed:1ms");
    let mut client = Client::connect(&url).await;
    assert_eq!(client.run(&row(0, 0, 0)).await.status, 500);
    assert_eq!(
        Client::agent(&sim).await.run(&row(0, 0, 0)).await.status,
        200
    );
    post(&sim, path, r#"{"faults": {}}"#).await;
    assert_eq!(client.run(&row(0, 0, 0)).await.status, 200);

    let (status, state) = post(&sim, path, r#"{"down": true}"#).await;
    assert_eq!((status, &state["down"]), (200, &json!(true)));
    assert!(refuses(&url).await);
    assert_eq!(post(&sim, path, r#"{"down": false}"#).await.0, 200);
    assert_eq!(Client::connect(&url).await.get("/").await.status, 200);
}

#[tokio::test]
async fn a_change_that_makes_no_sense_changes_nothing() {
    let sim = Sim::start(config()).await.unwrap();
    for body in [
        "",
        "[]",
        r#"{"capacity": 0, "down": true}"#,
        r#"{"capacity": "many"}"#,
        r#"{"faults": {"gremlin": 0.1}}"#,
        r#"{"faults": {"hang": 0.7, "reset": 0.7}}"#,
        r#"{"latency": "soon"}"#,
        r#"{"colour": "red"}"#,
    ] {
        let (status, answer) = post(&sim, "/sim/sim", body).await;
        assert_eq!(status, 422, "{body}");
        assert!(answer["detail"].is_string(), "{body}");
    }
    let (status, answer) = post(&sim, "/sim/nobody", "{}").await;
    assert_eq!(status, 404);
    let detail = answer["detail"].as_str().unwrap();
    assert!(
        detail.contains("'nobody'; there are sim, sim_environment,"),
        "{detail}"
    );
    for path in [
        "/sim/nobody/requests",
        "/sim/sim/answers",
        "/sim/",
        "/simsim",
    ] {
        let mut head = Client::connect(sim.head_url()).await;
        assert_eq!(head.get(path).await.status, 404, "{path}");
    }
    assert_eq!(
        Client::agent(&sim).await.run(&row(0, 0, 0)).await.status,
        200
    );

    let error = sim.set_down("nobody", true).await.unwrap_err();
    assert!(matches!(error, SimError::UnknownAgent { .. }));
    assert!(sim.requests("nobody").is_err());
    let error = sim.set_capacity("sim", Some(0)).await.unwrap_err();
    assert!(matches!(error, SimError::Setting { .. }));
    let change = AgentChange {
        faults: Some(Default::default()),
        ..AgentChange::default()
    };
    sim.change("sim", change).await.unwrap();
}

#[tokio::test]
async fn every_request_can_be_read_from_outside() {
    let sim = Sim::start(with_fault("7:0=error_500")).await.unwrap();
    let mut client = Client::agent(&sim).await;
    // More than one page.
    for task in 0..1200 {
        client.run(&row(task, 0, 0)).await;
    }
    assert_eq!(client.run("no row").await.status, 422);
    let url = format!("{}/sim/sim/requests", sim.head_url());
    let answer = timeout(PATIENCE, reqwest::get(url)).await.unwrap().unwrap();
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let records: Vec<RequestRecord> = lines.collect();
    assert_eq!(records, sim.requests("sim").unwrap());
    assert_eq!(records.len(), 1200);
    let failed = records
        .iter()
        .filter(|record| record.end == RequestEnd::Failed);
    let tasks: Vec<u64> = failed.map(|record| record.task_index).collect();
    assert_eq!(tasks, [7]);
}
