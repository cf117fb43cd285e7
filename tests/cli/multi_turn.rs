//! Rollouts between a model and environments, which the program runs itself.

use std::collections::{BTreeMap, BTreeSet};

use rollstream::guide;
use serde_json::{Value, json};

use crate::common::{Folder, Simulated, instant};

/// The example files of the guide in which this line stands, with the addresses of `servers`.
fn example(line: &str, servers: &Simulated) -> String {
    let blocks = guide::page("native").unwrap().split("```toml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| block.split("```").next());
    let block = blocks.find(|block| block.contains(line)).unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/");
    block
        .replace("http://127.0.0.1:12001", servers.sim().model_url())
        .replace("http://127.0.0.1:12002", servers.sim().tools_url())
        .replace("http://127.0.0.1:12004", servers.sim().environment_url())
        .replace("tests/data/", data)
}

fn talker(servers: &Simulated, more: &str) -> String {
    let settings = example("[agents.talker]", servers);
    settings.replace("[agents.talker]\n", &format!("[agents.talker]\n{more}\n"))
}

/// The calls that the program says it made, by request id.
fn calls(folder: &Folder, run: &str) -> BTreeMap<String, Value> {
    let rows = folder.parquet(&format!("{run}/calls"));
    let by_id = rows.into_iter().map(|row| {
        let number = |name: &str| row[name].as_i64().unwrap();
        let id = format!(
            "{}-{}-a{}-c{}",
            number("task_index"),
            number("rollout_index"),
            number("attempt"),
            number("call")
        );
        (id, row.clone())
    });
    by_id.collect()
}

/// The request ids that a simulated server was sent.
fn asked(servers: &Simulated, server: &str) -> BTreeSet<String> {
    let requests = servers.sim().requests(server).unwrap().into_iter();
    requests
        .map(|request| request.request_id.unwrap().into())
        .collect()
}

#[test]
fn the_examples_of_the_guide_work() {
    let folder = Folder::new();
    let servers = Simulated::start(instant(["unused"]));
    let native = example("output = \"runs/native\"", &servers);
    assert_eq!(native.lines().count(), 15);
    folder.write("native.toml", &native);
    folder
        .rollstream("collect --config native.toml")
        .run()
        .succeeded();
    assert_eq!(folder.landed("runs/native").len(), 48);
    let calls = calls(&folder, "runs/native");
    let of_model = |row: &&Value| row["kind"] == "model";
    let ids = |keep: &dyn Fn(&&Value) -> bool| -> BTreeSet<String> {
        let rows = calls.iter().filter(|(_, row)| keep(row));
        rows.map(|(id, _)| id.clone()).collect()
    };
    assert_eq!(ids(&|row| of_model(row)), asked(&servers, "sim_model"));
    assert_eq!(ids(&|row| !of_model(row)), asked(&servers, "sim_tools"));
    assert!(calls.values().all(|row| row["outcome"] == "ok"));

    folder.write("talker.toml", &talker(&servers, ""));
    folder
        .rollstream("collect --config talker.toml --output runs/talker")
        .run()
        .succeeded();
    assert_eq!(folder.landed("runs/talker").len(), 84);
}

#[test]
fn every_prompt_is_a_group_with_all_its_completions() {
    let folder = Folder::new();
    let servers = Simulated::start(instant(["unused"]));
    folder.write("talker.toml", &talker(&servers, ""));
    let collect = "collect --config talker.toml --output run";
    let ended = folder.rollstream(collect).run().succeeded();
    assert!(!ended.stdout.contains("groups"), "{}", ended.stdout);
    let landed = folder.landed("run");
    let groups = folder.parquet("run/groups");
    let query = "select count(*), sum(num_rollouts) from groups";
    let rollouts = groups.iter().map(|group| group["num_rollouts"].as_i64());
    let rollouts: i64 = rollouts.flatten().sum();
    let counted = format!("{},{rollouts}", groups.len());
    assert_eq!(folder.sql("run", query), [counted]);
    let tasks: Vec<_> = groups
        .iter()
        .map(|group| group["task_index"].as_i64().unwrap())
        .collect();
    assert_eq!(tasks, (0..42).collect::<Vec<_>>());
    for group in &groups {
        let completions = group["completions"].as_array().unwrap();
        assert_eq!(completions.len(), 2);
        for (rollout, completion) in completions.iter().enumerate() {
            let answer = landed
                .iter()
                .find(|row| {
                    row["task_index"] == group["task_index"] && row["rollout_index"] == rollout
                })
                .unwrap();
            let result = &answer["result"];
            assert_eq!(completion["reward"], answer["reward"]);
            assert_eq!(completion["truncated"], result["truncated"]);
            let texts = |log: &Value| -> Vec<Value> {
                let messages = log.as_array().unwrap().iter();
                messages
                    .map(|one| json!([one["role"], one["content"]]))
                    .collect()
            };
            assert_eq!(
                texts(&completion["message_log"]),
                texts(&result["message_log"])
            );
        }
        let rewards = completions
            .iter()
            .map(|one| one["reward"].as_f64().unwrap());
        let mean = rewards.sum::<f64>() / 2.0;
        let metrics: Value =
            serde_json::from_str(group["rollout_metrics"].as_str().unwrap()).unwrap();
        assert_eq!(metrics["total_reward/mean"], mean);
    }
}

#[test]
fn both_drivers_and_both_ways_to_ask_a_model_give_whole_logs() {
    let folder = Folder::new();
    let servers = Simulated::start(instant(["unused"]));
    let run = |name: &str, more: &str| {
        folder.write("talker.toml", &talker(&servers, more));
        folder
            .rollstream("collect --config talker.toml --output")
            .args(name)
            .run()
            .succeeded();
        folder.landed(name)
    };
    let results =
        |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["result"].clone()).collect() };
    let own_pace = run("own-pace", "");
    let steps = || servers.sim().requests("sim_environment").unwrap().len();
    let at_own_pace = steps();
    let together = run("together", "driver = \"lockstep\"\nbatch_size = 8");
    assert_eq!(results(&own_pace), results(&together));
    // One step is for all of a batch, and each of its samples has a row.
    assert!(
        steps() - at_own_pace <= at_own_pace / 4,
        "{at_own_pace} {}",
        steps()
    );
    let rows = |run: &str| {
        let calls = folder.parquet(&format!("{run}/calls"));
        calls.iter().filter(|call| call["kind"] == "step").count()
    };
    assert_eq!(rows("own-pace"), at_own_pace);
    assert_eq!(rows("together"), at_own_pace);

    let exact = run(
        "exact",
        "model_api = \"completions\"\ntokenizer = \"bytes\"",
    );
    for row in &exact {
        for message in row["result"]["message_log"].as_array().unwrap() {
            let ids = message["token_ids"].as_array().unwrap();
            assert_eq!(message["token_count"], ids.len());
            let logprobs = message.get("logprobs").and_then(Value::as_array);
            let expected = (message["role"] == "assistant").then_some(ids.len());
            assert_eq!(logprobs.map(Vec::len), expected);
        }
    }
}

#[test]
fn a_task_that_no_environment_serves_is_named_before_anything_is_sent() {
    let folder = Folder::new();
    let servers = Simulated::start(instant(["unused"]));
    folder.write("talker.toml", &talker(&servers, ""));
    let row = |task_name: Value| json!({"message_log": [{"role": "user", "content": "What is 2 + 3?"}], "task_name": task_name});
    for (name, shown) in [
        (json!("chess"), "'chess'. There are: game"),
        (json!(5), "task_name of the row is not a text"),
    ] {
        let rows = format!("{}\n{}\n", row(json!("game")), row(name));
        folder.write("rows.jsonl", &rows);
        let ended = folder
            .rollstream("collect --config talker.toml --input rows.jsonl --output run")
            .run();
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        for part in ["rows.jsonl:2", "agent 'talker'", shown] {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    }
    assert!(!folder.has("run"));
    assert!(asked(&servers, "sim_model").is_empty());
    assert!(asked(&servers, "sim_environment").is_empty());
}

#[test]
fn settings_that_fit_no_agent_that_runs_here_are_refused() {
    let folder = Folder::new();
    let servers = Simulated::start(instant(["unused"]));
    for (more, expected) in [
        (
            "model_api = \"responses\"",
            "use 'chat-completions' or 'completions'",
        ),
        ("model_api = \"completions\"", "set tokenizer to"),
        ("tokenizer = \"nowhere.json\"", "nowhere.json"),
        ("rules = \"newest\"", "per-sample-legacy"),
        (
            "url = \"http://127.0.0.1:1\"",
            "url is for agents of kind = \"nemo-gym\"",
        ),
        (
            "max_steps = 3",
            "max_steps is for agents of kind = \"responses\"",
        ),
    ] {
        folder.write("talker.toml", &talker(&servers, more));
        let ended = folder
            .rollstream("collect --config talker.toml --output run")
            .run();
        assert_eq!(ended.code, Some(2), "{more}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{more}: {}", ended.stderr);
    }
    assert!(!folder.has("run"));
}
