//! Rollouts that always fail, on an agent that is well: each is charged, and the agent is not taken for one that is
//! down. An agent that is down, or can't work at all, is.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use super::ledger::Ledger;
use super::raw_agent::{ANSWER, Asked, RawAgent, folder, ok};
use super::scene::REPEATS;
use crate::common::{Ended, Folder, Program};

const TASKS: u64 = 42;
const ROLLOUTS: u64 = TASKS * REPEATS;

fn status(stream: &mut TcpStream, status: u16) -> io::Result<()> {
    let body = r#"{"detail":"it broke"}"#;
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Oops\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// The place of a rollout among all.
fn place(asked: &Asked) -> u64 {
    let index = |name: &str| asked.body[name].as_u64().unwrap();
    index("_ng_task_index") * REPEATS + index("_ng_rollout_index")
}

/// An agent that answers with this status to the rollouts that `fails` names, once it has answered all others.
fn failing_last(code: u16, fails: impl Fn(u64) -> bool + Send + Sync + 'static) -> RawAgent {
    let answered = AtomicUsize::new(0);
    let well = (0..ROLLOUTS).filter(|place| !fails(*place)).count();
    RawAgent::start(move |asked, stream| {
        if !fails(place(asked)) {
            ok(stream, "", ANSWER.as_bytes())?;
            answered.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        while answered.load(Ordering::SeqCst) < well {
            // Only spares the processor.
            sleep(Duration::from_millis(1));
        }
        // The answers before are on their way, and come first.
        sleep(Duration::from_millis(200));
        status(stream, code)
    })
}

/// A sweep whose retries come late enough for the first failures of others to come before.
fn collect(agent: &RawAgent, folder: &Folder, options: &str) -> Program {
    let program = folder.rollstream("collect -i tasks.jsonl --num-repeats 4 -o run --agent raw");
    let program = program.args("--disable-aggregation --retry-backoff 300ms");
    program.args(&format!("--agent-url raw={} {options}", agent.url()))
}

/// An agent that answers with this status to the rollouts that `fails` names.
fn failing(code: u16, fails: impl Fn(u64) -> bool + Send + Sync + 'static) -> RawAgent {
    RawAgent::start(move |asked, stream| {
        if fails(place(asked)) {
            status(stream, code)
        } else {
            ok(stream, "", ANSWER.as_bytes())
        }
    })
}

/// Every rollout that `fails` names has failed after this many attempts, and all others are done.
#[track_caller]
fn failed_after(folder: &Folder, attempts: usize, fails: impl Fn(u64) -> bool) {
    let ledger = Ledger::read(&folder.path("run"));
    let by_rollout = ledger.by_rollout();
    assert_eq!(by_rollout.len() as u64, ROLLOUTS);
    for ((task, rollout), of_rollout) in by_rollout {
        let last = of_rollout.last().unwrap();
        if fails(task as u64 * REPEATS + rollout as u64) {
            assert_eq!(of_rollout.len(), attempts, "{of_rollout:?}");
            assert!(last.terminal, "{last:?}");
        } else {
            assert_eq!(last.outcome, "ok");
        }
    }
}

#[track_caller]
fn said(ended: &Ended, text: &str, is_said: bool) {
    assert_eq!(ended.stderr.contains(text), is_said, "{text}: {ended:#?}");
}

const DOWN: &str = "answers nothing but failures";

#[test]
fn rollouts_that_always_fail_are_charged_whatever_the_status() {
    let fails = |place: u64| place % 20 == 3;
    for (code, concurrency) in [(500, 256), (500, 8), (503, 256), (502, 8), (429, 256)] {
        let agent = failing(code, fails);
        let folder = folder(TASKS);
        let options = format!("--concurrency {concurrency} --rate-limit-budget 5");
        let ended = agent.collect(&folder, &options).run().exited_with(3);
        said(&ended, "probed", false);
        failed_after(&folder, 5, fails);
        assert_eq!(folder.json("run/run.json")["state"], "finished");

        // With larger budgets, nothing but what always fails is left.
        let options = "--resume --infra-budget 7 --rate-limit-budget 7";
        let ended = agent.collect(&folder, options).run().exited_with(3);
        said(&ended, "probed", false);
        failed_after(&folder, 7, fails);
    }
}

#[test]
fn rollouts_that_fail_later_than_all_others_are_charged() {
    let fails = |place: u64| place % 9 == 3;
    let agent = failing_last(504, fails);
    let folder = folder(TASKS);
    let ended = agent.collect(&folder, "").run().exited_with(3);
    said(&ended, "probed", false);
    failed_after(&folder, 5, fails);
}

#[test]
fn where_all_that_is_left_always_fails_it_is_charged_after_a_while() {
    let fails = |place: u64| place >= ROLLOUTS / 2;
    let agent = failing_last(500, fails);
    let folder = folder(TASKS);
    let options = "--agent-patience 4s";
    let ended = collect(&agent, &folder, options).run().exited_with(3);
    said(&ended, "for up to 500ms", true);
    said(&ended, "its budget is spent", true);
    failed_after(&folder, 5, fails);
}

#[test]
fn an_agent_behind_a_proxy_that_goes_away_costs_no_rollout_its_budget() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (down, answers) = (Arc::clone(&is_down), AtomicUsize::new(0));
    let agent = RawAgent::start(move |_, stream| {
        if answers.fetch_add(1, Ordering::SeqCst) == 30 {
            down.store(true, Ordering::SeqCst);
        }
        if down.load(Ordering::SeqCst) {
            status(stream, 502)
        } else {
            ok(stream, "", ANSWER.as_bytes())
        }
    });
    for concurrency in [256, 8] {
        is_down.store(false, Ordering::SeqCst);
        let folder = folder(TASKS);
        let options = format!("--concurrency {concurrency}");
        let running = collect(&agent, &folder, &options).start();
        if concurrency == 8 {
            is_down.store(true, Ordering::SeqCst);
        }
        running.until_it_says(DOWN);
        is_down.store(false, Ordering::SeqCst);
        running.until_it_says("agent 'raw' answers again");
        running.end().succeeded();
        failed_after(&folder, 0, |_| false);
    }
}

#[test]
fn an_agent_that_never_answers_well_is_left_after_an_eighth_of_the_patience() {
    let agent = failing(500, |_| true);
    let folder = folder(TASKS);
    let options = "--concurrency 8 --agent-patience 3s";
    let ended = collect(&agent, &folder, options).run().exited_with(3);
    said(&ended, DOWN, true);
    said(&ended, "for up to 375ms", true);
    said(
        &ended,
        "an agent that never answered well gets an eighth of --agent-patience 3s",
        true,
    );
    said(&ended, "for 0s", false);
    assert_eq!(folder.json("run/run.json")["rollouts"]["failed"], 0);
}

#[test]
fn an_agent_whose_first_answers_all_fail_in_the_same_way_is_left_early() {
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = Arc::clone(&is_mended);
    let agent = RawAgent::start(move |_, stream| {
        if mended.load(Ordering::SeqCst) {
            ok(stream, "", ANSWER.as_bytes())
        } else {
            status(stream, 422)
        }
    });
    let folder = folder(TASKS);
    let ended = agent
        .collect(&folder, "--concurrency 4")
        .run()
        .exited_with(3);
    let why = ended.stderr.find("HTTP 422");
    let verdict = ended
        .stderr
        .find("answers of agent 'raw' failed in this way");
    assert!(why.is_some() && verdict > why, "{ended:#?}");
    let counts = folder.json("run/run.json")["rollouts"].clone();
    let failed = counts["failed"].as_u64().unwrap();
    assert!(failed <= 20, "{counts}");
    assert_eq!(counts["pending"], ROLLOUTS - failed, "{counts}");
    let asked = agent.asked().len();
    assert!((20..=50).contains(&asked), "{asked}");

    is_mended.store(true, Ordering::SeqCst);
    let resumed = agent.collect(&folder, "--resume --data-budget 3");
    resumed.run().succeeded();
}
