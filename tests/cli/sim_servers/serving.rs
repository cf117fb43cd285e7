//! Where the servers are, what goes wrong with them, and what they record.

use rollstream::sim::{FaultKind, RequestEnd, RequestRecord, Sim};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::{Client, QUESTION, config, get, row};
use crate::common::Folder;

async fn records(sim: &Sim, server: &str) -> Vec<RequestRecord> {
    let url = format!("{}/sim/{server}/requests", sim.head_url());
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn the_head_server_lists_them_and_an_agent_that_joins_two() {
    let sim = Sim::start(config()).await.unwrap();
    let text = get(&format!("{}/global_config_dict_yaml", sim.head_url())).await;
    let yaml: Value = serde_yaml_ng::from_str(text.as_str().unwrap()).unwrap();
    for (path, url) in [
        ("/sim_model/responses_api_models/sim_model", sim.model_url()),
        ("/sim_tools/resources_servers/sim_tools", sim.tools_url()),
        (
            "/sim_gymnasium/resources_servers/sim_gymnasium",
            sim.gymnasium_url(),
        ),
        (
            "/sim_environment/resources_servers/sim_environment",
            sim.environment_url(),
        ),
        (
            "/sim_tool_agent/responses_api_agents/simple_agent",
            sim.tools_url(),
        ),
    ] {
        let server = yaml.pointer(path).unwrap();
        let host = server["host"].as_str().unwrap();
        assert_eq!(format!("http://{host}:{}", server["port"]), url, "{path}");
        assert_eq!(reqwest::get(url).await.unwrap().status(), 200, "{path}");
    }
    let agent = &yaml["sim_tool_agent"]["responses_api_agents"]["simple_agent"];
    assert_eq!(
        agent["resources_server"],
        json!({"type": "resources_servers", "name": "sim_tools"})
    );
    assert_eq!(
        agent["model_server"],
        json!({"type": "responses_api_models", "name": "sim_model"})
    );
    assert_eq!(sim.agent_urls().into_keys().collect::<Vec<_>>(), ["sim"]);
    let models = get(&format!("{}/v1/models", sim.model_url())).await;
    assert_eq!(models["data"][0]["id"], "rollstream-sim");
}

#[tokio::test]
async fn faults_hit_calls_and_all_calls_are_on_record() {
    let mut settings = config();
    settings.fault_attempts = Some(1);
    let rate = |kind| Some(rollstream::sim::FaultRates([(kind, 1.0)].into()));
    settings.model.faults = rate(FaultKind::RateLimited429);
    settings.tools.faults = rate(FaultKind::MissingReward);
    settings.environment.faults = rate(FaultKind::TruncatedBody);
    let sim = Sim::start(settings).await.unwrap();
    let mut client = Client::new();
    let ask = json!({"input": QUESTION});
    for (id, status) in [
        ("3-1-a0-c0", 429),
        ("3-1-a0-c0-t1", 200),
        ("3-1-a1-c0", 200),
    ] {
        let answered = client
            .send_as(id, sim.model_url(), "/v1/responses", &ask)
            .await;
        assert_eq!(answered.0, status, "{id}");
    }
    let records_of_model = records(&sim, "sim_model").await;
    assert_eq!(records_of_model, sim.requests("sim_model").unwrap());
    let brief = records_of_model.iter().map(|record| {
        let id = record.request_id.as_deref().unwrap();
        (
            record.task_index,
            record.rollout_index,
            record.attempt,
            id,
            record.end,
        )
    });
    let expected = [
        (3, 1, 0, "3-1-a0-c0", RequestEnd::Refused),
        (3, 1, 0, "3-1-a0-c0-t1", RequestEnd::Answered),
        (3, 1, 1, "3-1-a1-c0", RequestEnd::Answered),
    ];
    assert_eq!(brief.collect::<Vec<_>>(), expected);
    assert_eq!(records_of_model[0].path.as_deref(), Some("/v1/responses"));
    assert!(records_of_model[0].not_before_us.is_some());

    client.post(sim.tools_url(), "/seed_session", &row()).await;
    let mut body = row();
    body["response"] = json!({"output": []});
    let verified = client.post(sim.tools_url(), "/verify", &body).await;
    assert_eq!(
        (&verified["reward"], &verified["topic"]),
        (&Value::Null, &json!("sums"))
    );
    let step = format!("{}/step", sim.environment_url());
    let batch = json!({"message_log_batch": [], "metadata": []});
    let cut = client.http.post(step).header("x-request-id", "3-1-a0-c9");
    let cut = cut.body(batch.to_string()).send().await.unwrap();
    assert!(cut.text().await.is_err());

    let stats = get(&format!("{}/stats", sim.head_url())).await;
    assert_eq!(
        stats["servers"]["sim_model"]["faults"],
        json!({"rate_limited_429": 1})
    );
    assert_eq!(
        stats["servers"]["sim_tools"]["faults"],
        json!({"missing_reward": 1})
    );
    assert_eq!(
        stats["servers"]["sim_environment"]["faults"],
        json!({"truncated_body": 1})
    );
    assert_eq!(stats["agents"].as_object().unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_can_be_changed_while_it_serves() {
    let sim = Sim::start(config()).await.unwrap();
    let mut client = Client::new();
    let ask = json!({"input": QUESTION});
    let control = format!("{}/sim/sim_model", sim.head_url());
    let change = |text: &'static str| reqwest::Client::new().post(&control).body(text).send();
    let hang = r#"{"capacity": 1, "over_capacity": "refuse", "faults": {"hang": 1}}"#;
    assert_eq!(change(hang).await.unwrap().status(), 200);
    let state = get(&control).await;
    assert_eq!(
        (&state["capacity"], &state["faults"]),
        (&json!(1), &json!({"hang": 1.0}))
    );
    let url = format!("{}/v1/responses", sim.model_url());
    let mut hung = JoinSet::new();
    hung.spawn(
        reqwest::Client::new()
            .post(url)
            .body(ask.to_string())
            .send(),
    );
    while sim.server_counters()["sim_model"].max_working == 0 {
        tokio::task::yield_now().await;
    }
    let (status, _) = client.send(sim.model_url(), "/v1/responses", &ask).await;
    assert_eq!(status, 429);
    hung.shutdown().await;
    change(r#"{"capacity": null, "faults": {}}"#).await.unwrap();
    client.post(sim.model_url(), "/v1/responses", &ask).await;
    change(r#"{"down": true}"#).await.unwrap();
    let gone = reqwest::get(sim.model_url()).await.unwrap_err();
    assert!(gone.is_connect(), "{gone}");
}

#[test]
fn the_program_tells_where_they_are() {
    let folder = Folder::new();
    let sim = folder
        .rollstream("sim --port 0 --turns 2 --difficulty 0")
        .start();
    let address = |name: &str| {
        let line = sim.until_it_prints(name);
        line.split_whitespace().last().unwrap().to_owned()
    };
    let model = address("model ");
    assert!(address("tools ").starts_with("http://127.0.0.1:"));
    assert!(address("gymnasium ").starts_with("http://127.0.0.1:"));
    assert!(address("environment ").starts_with("http://127.0.0.1:"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ask = json!({"input": [{"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "Well?"}]});
    let answer = runtime.block_on(Client::new().post(&model, "/v1/responses", &ask));
    assert!(answer.to_string().contains("The answer is 42."), "{answer}");
    sim.signal("INT");
    sim.end().succeeded();
}

#[test]
fn a_program_can_read_where_they_are() {
    let folder = Folder::new();
    let sim = folder.rollstream("sim --json --port 0").start();
    let addresses: Value = serde_json::from_str(&sim.until_it_prints("{")).unwrap();
    for server in ["model", "tools", "gymnasium", "environment"] {
        let url = addresses["servers"][server].as_str().unwrap();
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    }
    sim.signal("TERM");
    sim.end().succeeded();
}

#[tokio::test]
async fn every_fault_happens_to_servers_too() {
    for kind in FaultKind::ALL {
        // A hang has no answer that could be looked at.
        if kind == FaultKind::Hang {
            continue;
        }
        let mut settings = config();
        settings.slow_first_byte = std::time::Duration::ZERO;
        settings.tools.fault_at = Some(vec![format!("3:1:1={kind}").parse().unwrap()]);
        let sim = Sim::start(settings).await.unwrap();
        let mut client = Client::new();
        client.post(sim.tools_url(), "/seed_session", &row()).await;
        let mut body = row();
        body["response"] = json!({"output": []});
        let request = client.http.post(format!("{}/verify", sim.tools_url()));
        let request = request.header("x-request-id", "3-1-a1-c0");
        let request = request.header("cookie", client.cookie.as_ref().unwrap());
        let answer = request.body(body.to_string()).send().await;
        let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        let expected = match kind {
            FaultKind::Error500 => Some(500),
            FaultKind::Error503 => Some(503),
            FaultKind::BadRequest400 => Some(400),
            FaultKind::RateLimited429
            | FaultKind::RateLimitedDate
            | FaultKind::RateLimitedReset => Some(429),
            FaultKind::Reset | FaultKind::Fin => None,
            _ => Some(200),
        };
        assert_eq!(status, expected, "{kind}");
        if matches!(kind, FaultKind::SlowFirstByte | FaultKind::HugeAnswer) {
            let whole = answer.unwrap().bytes().await.unwrap();
            let verified: Value = serde_json::from_slice(&whole).unwrap();
            assert_eq!(verified["reward"], 0.0, "{kind}");
        }
        let counts = &sim.server_counters()["sim_tools"];
        assert_eq!(counts.faults, [(kind, 1)].into());
        let last = sim.requests("sim_tools").unwrap().pop().unwrap();
        assert_eq!(last.fault, Some(kind));
        assert_eq!(
            last.end == RequestEnd::Answered,
            kind.gives_rollout(),
            "{kind}"
        );
    }
}
