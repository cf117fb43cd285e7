//! The metrics that benchmarks define on the servers of their agents, as `collect` and `aggregate --agent-metrics` ask
//! for them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::{JoinHandle, spawn};

use rollstream::sim::SimConfig;
use serde_json::{Value, json};

use crate::common::{Folder, Simulated, instant, sums};

/// A run of four tasks of agent `a` and two of `b`, three rollouts each. The answers say nothing of the rows, so that
/// whoever sends them has to.
fn collected(sim: &Simulated) -> Folder {
    let tasks = sums(6).into_iter().enumerate();
    let tasks = tasks.map(|(n, task)| task.for_agent(if n < 4 { "a" } else { "b" }));
    let folder = Folder::with_tasks(tasks);
    collect(&folder, sim, "--no-agent-metrics");
    folder
}

fn collect(folder: &Folder, sim: &Simulated, options: &str) -> String {
    let command = folder.rollstream("collect -i tasks.jsonl -o run --num-repeats 3 --overwrite");
    let command = command.args(options).args(&sim.options());
    command.run().succeeded().stderr
}

fn silent_agents() -> Simulated {
    Simulated::start(SimConfig {
        echo: false,
        ..instant(["a", "b"])
    })
}

const JSON: &str = "run/aggregate_metrics.json";

fn aggregate(folder: &Folder, options: &str) -> (Value, String) {
    let command = folder.rollstream("aggregate run -q").args(options);
    let ended = command.run().succeeded();
    (folder.json(JSON), ended.stderr)
}

#[test]
fn an_agent_s_own_metrics_stand_beside_the_statistics() {
    let sim = silent_agents();
    let folder = collected(&sim);
    let plain = folder.json(JSON);
    let (merged, stderr) = aggregate(&folder, "--agent-metrics");
    assert_eq!(stderr, "");
    let landed = folder.landed("run");
    let agents = plain
        .as_array()
        .unwrap()
        .iter()
        .zip(merged.as_array().unwrap());
    for ((plain, merged), (name, answers)) in agents.zip([("a", 12), ("b", 6)]) {
        assert_eq!(merged["agent_ref"], json!({"name": name}));
        let mut expected = plain["agent_metrics"].clone();
        expected["sim/answers"] = json!(answers);
        // In this order: what is added comes last.
        assert_eq!(merged["agent_metrics"].to_string(), expected.to_string());
        let rewards = landed.iter().filter(|row| row["agent_name"] == name);
        let sum: f64 = rewards.map(|row| row["reward"].as_f64().unwrap()).sum();
        let mean = sum / f64::from(answers);
        assert_eq!(
            merged["key_metrics"],
            json!({"mean/reward": mean, "sim/answers": answers})
        );
        let groups = |entry: &Value| entry["group_level_metrics"].as_array().unwrap().clone();
        for (plain, merged) in groups(plain).into_iter().zip(groups(merged)) {
            let task = &plain["_ng_task_index"];
            let first = landed
                .iter()
                .find(|row| row["task_index"] == *task)
                .unwrap();
            let mut expected = plain.clone();
            expected["sim/first_reward"] = first["reward"].clone();
            assert_eq!(merged.to_string(), expected.to_string());
        }
    }
    // What is chosen by name can be one of theirs.
    let (chosen, _) = aggregate(&folder, "--agent-metrics --key-metric sim/answers");
    assert_eq!(chosen[0]["key_metrics"], json!({"sim/answers": 12}));
}

#[test]
fn a_sweep_asks_the_servers_itself() {
    let sim = silent_agents();
    let folder = collected(&sim);
    let (asked, _) = aggregate(&folder, "--agent-metrics");
    let stderr = collect(&folder, &sim, "");
    assert!(!stderr.contains("note:"), "{stderr}");
    let own = |metrics: &Value| {
        let agents = metrics.as_array().unwrap().iter();
        agents
            .map(|agent| agent["agent_metrics"]["sim/answers"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(own(&folder.json(JSON)), [12, 6]);
    assert_eq!(own(&asked), [12, 6]);
}

#[test]
fn a_server_without_metrics_is_worth_a_word_to_who_asked_for_them() {
    let sim = silent_agents();
    let folder = collected(&sim);
    let plain = folder.read(JSON);
    let (none, _none) = server("<none>");
    let (also_none, _also_none) = server("<none>");
    let options = format!("--agent-metrics --agent-url a={none} --agent-url b={also_none}");
    let (_, stderr) = aggregate(&folder, &options);
    assert_eq!(folder.read(JSON), plain);
    assert_eq!(
        stderr.matches("has no metrics of its own").count(),
        2,
        "{stderr}"
    );
}

#[test]
fn files_are_shown_to_the_servers_that_are_named() {
    let sim = silent_agents();
    let folder = collected(&sim);
    folder.rollstream("export run -o x.jsonl").run().succeeded();
    let aggregate = |options: &str| {
        let command = folder
            .rollstream("aggregate x.jsonl -o out -q")
            .args(options);
        let ended = command.run().succeeded();
        (folder.json("out/aggregate_metrics.json"), ended.stderr)
    };
    let (_, stderr) = aggregate("--agent-metrics");
    for agent in ["a", "b"] {
        let part = format!("note: agent '{agent}' returned no metrics of its own");
        assert!(
            stderr.contains(&part) && stderr.contains("--agent-url"),
            "{stderr}"
        );
    }
    let (metrics, stderr) = aggregate(&format!("--agent-metrics {}", sim.options()));
    assert_eq!(stderr, "");
    assert_eq!(metrics[0]["key_metrics"]["sim/answers"], 12);
    assert_eq!(metrics[1]["key_metrics"]["sim/answers"], 6);
}

/// A server that answers one request with `answer` and gives what it was sent.
fn server(answer: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"]}") {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            request.extend_from_slice(&bytes[..read]);
        }
        let head = "connection: close\r\ncontent-type: application/json\r\n\r\n";
        let status = match answer {
            "<none>" => "404 Not Found",
            _ if answer.starts_with('{') => "200 OK",
            _ => "500 Oh",
        };
        let reply = format!("HTTP/1.1 {status}\r\n{head}{answer}");
        stream.write_all(reply.as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (url, thread)
}

#[test]
fn a_server_is_shown_each_answer_once_and_its_numbers_keep_their_spelling() {
    let sim = silent_agents();
    let folder = collected(&sim);
    let (url, thread) = server(
        r#"{"agent_metrics": {"mean/reward": 918273, "own": 1.50E0}, "key_metrics": {"own": 1.50E0},
            "group_level_metrics": [{"_ng_task_index": 1, "own": 2.50, "num_rollouts": 918273}]}"#,
    );
    let (metrics, stderr) = aggregate(&folder, &format!("--agent-metrics --agent-url a={url}"));
    assert_eq!(stderr, "");
    let text = folder.read(JSON);
    assert!(
        text.contains(r#""own":1.50E0},"key_metrics":{"own":1.50E0}"#),
        "{text}"
    );
    assert!(text.contains(r#""own":2.50}"#), "{text}");
    assert!(!text.contains("918273"), "{text}");
    assert_eq!(metrics[1]["key_metrics"]["sim/answers"], 6);

    let request = thread.join().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(
        head.to_lowercase()
            .contains(&format!("content-length: {}", body.len())),
        "{head}"
    );
    let body: Value = serde_json::from_str(body).unwrap();
    let responses = body["verify_responses"].as_array().unwrap();
    let landed = folder.landed("run");
    let rows: Vec<&Value> = landed
        .iter()
        .filter(|row| row["agent_name"] == "a")
        .collect();
    assert_eq!((responses.len(), rows.len()), (12, 12));
    for (response, row) in responses.iter().zip(rows) {
        assert_eq!(response["_ng_task_index"], row["task_index"]);
        assert_eq!(response["_ng_rollout_index"], row["rollout_index"]);
        assert_eq!(response["agent_ref"], json!({"name": "a"}));
        assert_eq!(response["reward"], row["result"]["reward"]);
        let usage = &row["result"]["response"]["usage"];
        assert_eq!(response["response"], json!({"usage": usage}));
        assert_eq!(response.get("responses_create_params"), None);
    }
}

#[test]
fn a_server_that_gives_nothing_costs_nothing() {
    let sim = silent_agents();
    let folder = collected(&sim);
    let plain = folder.read(JSON);
    let (failing, _failing) = server("it <broke>");
    let (nonsense, _nonsense) = server("{\"agent_metrics\": []}");
    // A port that was free a moment ago may be another test's by now.
    let gone = "http://127.0.0.1:1";
    for (url, parts) in [
        (failing, ["HTTP 500", "it <broke>"]),
        (
            nonsense,
            ["agent_metrics is not a JSON object", "expected an object"],
        ),
        (gone.to_owned(), ["/aggregate_metrics", "refused"]),
    ] {
        let options = format!("--agent-metrics --agent-url a={url} --agent-url b={gone}");
        let (_, stderr) = aggregate(&folder, &options);
        assert_eq!(folder.read(JSON), plain);
        let note = stderr
            .lines()
            .find(|line| line.contains("agent 'a'"))
            .unwrap();
        assert!(note.starts_with("note: "), "{stderr}");
        assert!(parts.iter().all(|part| note.contains(part)), "{stderr}");
        assert!(stderr.contains("agent 'b'"), "{stderr}");
    }
    // Neither the head server nor the agents that it knew are there any more.
    drop(sim);
    let (_, stderr) = aggregate(&folder, "--agent-metrics");
    assert_eq!(folder.read(JSON), plain);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
}

#[test]
fn a_secret_in_an_address_is_refused_and_not_repeated() {
    let sim = silent_agents();
    let folder = collected(&sim);
    for option in [
        "--agent-url a=http://u:hunter2@h:1",
        "--head-server http://u:hunter2@h:1",
    ] {
        let command = folder
            .rollstream("aggregate run --agent-metrics")
            .args(option);
        let ended = command.run().exited_with(2);
        let ended = ended.complaining(&["user name or password"]);
        assert!(!ended.stderr.contains("hunter2"), "{}", ended.stderr);
    }
    let command = folder.rollstream("aggregate run --head-server http://h:1");
    command
        .run()
        .exited_with(2)
        .complaining(&["--agent-metrics"]);
}
