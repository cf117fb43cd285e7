//! `run.json`: what was asked, and what became of it.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use rollstream::Sweep;
use rollstream::config::{AgentSettings, Settings};
use rollstream::sim::{AgentConfig, Sim, SimConfig};
use serde_json::{Value, json};

use super::given_answers::GivenAnswers;
use super::workspace::{Workspace, hanging, quick, sweep, sweep_until, tasks};

fn record(place: &Workspace) -> Value {
    serde_json::from_slice(&fs::read(place.run().join("run.json")).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_run_says_what_was_asked_and_what_became_of_it() {
    let place = Workspace::new();
    let faults = vec![
        "0=error_500".parse().unwrap(),
        "1:0=failure_terminal".parse().unwrap(),
    ];
    let sim = Sim::start(SimConfig {
        fault_at: faults,
        ..quick(&[("sim", AgentConfig::default())])
    })
    .await
    .unwrap();
    let lines = tasks(10, &["sim"]);
    let settings = place.settings(&lines, 3, &sim);
    sweep(settings.clone()).await;

    let record = record(&place);
    assert_eq!(
        (
            &record["schema_version"],
            &record["state"],
            &record["num_tasks"]
        ),
        (&json!(4), &json!("finished"), &json!(10))
    );
    assert_eq!(
        record["rollouts"],
        json!({"planned": 30, "done": 26, "failed": 4, "pending": 0})
    );
    assert_eq!(
        record["agents"],
        json!({"sim": sim.agent_url("sim").unwrap()})
    );
    let digest = blake3::hash(lines.as_bytes()).to_hex().to_string();
    let input = json!([{"path": settings.input[0], "digest": digest, "num_bytes": lines.len()}]);
    assert_eq!(record["inputs"], input);
    assert_eq!(record["identity"]["input"], json!([digest]));
    let asked: Settings = serde_json::from_value(record["settings"].clone()).unwrap();
    assert_eq!(asked, settings);
    let times = ["created_at", "finished_at"].map(|key| record[key].as_str().unwrap().to_owned());
    assert!(
        times
            .iter()
            .all(|time| chrono::DateTime::parse_from_rfc3339(time).is_ok())
            && times[0] <= times[1]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_was_stopped_says_so() {
    let place = Workspace::new();
    let sim = hanging().await;
    let settings = place.settings(&tasks(10, &["sim"]), 2, &sim);
    let run = place.run();
    sweep_until(settings, "the run is under way", move |sweep| {
        let (progress, path) = (sweep.progress(), run.join("run.json"));
        Box::new(move || {
            let state = fs::read(&path)
                .ok()
                .and_then(|text| serde_json::from_slice::<Value>(&text).ok());
            progress.in_flight() > 0 && state.is_some_and(|record| record["state"] == "running")
        })
    })
    .await;
    let record = record(&place);
    assert_eq!(record["state"], "interrupted");
    assert_eq!(
        record["rollouts"],
        json!({"planned": 20, "done": 0, "failed": 0, "pending": 20})
    );
}

/// A variable that is set wherever tests run; its text stands for a secret.
const VARIABLE: &str = "PATH";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_reach_the_agent_and_no_file() {
    let place = Workspace::new();
    let secret = std::env::var(VARIABLE).unwrap();
    let agent = GivenAnswers::start(vec![Bytes::from_static(br#"{"reward": 1}"#)]).await;
    let own = AgentSettings {
        url: Some(agent.url().parse().unwrap()),
        bearer_token_env: Some(VARIABLE.parse().unwrap()),
        ..AgentSettings::default()
    };
    let settings = Settings {
        input: vec![place.write("tasks.jsonl", tasks(1, &["given"]))],
        agents: BTreeMap::from([("given".to_owned(), own)]),
        aggregate: true,
        ..place.bare_settings(1)
    };
    let sweep = Sweep::prepare(settings).await.unwrap();
    assert!(!format!("{sweep:?}").contains(&secret));
    sweep.collect().await.unwrap();
    assert_eq!(
        agent.asked()[0].authorization,
        Some(format!("Bearer {secret}"))
    );
    let text = fs::read_to_string(place.run().join("run.json")).unwrap();
    assert!(text.contains(VARIABLE) && !text.contains(&secret));
}
