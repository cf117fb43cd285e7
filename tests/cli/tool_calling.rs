//! An agent that calls tools and that rollstream runs itself, with a simulated model and resources servers.

use std::collections::BTreeMap;

use rollstream::sim::{AgentConfig, FaultKind, FaultRates, RequestEnd, SimConfig};
use serde_json::Value;

use crate::common::{Folder, Simulated, instant, sums};

const TASKS: &str = include_str!("../data/example_tool_tasks.jsonl");

/// Everybody answers at once and rightly, and the model calls tools in three turns.
fn config() -> SimConfig {
    SimConfig {
        turns: Some(3),
        difficulty: 0.0,
        ..instant(["other"])
    }
}

fn faulty(faults: impl IntoIterator<Item = (FaultKind, f64)>) -> AgentConfig {
    AgentConfig {
        faults: Some(FaultRates(faults.into_iter().collect())),
        ..AgentConfig::default()
    }
}

/// A folder with tasks for the tools, and a sweep with an agent `own`.
fn folder(sim: &Simulated, settings: &str) -> Folder {
    let folder = Folder::new();
    folder.write("tasks.jsonl", TASKS);
    let (model, tools) = (sim.sim().model_url(), sim.sim().tools_url());
    let text = format!(
        "input = 'tasks.jsonl'\noutput = 'run'\nagent = 'own'\nlimit = 4\nnum_repeats = 2\nretry_backoff = '1ms'\n\
         [agents.own]\nkind = 'responses'\nmodel_url = '{model}'\nresources_url = '{tools}'\n{settings}\n"
    );
    folder.write("sweep.toml", &text);
    folder
}

/// Identity and path of every call that the run says it sent.
fn sent(folder: &Folder) -> Vec<(String, String)> {
    let id = |row: &Value| {
        let number = |name: &str| row[name].as_i64().unwrap();
        let retry = number("retry");
        let first = number("call") - retry;
        let (task, rollout) = (number("task_index"), number("rollout_index"));
        let id = format!("{task}-{rollout}-a{}-c{first}", number("attempt"));
        match retry {
            0 => id,
            _ => format!("{id}-t{retry}"),
        }
    };
    let path = |row: &Value| {
        let (_, address) = row["address"].as_str().unwrap().split_once("//").unwrap();
        address[address.find('/').unwrap()..].to_owned()
    };
    let rows = folder.parquet("run/calls");
    let mut sent: Vec<_> = rows.iter().map(|row| (id(row), path(row))).collect();
    sent.sort();
    sent
}

/// Identity and path of every call that the servers received.
fn received(sim: &Simulated) -> Vec<(String, String)> {
    let servers = ["sim_model", "sim_tools", "sim_gymnasium"];
    let records = servers.map(|name| sim.sim().requests(name).unwrap());
    let text = |text: Option<Box<str>>| text.unwrap().into_string();
    let mut received: Vec<_> = records
        .into_iter()
        .flatten()
        // What an agent makes of its metrics is asked after all calls.
        .filter(|record| record.path.as_deref() != Some("/aggregate_metrics"))
        .map(|record| (text(record.request_id), text(record.path), record.fault))
        .collect();
    received.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    // A request that broke a connection which had been idle comes once more.
    received.dedup_by(|again, first| {
        again.2 == Some(FaultKind::Reset) && (&again.0, &again.1) == (&first.0, &first.1)
    });
    let identity = |(id, path, _)| (id, path);
    received.into_iter().map(identity).collect()
}

fn items<'a>(row: &'a Value, kind: &str) -> Vec<&'a Value> {
    let output = row["result"]["response"]["output"].as_array().unwrap();
    output.iter().filter(|item| item["type"] == kind).collect()
}

/// All rollouts landed, are right, and called tools three times; every call has its row.
fn check(folder: &Folder, sim: &Simulated) {
    let landed = folder.landed("run");
    assert_eq!(landed.len(), 8);
    for row in &landed {
        let result = &row["result"];
        assert_eq!(
            (&row["reward"], &result["reward"]),
            (&1.0.into(), &1.0.into())
        );
        assert_eq!(result["extracted_answer"], result["expected_answer"]);
        let calls = items(row, "function_call");
        let outputs = items(row, "function_call_output");
        assert!(calls.len() >= 3, "{result}");
        let ids = |items: &[&Value]| {
            items
                .iter()
                .map(|item| item["call_id"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(&calls), ids(&outputs));
        assert_eq!(items(row, "message").len(), 1, "{result}");
        // The session counts its calls: nobody else had its cookie.
        assert_eq!(result["tool_calls"], counted(&outputs));
    }
    let sent = sent(folder);
    assert!(sent.len() >= 8 * (2 + 4 + 3), "{}", sent.len());
    assert_eq!(sent, received(sim));
}

/// Outputs of tools that did what they were asked.
fn counted(outputs: &[&Value]) -> usize {
    let done = |output: &&&Value| {
        let output: Value = serde_json::from_str(output["output"].as_str().unwrap()).unwrap();
        output["call"].is_u64()
    };
    outputs.iter().filter(done).count()
}

#[test]
fn tools_are_called_through_either_api_of_a_model() {
    for api in ["responses", "chat-completions"] {
        let sim = Simulated::start(config());
        let folder = folder(&sim, &format!("model_api = '{api}'"));
        folder
            .rollstream("collect --config sweep.toml")
            .run()
            .succeeded();
        check(&folder, &sim);
        let path = format!("/v1/{}", api.replace("chat-", "chat/"));
        let models = received(&sim).into_iter().filter(|(_, to)| *to == path);
        assert_eq!(models.count(), 8 * 4);
        let kinds = folder.sql(
            "run",
            "select kind, count(*), sum(case when input_tokens > 0 then 1 else 0 end) from calls group by 1 order by 1",
        );
        assert_eq!(kinds[..2], ["model,32,32", "seed_session,8,0"], "{kinds:?}");
        assert_eq!(kinds[3], "verify,8,0");
    }
}

#[test]
fn the_head_server_says_where_model_and_tools_are() {
    let sim = Simulated::start(config());
    let folder = folder(&sim, "");
    let head = sim.sim().head_url();
    let text = format!("head_server = '{head}'\n[agents.sim_tool_agent]\nkind = 'responses'\n");
    folder.write("head.toml", &text);
    let options = "collect --config head.toml -i tasks.jsonl -o run --agent sim_tool_agent --limit 4 --num-repeats 2";
    folder.rollstream(options).run().succeeded();
    check(&folder, &sim);
}

#[test]
fn an_environment_ends_episodes_or_steps_do() {
    let tasks = || sums(4);
    for (max_steps, steps) in [(10, 3), (2, 2)] {
        let sim = Simulated::start(config());
        let folder = Folder::with_tasks(tasks());
        let (model, gymnasium) = (sim.sim().model_url(), sim.sim().gymnasium_url());
        let text = format!(
            "[agents.own]\nkind = 'responses'\nresources = 'gymnasium'\nmax_steps = {max_steps}\n\
             model_url = '{model}'\nmodel_api = 'responses'\nresources_url = '{gymnasium}'\n"
        );
        folder.write("sweep.toml", &text);
        let options = "collect --config sweep.toml -i tasks.jsonl -o run --agent own";
        folder.rollstream(options).run().succeeded();
        let landed = folder.landed("run");
        assert_eq!(landed.len(), 4);
        for (task, row) in landed.iter().enumerate() {
            let result = &row["result"];
            let is_over = steps == 3;
            assert_eq!(row["reward"], f64::from(u8::from(is_over)));
            assert_eq!(
                (&result["terminated"], &result["truncated"]),
                (&is_over.into(), &(!is_over).into())
            );
            let said_by = |role: &str| {
                let messages = items(row, "message").into_iter();
                messages.filter(|message| message["role"] == role).count()
            };
            let told = if is_over { steps - 1 } else { steps };
            assert_eq!((said_by("assistant"), said_by("user")), (steps, told));
            assert_eq!(result["info"]["steps"], steps);
            // Every other task begins with a hint.
            let input = result["responses_create_params"]["input"]
                .as_array()
                .unwrap();
            assert_eq!(input.len(), 1 + task % 2);
        }
        assert_eq!(sent(&folder).len(), 4 * (1 + 2 * steps));
        assert_eq!(sent(&folder), received(&sim));
    }
}

#[test]
fn what_a_tool_fails_with_is_its_output_and_a_lost_connection_an_attempt() {
    let tools = faulty([(FaultKind::Error500, 0.15), (FaultKind::Reset, 0.05)]);
    let sim = Simulated::start(SimConfig { tools, ..config() });
    let settings = "model_api = 'responses'\ninfra_budget = 50";
    let folder = folder(&sim, settings);
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .succeeded();
    assert_eq!(sent(&folder), received(&sim));
    // Of the attempts that gave the rollouts.
    let failed = "select t.task_index, t.rollout_index, count(*) from calls t join rollouts r \
                  on t.task_index = r.task_index and t.rollout_index = r.rollout_index and t.attempt = r.attempt \
                  where t.kind = 'tool' and t.http_status = 500 and t.outcome = 'ok' group by 1, 2 order by 1, 2";
    let mut told = Vec::new();
    for row in folder.landed("run") {
        let outputs = items(&row, "function_call_output");
        let failed = outputs
            .iter()
            .filter(|item| {
                item["output"]
                    .as_str()
                    .unwrap()
                    .contains("the simulated agent failed")
            })
            .count();
        if failed > 0 {
            told.push(format!(
                "{},{},{failed}",
                row["task_index"], row["rollout_index"]
            ));
        }
        assert_eq!(row["result"]["tool_calls"], counted(&outputs));
    }
    assert!(!told.is_empty());
    assert_eq!(folder.sql("run", failed), told);
    let lost = "select count(*) > 0, bool_and(a.outcome = 'infra') from attempts a join calls t \
                on a.task_index = t.task_index and a.rollout_index = t.rollout_index and a.attempt = t.attempt \
                where t.kind = 'tool' and t.outcome = 'infra'";
    assert_eq!(folder.sql("run", lost), ["true,true"]);
}

#[test]
fn a_model_that_always_fails_costs_the_budget() {
    let model = faulty([(FaultKind::Error500, 1.0)]);
    let sim = Simulated::start(SimConfig { model, ..config() });
    let settings = "model_api = 'responses'\nmodel_retries = 1\ninfra_budget = 3";
    let folder = folder(&sim, settings);
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .exited_with(3);
    assert_eq!(sent(&folder), received(&sim));
    let attempts =
        "select outcome, http_status, count(*), max(attempt) from attempts group by 1, 2";
    assert_eq!(folder.sql("run", attempts), ["infra,500,24,2"]);
    let calls = "select kind, retry, outcome, count(*) from calls group by 1, 2, 3 order by 1, 2";
    assert_eq!(
        folder.sql("run", calls),
        [
            "model,0,infra,24",
            "model,1,infra,24",
            "seed_session,0,ok,24"
        ]
    );
    let mut by_id = BTreeMap::new();
    for record in sim.sim().requests("sim_model").unwrap() {
        assert_eq!(record.end, RequestEnd::Failed);
        *by_id.entry(record.request_id).or_insert(0) += 1;
    }
    assert_eq!((by_id.len(), by_id.values().max()), (48, Some(&1)));
}

#[test]
fn a_model_stops_after_so_many_steps() {
    let sim = Simulated::start(config());
    let folder = folder(&sim, "model_api = 'responses'\nmax_steps = 2");
    folder
        .rollstream("collect --config sweep.toml")
        .run()
        .succeeded();
    for row in folder.landed("run") {
        assert_eq!(row["reward"], 0.0);
        let output = row["result"]["response"]["output"].as_array().unwrap();
        assert_eq!(output.last().unwrap()["type"], "function_call_output");
    }
    let models = "select max(turn), count(*) from calls where kind = 'model'";
    assert_eq!(folder.sql("run", models), ["2,16"]);
    assert_eq!(sent(&folder), received(&sim));
}
