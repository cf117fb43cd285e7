//! NeMo Gym end to end: one command prepares the data, starts the servers, collects, and leaves no process.
//! A script stands for NeMo Gym's program: see `tests/common/gym_stand_in.py`.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::common::{Folder, Program, free_port, sums, until};

const KEY: &str = "sk-Very-Secret-1234567890";
const LINE: &str =
    "+config_paths=[servers.json] +split=validation +output_jsonl_fpath=out/a.jsonl +num_repeats=2";

/// A folder with NeMo Gym in a virtual environment, 3 tasks, and a configuration in which these things go wrong.
fn folder(faults: &Value) -> Folder {
    let folder = Folder::with_tasks(sums(3).into_iter().map(|task| task.for_agent("other")));
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/gym_stand_in.py");
    fs::create_dir_all(folder.path(".venv/bin")).unwrap();
    symlink(program, folder.path(".venv/bin/gym")).unwrap();
    let data = json!([{"name": "sums", "type": "validation", "jsonl_fpath": "tasks.jsonl"}]);
    let agent = json!({"entrypoint": "app.py", "datasets": data});
    let server = json!({"entrypoint": "app.py", "agent_server": {"type": "responses_api_agents", "name": "adder"}});
    let servers = json!({
        "adder": {"responses_api_agents": {"simple_agent": agent}},
        "adder_server": {"environment_servers": {"legacy_agent": server}},
        "stand_in": faults,
    });
    folder.write("servers.json", &servers.to_string());
    folder
}

/// The program with a free port for the head server.
fn rollstream(folder: &Folder, line: &str) -> Program {
    let port = free_port();
    folder
        .rollstream(line)
        .env("PATH", &std::env::var("PATH").unwrap())
        .arg(format!("+head_server.port={port}"))
}

/// The processes that work in the folder: each with its number and its command line.
fn processes(folder: &Folder) -> Vec<String> {
    let here = folder.path("").canonicalize().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let of_folder = entries.filter(|entry| {
        let cwd = fs::read_link(entry.path().join("cwd"));
        cwd.is_ok_and(|cwd| cwd == here)
    });
    of_folder
        .filter_map(|entry| {
            let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let pid = entry.file_name().into_string().unwrap();
            (!line.is_empty()).then(|| format!("{pid} {}", line.replace('\0', " ")))
        })
        .collect()
}

/// Kills the processes whose name and command line are like this, all at once. Those that have just ended are well, too.
fn kill(folder: &Folder, is_meant: impl Fn(&str, &str) -> bool) {
    let lines = processes(folder);
    let pids = lines.iter().filter_map(|line| {
        let (pid, line) = line.split_once(' ')?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        is_meant(name.trim(), line).then_some(pid)
    });
    let pids: Vec<&str> = pids.collect();
    Program::shell(&folder.path(""), &format!("kill -KILL {}", pids.join(" "))).run();
}

const SUPERVISOR: &str = " supervise ";
const FIRST: &str = " supervise --first ";

#[track_caller]
fn nothing_is_left(folder: &Folder) {
    until("processes are left", || processes(folder).is_empty());
}

fn calls(folder: &Folder, command: &str) -> usize {
    let calls = folder.read("gym_calls.txt");
    calls
        .lines()
        .filter(|line| line.starts_with(command))
        .count()
}

#[test]
fn one_command_prepares_serves_collects_and_ends_everything() {
    let folder = folder(&json!({}));
    let collect = |more: &str| {
        rollstream(&folder, &format!("collect {LINE} {more}"))
            .args("+policy_model_name=m1 +adder.responses_api_agents.simple_agent.steps=3")
            .arg(format!("+policy_api_key={KEY}"))
            .run()
    };
    let ended = collect("");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // All has ended when the command has.
    assert_eq!(processes(&folder), Vec::<String>::new());
    let rows: Vec<Value> = folder
        .read("out/a.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 6);
    for row in &rows {
        assert_eq!(row["task_source"], "adder");
        assert_eq!(row["agent_ref"], json!({"name": "adder"}));
        assert_eq!(row["_ng_environment_server"], "adder_server");
        assert_eq!(row["response"]["model"], "m1");
    }
    assert!(folder.has("out/a/preprocessed_datasets/validation.jsonl"));
    assert!(folder.has("out/a_aggregate_metrics.json") && folder.has("out/quality_summary.json"));
    let asked = folder.read("gym_calls.txt");
    for line in asked.lines() {
        assert!(
            line.contains("++adder.responses_api_agents.simple_agent.steps=3"),
            "{line}"
        );
    }
    for step in ["prepares", "the data is prepared (", "servers are ready ("] {
        assert!(ended.stderr.contains(step), "{step}: {}", ended.stderr);
    }
    // Neither the record nor a log holds the key.
    assert_eq!(folder.holding(KEY), [""; 0]);
    let again = collect("+resume_from_cache=true +reuse_existing_data_preparation=true");
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(
        (
            calls(&folder, "dataset collate"),
            calls(&folder, "env start")
        ),
        (1, 2)
    );
}

#[test]
fn moving_over_is_replacing_one_word() {
    let folder = folder(&json!({}));
    fs::create_dir_all(folder.path("more/environments/sums/hard")).unwrap();
    fs::copy(
        folder.path("servers.json"),
        folder.path("more/environments/sums/hard/config.yaml"),
    )
    .unwrap();
    let line = "gym eval run --search-dir more --environment sums/hard --model m2 --split validation -o out/a.jsonl --num-repeats 2 --concurrency 4";
    let ended = rollstream(&folder, line).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(folder.read("out/a.jsonl").matches("\"m2\"").count(), 6);
    // A file instead of a split: only servers are started.
    let line = "gym eval run --environment sums/hard --search-dir=more -i out/a/preprocessed_datasets/validation.jsonl -o out/b.jsonl";
    let ended = rollstream(&folder, line).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(calls(&folder, "dataset collate"), 1);
    nothing_is_left(&folder);
}

#[test]
fn a_killed_sweep_leaves_no_process() {
    for (faults, moment) in [
        (json!({}), "prepares"),
        (json!({}), "starts NeMo Gym's servers"),
        (
            json!({"collate": "hangs", "daemon": "stubborn"}),
            "servers are ready",
        ),
        (json!({"start": "hangs"}), "waiting for"),
        (json!({"adder_server": "hangs"}), "6 rollouts"),
        (json!({"daemon": "stubborn"}), "ends NeMo Gym's programs"),
    ] {
        // Alone, as `pkill -KILL -f rollstream` does, and together with the supervisor below it.
        for also in ["rollstream", FIRST] {
            let folder = folder(&faults);
            let running = rollstream(&folder, &format!("collect {LINE} +grace=1s")).start();
            running.until_it_says(moment);
            kill(&folder, |name, line| {
                name == "rollstream" || line.contains(also)
            });
            assert_eq!(running.end().code, None);
            nothing_is_left(&folder);
        }
    }
}

#[test]
fn a_killed_supervisor_leaves_no_process() {
    for (faults, moment, code) in [
        (json!({"collate": "hangs"}), "servers are ready", 1),
        (json!({"adder_server": "hangs"}), "6 rollouts", 1),
        (json!({"daemon": "stubborn"}), "ends NeMo Gym's programs", 0),
    ] {
        for supervisors in [SUPERVISOR, FIRST] {
            let folder = folder(&faults);
            let running = rollstream(&folder, &format!("collect {LINE} +grace=1s")).start();
            running.until_it_says(moment);
            kill(&folder, |_, line| line.contains(supervisors));
            let ended = running.end();
            assert_eq!(ended.code, Some(code), "{}", ended.stderr);
            let is_told = ended.stderr.contains("ended with signal: 9");
            assert_eq!(is_told, code == 1, "{}", ended.stderr);
            assert_eq!(processes(&folder), Vec::<String>::new(), "{moment}");
        }
    }
}

#[test]
fn an_interrupted_sweep_ends_its_servers_before_it_ends() {
    for (faults, moment) in [
        (json!({"collate": "hangs"}), "servers are ready"),
        (json!({"start": "hangs"}), "waiting for"),
        (json!({"adder_server": "hangs"}), "6 rollouts"),
    ] {
        for signal in ["INT", "TERM"] {
            let folder = folder(&faults);
            let running = rollstream(&folder, &format!("collect {LINE} +grace=1s")).start();
            running.until_it_says(moment);
            running.signal(signal);
            let ended = running.end();
            assert_eq!(ended.code, Some(130), "{}", ended.stderr);
            assert_eq!(processes(&folder), Vec::<String>::new(), "{moment}");
        }
    }
}

#[test]
fn a_second_interrupt_kills_what_does_not_end() {
    let folder = folder(&json!({"daemon": "stubborn", "collate": "hangs"}));
    let running = rollstream(&folder, &format!("collect {LINE}")).start();
    running.until_it_says("servers are ready");
    running.signal("INT");
    running.until_it_says("ends NeMo Gym's programs");
    running.signal("INT");
    assert_eq!(running.end().code, Some(130));
    assert_eq!(processes(&folder), Vec::<String>::new());
}

#[test]
fn a_server_that_dies_is_named_with_the_end_of_its_log() {
    for (fault, last, done) in [
        (
            "dies",
            "ImportError: adder_server needs a library; the key is ****",
            false,
        ),
        ("dies_later", "MemoryError: adder_server is full", true),
    ] {
        let folder = folder(&json!({"adder_server": fault}));
        let ended = rollstream(&folder, &format!("collect {LINE} +concurrency=1"))
            .arg(format!("+policy_api_key={KEY}"))
            .run();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(
            ended
                .stderr
                .contains("NeMo Gym's server 'adder_server' died"),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains(last) && !ended.stderr.contains(KEY),
            "{}",
            ended.stderr
        );
        assert_eq!(
            ended.stderr.contains("of 6 rollouts are done and kept"),
            done,
            "{}",
            ended.stderr
        );
        assert_eq!(processes(&folder), Vec::<String>::new());
    }
}

#[test]
fn what_fails_before_the_sweep_says_why() {
    let failed = |faults: &Value, line: &str, expected: &[&str]| {
        let folder = folder(faults);
        let ended = rollstream(&folder, &format!("collect {line}")).run();
        assert_ne!(ended.code, Some(0));
        for text in expected {
            assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr);
        }
        assert_eq!(processes(&folder), Vec::<String>::new());
    };
    let rows = [
        "`gym dataset collate` ended with exit status: 1",
        "| ValueError: row 3 has no",
    ];
    failed(&json!({"collate": "fails"}), LINE, &rows);
    let split = LINE.replace("validation", "train");
    failed(
        &json!({}),
        &split,
        &["train.jsonl: no data set of --gym-config is of this split"],
    );
    let line = format!(
        "{LINE} +server_spinup_timeout_seconds=1 +model_endpoint_readiness_timeout_seconds=0"
    );
    let late = ["are not ready after", "++server_spinup_timeout_seconds=N"];
    failed(&json!({"start": "hangs"}), &line, &late);
    let no_model = [
        "`gym env start` ended with exit status: 1",
        "| Error: 1 model endpoint(s) never answered",
    ];
    failed(&json!({"start": "no_model"}), LINE, &no_model);
    let none = [
        "cannot find NeMo Gym's program `gym`",
        "nowhere (--gym-program)",
        "pip install nemo-gym",
    ];
    failed(&json!({}), &format!("{LINE} --gym-program nowhere"), &none);
    failed(
        &json!({}),
        "--gym-config servers.json -o run",
        &["--split validation", "--input"],
    );
    failed(
        &json!({}),
        &format!("{LINE} -i tasks.jsonl"),
        &["`split`", "`input`"],
    );
}

#[test]
fn kept_servers_are_used_again_and_end_when_told() {
    let folder = folder(&json!({}));
    let port = free_port();
    let collect = |name: &str, more: &str| {
        let line = format!("collect {} {more}", LINE.replace("/a.jsonl", name));
        let program = folder
            .rollstream(&line)
            .env("PATH", &std::env::var("PATH").unwrap());
        let ended = program.arg(format!("+head_server.port={port}")).run();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let plan = || {
        let line = format!("plan {LINE} +resume_from_cache=true +head_server.port={port}");
        let program = folder.rollstream(&line);
        program.env("PATH", &std::env::var("PATH").unwrap()).run()
    };
    let lacks = plan().exited_with(2).stderr;
    assert!(lacks.contains("validation.jsonl is not there"), "{lacks}");
    let first = collect("/a.jsonl", "--keep-servers");
    // The plan takes the data and the servers that are there.
    assert!(plan().succeeded().stdout.contains("adder"));
    let stop = first
        .lines()
        .find_map(|line| line.split_once("to stop them: "))
        .unwrap()
        .1;
    assert!(!processes(&folder).is_empty());
    let second = collect("/b.jsonl", "");
    let reused = format!("uses the servers that run at http://127.0.0.1:{port}");
    assert!(second.contains(&reused), "{second}");
    assert_eq!(calls(&folder, "env start"), 1);
    // Another configuration needs servers of its own.
    let other = collect("/c.jsonl", "+policy_model_name=other");
    assert!(other.contains("is taken; the head server is"), "{other}");
    assert_eq!(folder.read("out/c.jsonl").matches("\"other\"").count(), 6);
    assert_eq!(calls(&folder, "env start"), 2);
    let end = Program::shell(&folder.path(""), stop).env("PATH", "/bin:/usr/bin");
    end.run().succeeded();
    nothing_is_left(&folder);
    let lacks = plan().exited_with(2).stderr;
    assert!(lacks.contains("none of this configuration run"), "{lacks}");
}

#[test]
fn a_resume_starts_the_servers_of_the_run_again() {
    let folder = folder(&json!({"adder_server": "dies_later"}));
    let ended = rollstream(&folder, &format!("collect {LINE} +concurrency=1")).run();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let servers = folder.read("servers.json").replace("dies_later", "well");
    folder.write("servers.json", &servers);
    let path = std::env::var("PATH").unwrap();
    let ended = folder.rollstream("resume out/a").env("PATH", &path).run();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(folder.read("out/a.jsonl").lines().count(), 6);
    assert_eq!(
        (
            calls(&folder, "dataset collate"),
            calls(&folder, "env start")
        ),
        (1, 2)
    );
    nothing_is_left(&folder);
}
