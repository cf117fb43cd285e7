//! Where settings come from, and which of them wins.

use serde_json::{Value, json};

use crate::common::{Folder, Simulated, instant, sums, task};

fn folder() -> Folder {
    let folder = Folder::with_tasks(sums(2));
    folder.write(
        "sweep.toml",
        "concurrency = 3\nlimit = 30\nread_timeout = \"3s\"\nagent = \"file\"\n",
    );
    folder
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let folder = folder();
    let command =
        folder.rollstream("config --json --config sweep.toml --concurrency 5 --temperature 0.5");
    let command = command
        .env("ROLLSTREAM_CONCURRENCY", "4")
        .env("ROLLSTREAM_LIMIT", "40");
    let ended = command.run().succeeded();
    let settings: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        settings["concurrency"],
        json!({"value": 5, "source": "--concurrency"})
    );
    assert_eq!(
        settings["limit"],
        json!({"value": 40, "source": "ROLLSTREAM_LIMIT"})
    );
    assert_eq!(
        settings["read_timeout"],
        json!({"value": "3s", "source": "sweep.toml:3"})
    );
    assert_eq!(
        settings["connect_timeout"],
        json!({"value": "10s", "source": "default"})
    );
    assert_eq!(
        settings["responses_create_params.temperature"],
        json!({"value": 0.5, "source": "--temperature"})
    );
}

#[test]
fn a_rollout_ends_after_two_hours_unless_somebody_says_otherwise() {
    let folder = folder();
    let limit = |options: &str, key: &str| {
        let printed = folder.rollstream("config --json").args(options).run();
        let settings: Value = serde_json::from_str(&printed.succeeded().stdout).unwrap();
        settings[key].clone()
    };
    let default = json!({"value": "2h", "source": "default"});
    assert_eq!(limit("", "rollout_timeout"), default);
    let none = json!({"value": "none", "source": "--rollout-timeout"});
    assert_eq!(limit("--rollout-timeout none", "rollout_timeout"), none);
    let own = limit("+agents.a.rollout_timeout=none", "agents.a.rollout_timeout");
    assert_eq!(own["value"], "none");
    let refused = folder.rollstream("config --rollout-timeout 0").run();
    refused.exited_with(2).complaining(&["or none"]);
}

#[test]
fn what_config_prints_is_a_configuration_file() {
    let folder = folder();
    let command = folder
        .rollstream("config --config sweep.toml +num_repeats={sim:2} --agent-url a=http://h:1");
    let printed = command.run().succeeded().stdout;
    let line = |start: &str| {
        printed
            .lines()
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("{printed}"))
    };
    assert!(line("agent = \"file\"").ends_with("# sweep.toml:4"));
    assert!(line("part_size = ").ends_with("# default"));
    assert!(line("agents.a.url = \"http://h:1\"").ends_with("# --agent-url"));

    folder.write("again.toml", &printed);
    let values = |options: &str| -> Vec<Value> {
        let json = folder
            .rollstream("config --json")
            .args(options)
            .run()
            .succeeded()
            .stdout;
        let settings: serde_json::Map<String, Value> = serde_json::from_str(&json).unwrap();
        settings
            .into_iter()
            .map(|(key, entry)| json!([key, entry["value"]]))
            .collect()
    };
    let first = values("--config sweep.toml +num_repeats={sim:2} --agent-url a=http://h:1");
    assert_eq!(values("--config again.toml"), first);
}

#[test]
fn the_environment_can_name_the_file() {
    let folder = folder();
    folder.write("sweep.yaml", "num_repeats: {sim: 3, _default: 1}\n");
    let ended = folder
        .rollstream("config")
        .env("ROLLSTREAM_CONFIG", "sweep.yaml")
        .run()
        .succeeded();
    let line = ended
        .stdout
        .lines()
        .find(|line| line.starts_with("num_repeats"))
        .unwrap();
    assert!(
        line.contains("sim") && line.contains("# sweep.yaml:1"),
        "{line}"
    );
}

#[test]
fn settings_reach_the_sweep_from_everywhere() {
    let folder = folder();
    folder.write(
        "sweep.toml",
        "input = \"tasks.jsonl\"\nnum_repeats = 2\nagent = \"sim\"\nlimit = 2",
    );
    let command = folder
        .rollstream("collect --config sweep.toml -o run -q")
        .env("ROLLSTREAM_LIMIT", "1");
    command.run().succeeded();
    assert_eq!(
        folder.sql(
            "run",
            "select task_index, rollout_index from rollouts order by 2"
        ),
        ["0,0", "0,1"]
    );
    let settings = &folder.json("run/run.json")["settings"];
    assert_eq!(
        (&settings["limit"], &settings["num_repeats"]),
        (&json!(1), &json!(2))
    );
}

#[test]
fn unknown_keys_are_errors_with_a_suggestion() {
    let folder = folder();
    folder.write("wrong.toml", "limit = 1\nconcurency = 3\n");
    folder.write("wrong.yaml", "agents:\n  a:\n    uri: http://h:1\n");
    let refused = |command: crate::common::Program, parts: &[&str]| {
        command.run().exited_with(2).complaining(parts);
    };
    refused(
        folder.rollstream("config --config wrong.toml"),
        &["`concurency` (wrong.toml:2)", "mean `concurrency`?"],
    );
    refused(
        folder.rollstream("config --config wrong.yaml"),
        &["`agents.a.uri` (wrong.yaml:3)", "mean `url`?"],
    );
    let environment = folder
        .rollstream("config")
        .env("ROLLSTREAM_CONCURENCY", "3");
    refused(
        environment,
        &[
            "`ROLLSTREAM_CONCURENCY`",
            "did you mean `ROLLSTREAM_CONCURRENCY`?",
        ],
    );
    refused(
        folder.rollstream("collect --config none.toml"),
        &["cannot read the configuration file 'none.toml'"],
    );
    folder.write("broken.toml", "limit = \n");
    refused(
        folder.rollstream("plan --config broken.toml"),
        &["'broken.toml' is not valid TOML", "line 1"],
    );
}

#[test]
fn the_options_of_nemo_gym_do_what_its_users_mean() {
    let folder = Folder::new();
    folder.tasks("x.jsonl", sums(2));
    let options = "+agent_name=sim +input_jsonl_fpath=x.jsonl +output_jsonl_fpath=y.jsonl +num_repeats=4 \
                   +num_samples_in_parallel=2 ++responses_create_params.temperature=0.25 +agent_map=null \
                   +route_failures_to_sidecar=true";
    let ended = folder.rollstream("collect").args(options).run().succeeded();
    let said = "note: +route_failures_to_sidecar changes nothing: a failure never ends a sweep";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("8 of 8 rollouts done") && ended.stdout.contains("results: y\n"),
        "{}",
        ended.stdout
    );
    // What NeMo Gym would have left stands beside the run.
    let lines = |name: &str| folder.read(name).lines().count();
    assert_eq!(lines("y.jsonl"), 8);
    assert_eq!(lines("y_materialized_inputs.jsonl"), 8);
    assert_eq!(lines("y_failures.jsonl"), 0);
    assert_eq!(
        folder.read("y_aggregate_metrics.json"),
        folder.read("y/aggregate_metrics.json")
    );
    assert_eq!(
        folder.sql("y", "select agent_name, count(*) from rollouts group by 1"),
        ["sim,8"]
    );
    assert_eq!(folder.json("y/run.json")["settings"]["concurrency"], 2);
    let sent = folder.sql(
        "y",
        "select count(*) from tasks where request like '%\"temperature\":%0.25%'",
    );
    assert_eq!(sent, ["2"]);
}

#[test]
fn an_option_of_nemo_gym_that_cannot_be_granted_says_what_to_use() {
    let folder = Folder::with_tasks(sums(2));
    for (option, instead) in [
        ("+agent_type=simple", "--head-server"),
        ("+count_missing_rollouts_as_zero=true", "--gym 0.7"),
        ("+fan_out={a:[b]}", "--gym 0.7"),
        ("+agent_map._default=b", "--gym 0.7"),
        ("+interleave_repeats=true", "--gym 0.7"),
        ("+environment_routing_mode=taskset", "--gym 0.7"),
    ] {
        let command = folder.rollstream("collect -i tasks.jsonl --agent sim -o run");
        let name = option
            .trim_start_matches('+')
            .split(['=', '.'])
            .next()
            .unwrap();
        let ended = command.args(option).run().exited_with(2);
        ended.complaining(&[name, instead]);
    }
    assert!(!folder.has("run"));
}

#[test]
fn a_head_server_that_is_gone_is_what_is_wrong_and_not_the_settings_that_need_it() {
    let folder = Folder::with_tasks(sums(2));
    let collect = "collect -i tasks.jsonl -o run --head-server http://127.0.0.1:1 --fan-out a=[b]";
    let ended = folder.rollstream(collect).run().exited_with(1);
    ended.complaining(&["head server http://127.0.0.1:1"]);
}

#[test]
fn flags_send_rows_elsewhere_by_the_rules_of_nemo_gym_0_7() {
    let agents = Simulated::start(instant(["alpha", "beta"]));
    let folder = Folder::with_tasks([
        task("What is 1 + 1?").answered_by(2).for_agent("old"),
        task("What is 1 + 2?").answered_by(3).for_agent("alpha"),
    ]);
    let collect = |options: &str| {
        let line = format!("collect -i tasks.jsonl -o run --gym 0.7 {options}");
        folder.rollstream(&line).args(&agents.options()).run()
    };
    let ended = collect("--agent-map old=alpah").exited_with(2);
    ended.complaining(&["'alpah' (did you mean 'alpha'?)"]);
    assert!(!folder.has("run"));

    let ended = collect(
        "--agent-map old=alpha --fan-out alpha=[alpha,beta] --interleave-repeats --num-repeats 2",
    );
    let ended = ended.succeeded();
    assert!(
        ended
            .stderr
            .contains("1 of 2 rows of the input name another agent"),
        "{}",
        ended.stderr
    );
    assert_eq!(
        folder.sql(
            "run",
            "select agent_name, count(*) from rollouts group by 1 order by 1"
        ),
        ["alpha,4", "beta,2"]
    );
    let identity = &folder.json("run/run.json")["identity"];
    assert_eq!(identity["interleave_repeats"], true);
    assert_eq!(identity["fan_out"]["alpha"], json!(["alpha", "beta"]));
    assert!(identity["environment_routing_mode"].is_null());
}

#[cfg(not(feature = "cluster"))]
#[test]
fn a_build_without_clusters_says_how_to_get_one_with_them() {
    let folder = Folder::with_tasks(crate::common::sums(1));
    for line in [
        "collect -i tasks.jsonl -o run --agent sim --cluster local:2",
        "cluster scheduler",
        "cluster executor --scheduler grpc://127.0.0.1:50050",
    ] {
        let refused = folder.rollstream(line).run().exited_with(2);
        refused.complaining(&["cargo install --path . --features cluster"]);
    }
    assert!(!folder.has("run"));
}
