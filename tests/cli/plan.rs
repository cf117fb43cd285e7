//! `rollstream plan`: what would be done, without doing it.

use serde_json::Value;

use crate::common::{Folder, Simulated, instant, sums, task};

/// Compares with a snapshot, with what differs from run to run left out.
macro_rules! assert_stable {
    ($text:expr) => {{
        let mut settings = insta::Settings::clone_current();
        // With the blanks behind it: the column is as wide as the port.
        settings.add_filter(r"http://127\.0\.0\.1:\d+ *", "http://127.0.0.1:PORT  ");
        settings.add_filter(r"(?m)^( agent  address) *", "$1                ");
        settings.add_filter(r"\[\[[0-9a-f]{16}/", "[[SPOOL/");
        settings.bind(|| insta::assert_snapshot!($text));
    }};
}

fn tasks() -> Folder {
    let named = |task: crate::common::Task| task.for_agent("other");
    Folder::with_tasks(
        sums(3)
            .into_iter()
            .chain([named(task("Why?")), named(task("How?"))]),
    )
}

const OPTIONS: &str = "-i tasks.jsonl --agent sim --num-repeats sim=4,other=1 -o run --concurrency 64 --part-size 1MiB";

#[test]
fn the_plan_is_one_from_source_to_sink_with_the_counts_of_each_agent() {
    let (folder, sim) = (tasks(), Simulated::start(instant(["sim", "other"])));
    let before = folder.content();
    let ended = folder
        .rollstream("plan")
        .args(OPTIONS)
        .args(&sim.options())
        .run()
        .succeeded();
    assert_eq!(
        ended.stderr,
        "warning: 2 of 5 rows of the input name another agent than 'sim', and keep it: --agent is for rows that \
         name none\n"
    );
    assert_stable!(ended.stdout);
    assert_eq!(sim.requests(), 0);
    assert_eq!(folder.content(), before);
}

#[test]
fn programs_get_the_same_as_json() {
    let (folder, sim) = (tasks(), Simulated::start(instant(["sim", "other"])));
    let ended = folder
        .rollstream("plan --json")
        .args(OPTIONS)
        .args(&sim.options())
        .run()
        .succeeded();
    let plan: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(plan["num_pending"], 14);
    let of = |index: usize, key: &str| plan["agents"][index][key].clone();
    assert_eq!(
        (
            of(0, "agent_name"),
            of(0, "num_tasks"),
            of(0, "num_rollouts")
        ),
        ("other".into(), 2.into(), 2.into())
    );
    assert_eq!(
        (
            of(1, "agent_name"),
            of(1, "num_tasks"),
            of(1, "num_rollouts")
        ),
        ("sim".into(), 3.into(), 12.into())
    );
    assert!(
        of(1, "address")
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
    assert!(
        plan["physical_plan"]
            .as_str()
            .unwrap()
            .starts_with("LandExec")
    );
    assert_eq!(sim.requests(), 0);
}

#[test]
fn the_plan_of_a_resume_owes_what_is_missing() {
    let (folder, sim) = (
        Folder::with_tasks(sums(3)),
        Simulated::start(instant(["sim"])),
    );
    folder.write(
        "faults.toml",
        "[sim]\nlatency = 'fixed:0ms'\nfault_at = [{task = 1, kind = 'no_persist'}]\n",
    );
    let options = "-i tasks.jsonl --agent sim --num-repeats 2 -o run";
    folder
        .rollstream("collect -q --config faults.toml")
        .args(options)
        .run()
        .exited_with(3);
    let before = (folder.content(), folder.read("run/run.json"));
    let ended = folder
        .rollstream("plan --resume")
        .args(options)
        .args(&sim.options())
        .run()
        .succeeded();
    let table: Vec<&str> = ended
        .stdout
        .lines()
        .find(|line| line.starts_with(" sim"))
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(table[2..], ["3", "6", "4", "0", "2"]);
    assert!(
        ended.stdout.starts_with("2 of 6 rollouts would be sent"),
        "{}",
        ended.stdout
    );
    assert_eq!((folder.content(), folder.read("run/run.json")), before);
    assert_eq!(sim.requests(), 0);
}

#[test]
fn what_collect_refuses_plan_refuses_too() {
    let folder = tasks();
    folder.write("bad.jsonl", "{\n");
    let ended = folder
        .rollstream("plan --agent sim -o run -i bad.jsonl")
        .run();
    ended
        .exited_with(2)
        .complaining(&["Malformed JSON in 'bad.jsonl' at line 1"]);
}

#[test]
fn a_plan_says_how_long_the_rest_takes_and_what_it_costs() {
    let folder = Folder::with_tasks(sums(6));
    folder.write(
        "sweep.toml",
        "input = \"tasks.jsonl\"\noutput = \"run\"\nagent = \"sim\"\nconcurrency = 2\n[agents.sim]\ninput_price = 1000\n\
         output_price = 1000\n[sim]\nlatency = \"fixed:20ms\"\n",
    );
    let plan = |options: &str| {
        let plan = folder.rollstream("plan --config sweep.toml").args(options);
        plan.run().succeeded().stdout
    };
    let new = plan("");
    assert!(new.starts_with("6 of 6 rollouts would be sent"), "{new}");
    assert!(new.contains("not known before some are done"), "{new}");
    assert!(!new.contains("RunExec"), "{new}");
    assert!(plan("--verbose").contains("RunExec"));
    let held = plan("--requests-per-second 0.5");
    assert!(held.contains("They would take 12s or longer"), "{held}");

    let collect = folder.rollstream("collect --config sweep.toml");
    collect.run().succeeded();
    let rest = "--resume --extend --num-repeats 1000";
    let known = plan(rest);
    assert!(known.starts_with("5,994 of 6,000 rollouts"), "{known}");
    assert!(known.contains("going by the 6 that are done"), "{known}");
    let json: Value = serde_json::from_str(&plan(&format!("{rest} --json"))).unwrap();
    // 5,994 rollouts of 20 ms or more, two at a time.
    assert!(json["estimate"]["seconds"].as_f64() >= Some(59.0), "{json}");
    let tokens = "select avg(input_tokens + output_tokens) from rollouts";
    let tokens: f64 = folder.sql("run", tokens)[0].parse().unwrap();
    let cost = json["estimate"]["cost"].as_f64().unwrap();
    assert!((cost - 5.994 * tokens).abs() < 1e-6 * cost, "{cost}");
}
