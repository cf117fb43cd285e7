//! What is shown on a terminal, wide and narrow.

use rollstream::sim::{FaultAt, FaultKind, SimConfig};
use serde_json::Value;

use crate::common::{BROKEN, Folder, Simulated, instant, sums};

/// Columns of the terminals: a wide one, the usual one, and half a screen of a laptop.
const WIDTHS: [u16; 3] = [120, 80, 50];

/// An agent that answers at once, except for these tasks, on which it hangs.
fn hangs_at(tasks: &[u64]) -> Simulated {
    let hang = |task: &u64| FaultAt {
        task: *task,
        rollout: None,
        attempt: None,
        kind: FaultKind::Hang,
    };
    Simulated::start(SimConfig {
        fault_at: tasks.iter().map(hang).collect(),
        ..instant(["sim"])
    })
}

/// The text without its line breaks and indentation.
fn in_one_line(screen: &str) -> String {
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn messages_stand_above_the_progress_and_a_stopping_sweep_says_what_it_waits_for() {
    let sim = hangs_at(&[0, 1]);
    for columns in WIDTHS {
        let folder = Folder::with_tasks(sums(8));
        let collect = "collect -i tasks.jsonl --agent sim --concurrency 2 -o run --grace 1h";
        let collect = folder.rollstream(collect).args(&sim.options());
        let mut terminal = collect.on_terminal(columns);
        let shown = terminal.until_it_shows("2 in flight");
        assert!(shown.contains("0/8 0.0/s, ETA -, 2 in flight"), "{shown}");

        terminal.interrupt();
        let shown = terminal.until("stopping", |shown| {
            shown.contains("stopping: waits for 2 calls") && !shown.contains("ETA")
        });
        let text = in_one_line(&shown);
        let message =
            "stopping: waiting up to 1h for the calls in flight; interrupt again to drop them";
        let (above, bar) = (
            text.find(message).unwrap(),
            text.find("0/8 stopping").unwrap(),
        );
        assert!(above < bar, "{shown}");
        assert_eq!(shown.matches("0/8").count(), 1, "{shown}");
        assert!(columns < 80 || shown.contains("59m"), "{shown}");

        terminal.interrupt();
        let (code, shown) = terminal.end();
        assert_eq!(code, Some(130));
        assert!(!shown.contains("0/8"), "{shown}");
        let text = in_one_line(&shown);
        assert!(
            text.contains(message) && text.contains("dropping the calls in flight"),
            "{shown}"
        );
        assert!(
            text.contains("interrupted: 0 of 8 rollouts done, 0 failed, 8 pending"),
            "{shown}"
        );
        assert!(text.contains("rollstream resume run"), "{shown}");
    }
}

#[test]
fn a_resume_shows_the_mean_reward_of_the_run_beside_its_own() {
    for columns in WIDTHS {
        let folder = Folder::with_tasks(sums(6));
        let collect = |sim: &Simulated, more| {
            let command = "collect -i tasks.jsonl --agent sim --num-repeats 2 --grace 1ms -o run";
            folder.rollstream(command).args(&sim.options()).args(more)
        };
        let mean = |sql| -> f64 { folder.sql("run", sql)[0].parse().unwrap() };

        let first = hangs_at(&[3, 4, 5]);
        let mut terminal = collect(&first, "").on_terminal(columns);
        let shown = terminal.until("3 tasks", |shown| {
            in_one_line(shown).contains("over 3 of 6 tasks")
        });
        assert!(
            !shown.contains("in this process") && !shown.contains(BROKEN),
            "{shown}"
        );
        terminal.interrupt();
        assert_eq!(terminal.end().0, Some(130));
        let before = mean("select avg(reward) from rollouts");

        let second = hangs_at(&[5]);
        let mut terminal = collect(&second, "--resume").on_terminal(columns);
        let shown = terminal.until("5 tasks", |shown| {
            in_one_line(shown).contains("over 5 of 6 tasks, ")
        });
        assert!(!shown.contains(BROKEN), "{shown}");
        terminal.interrupt();
        assert_eq!(terminal.end().0, Some(130));
        let all = mean("select avg(reward) from rollouts");
        let own = mean("select avg(reward) from rollouts where task_index in (3, 4)");
        let line = format!(
            "sim: 2 left, mean reward {all:.4} over 5 of 6 tasks, {own:.4} in this process"
        );
        assert!(in_one_line(&shown).contains(&line), "{line}: {shown}");
        assert!(all != own || before == own, "{all} {own} {before}");
    }
}

#[test]
fn cost_latency_and_tokens_are_shown_where_there_is_room() {
    let sim = hangs_at(&[5]);
    for columns in WIDTHS {
        let folder = Folder::with_tasks(sums(6));
        let collect = "collect -i tasks.jsonl --agent sim --grace 1ms -o run";
        let collect = folder.rollstream(collect).args(&sim.options());
        let prices = "+agents.sim.input_price=3 +agents.sim.output_price=15";
        let mut terminal = collect.args(prices).on_terminal(columns);
        let shown = terminal.until_it_shows("1 left");
        let cost = "select (3 * sum(input_tokens) + 15 * sum(output_tokens)) / 1e6 from rollouts";
        let cost: f64 = folder.sql("run", cost)[0].parse().unwrap();
        assert!(
            shown.contains(&format!("  cost {cost:.4}, latency p50 0.")),
            "{cost}: {shown}"
        );
        assert_eq!(shown.contains("output tokens/s"), columns > 60, "{shown}");
        terminal.interrupt();
        assert_eq!(terminal.end().0, Some(130));
    }
}

#[test]
fn the_end_of_a_sweep_fits_the_terminal() {
    for columns in WIDTHS {
        let folder = Folder::with_tasks(sums(6));
        let mut config = instant(["sim"]);
        config.fault_at = vec![FaultAt {
            task: 0,
            rollout: None,
            attempt: None,
            kind: FaultKind::Error500,
        }];
        let sim = Simulated::start(config);
        let collect = "collect -i tasks.jsonl --agent sim --num-repeats 2 -o run --show-failures 0 --retry-backoff 1ms";
        let collect = folder.rollstream(collect).args(&sim.options());
        let (code, shown) = collect.on_terminal(columns).end();
        assert_eq!(code, Some(3), "{shown}");
        assert!(!shown.contains(BROKEN), "{shown}");
        let text = in_one_line(&shown);
        let places: Vec<usize> = [
            "finished in ",
            ": 10 of 12 rollouts done, 2 failed (2 infra), 0 pending",
            " reward ",
            "2 rollouts failed. Attempts that failed: 10 attempts of sim: the network or the server failed (HTTP 500): ",
            "results: run",
            "rollstream show run --failed",
            "rollstream compare run OTHER",
        ]
        .iter()
        .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {shown}")))
        .collect();
        assert!(places.is_sorted(), "{shown}");
        assert_eq!(shown.contains(" median "), columns > 100, "{shown}");
        assert_eq!(
            text.contains("(a wider terminal also shows "),
            columns < 100,
            "{shown}"
        );
        assert!(shown.contains(" pass@k"), "{shown}");

        let (_, shown) = folder.rollstream("status run").on_terminal(columns).end();
        assert!(!shown.contains(BROKEN), "{shown}");
        assert!(
            in_one_line(&shown).contains("10 of 12 rollouts done"),
            "{shown}"
        );
    }
}

#[test]
fn the_end_of_a_sweep_and_its_status_have_the_same_rate() {
    let folder = Folder::with_tasks(sums(6));
    let collect = |sim: &Simulated, more| {
        let command = "collect -i tasks.jsonl --agent sim --num-repeats 2 --grace 1ms -o run";
        folder.rollstream(command).args(&sim.options()).args(more)
    };
    let sim = hangs_at(&[4, 5]);
    let mut terminal = collect(&sim, "").on_terminal(80);
    terminal.until_it_shows("8/12");
    terminal.interrupt();
    terminal.end();

    // Of this process, and not of the time since the first one began.
    let sim = Simulated::start(instant(["sim"]));
    let ended = collect(&sim, "--resume --json").run().succeeded();
    let finished: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let product =
        |rate: &Value, seconds: &Value| rate.as_f64().unwrap() * seconds.as_f64().unwrap();
    let rollouts = product(
        &finished["rollouts_per_second"],
        &finished["elapsed_seconds"],
    );
    assert!((rollouts - 4.0).abs() < 1e-6, "{finished}");
    let status = folder.rollstream("status run --json").run().succeeded();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let total = &status["total"];
    let rollouts = product(
        &total["rollouts_per_second"],
        &status["rate_window"]["seconds"],
    );
    assert!((rollouts - 4.0).abs() < 1e-6, "{status}");
}

#[test]
fn tables_fit_the_terminal() {
    let folder = Folder::with_tasks(sums(12));
    let mut config = instant(["sim"]);
    config.fault_at = vec![FaultAt {
        task: 0,
        rollout: None,
        attempt: None,
        kind: FaultKind::FailureTerminal,
    }];
    let sim = Simulated::start(config);
    for run in ["runs/first", "runs/one-with-a-long-name"] {
        let collect = folder.rollstream("collect -i tasks.jsonl --agent sim -q -o");
        collect.arg(run).args(&sim.options()).run().exited_with(3);
    }
    for columns in WIDTHS {
        let shown = |line: &str| {
            let program = folder.rollstream(line).env("PAGER", "");
            let mut terminal = program.on_terminal(columns);
            if line.starts_with("show") {
                terminal.until_it_shows("task to read");
                terminal.press("\r");
            }
            let (code, shown) = terminal.end();
            assert_eq!(code, Some(0), "{shown}");
            assert!(!shown.contains(BROKEN), "{line}: {shown}");
            shown
        };
        let listed = shown("ls runs");
        for run in ["runs/first", "runs/one-with-a-long-name"] {
            let is_whole = |line: &str| line.contains(run) && line.contains("11 of 12");
            assert!(listed.lines().any(is_whole), "{listed}");
        }
        let tasks = shown("show runs/first");
        assert!(tasks.contains("   0/1       1  What is"), "{tasks}");

        // Bars are for terminals that have room for them.
        let status = shown("status runs/first");
        let bars = status.lines().filter(|line| line.starts_with("███"));
        assert_eq!(bars.count(), usize::from(columns >= 80), "{status}");
        let metrics = shown("aggregate runs/first");
        assert_eq!(metrics.contains("mean, 0 to 1"), columns > 100, "{metrics}");
        assert_eq!(metrics.contains('█'), columns > 100, "{metrics}");
    }
    let plain = folder.rollstream("status runs/first").run().succeeded();
    assert!(!plain.stdout.contains('█'), "{}", plain.stdout);
}

#[test]
fn errors_and_pages_are_broken_between_words() {
    let folder = Folder::with_tasks(sums(1));
    let collect = "collect -i tasks.jsonl --agent sim -q -o a-run-with-a-name";
    folder.rollstream(collect).run().succeeded();
    for columns in WIDTHS {
        let (code, shown) = folder.rollstream(collect).on_terminal(columns).end();
        assert_eq!(code, Some(2));
        let remedy = "Continue it with `rollstream resume a-run-with-a-name`";
        assert!(in_one_line(&shown).contains(remedy), "{shown}");
        assert!(!shown.contains(BROKEN), "{shown}");
        let (_, page) = folder.rollstream("help gates").on_terminal(columns).end();
        let mut is_code = false;
        for line in page.lines() {
            is_code ^= line.starts_with("```");
            assert!(is_code || !line.contains(BROKEN), "{line}");
        }
    }
}
