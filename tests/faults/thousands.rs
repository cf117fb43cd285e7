//! Thousands of calls in flight, and everything that can go wrong with one.

use std::collections::BTreeSet;
use std::time::Duration;

use rollstream::sim::{AgentChange, FaultKind, Latency, SimConfig, oracle};

use super::agents::Agents;
use super::ledger::Ledger;
use super::load;
use super::scene::{REPEATS, answers_are_right, collecting, quick, rates, requests_are_on_record};
use super::schedule::every_rollout_is_settled;
use crate::common::{Folder, sums};

const IN_FLIGHT: u64 = 4096;
const TASKS: u64 = 1536;

/// Shares of all requests.
const FAULTS: [(&str, f64); 13] = [
    ("rate_limited_429", 0.001),
    ("rate_limited_reset", 0.02),
    ("error_503", 0.001),
    ("error_500", 0.04),
    ("reset", 0.04),
    ("fin", 0.02),
    ("truncated_body", 0.04),
    ("not_json", 0.02),
    ("missing_reward", 0.02),
    ("invalid_utf8", 0.02),
    ("failure_class", 0.04),
    ("failure_terminal", 0.01),
    ("no_persist", 0.02),
];

/// What always goes wrong somewhere, and the calls that hang: those of the first that are sent, so that all wait at the
/// same time.
const PLACES: [&str; 10] = [
    "7=error_500",
    "8=reset",
    "9=truncated_body",
    "10=not_json",
    "11=failure_class",
    "12=bad_request_400",
    "13:0:0=hang",
    "14:1:0=hang",
    "500:2:0=hang",
    "900:3:0=hang",
];

/// Outcome and HTTP status of an attempt that meets with a fault.
fn end(fault: Option<FaultKind>) -> (&'static str, Option<i32>) {
    use FaultKind::*;
    match fault {
        None => ("ok", Some(200)),
        Some(Error500) => ("infra", Some(500)),
        Some(Error503) => ("infra", Some(503)),
        Some(RateLimited429 | RateLimitedReset) => ("infra", Some(429)),
        Some(Reset | Fin) => ("infra", None),
        Some(TruncatedBody) => ("infra", Some(200)),
        Some(NotJson | MissingReward | InvalidUtf8) => ("data", Some(200)),
        Some(BadRequest400) => ("data", Some(400)),
        Some(FailureClass | FailureTerminal) => ("agent_flagged", Some(200)),
        Some(NoPersist) => ("not_persisted", Some(200)),
        Some(Hang) => ("timeout", None),
        Some(other) => panic!("nobody asked for {other}"),
    }
}

#[test]
fn of_thousands_in_flight_each_is_settled_once_whatever_fails() {
    let config = SimConfig {
        faults: rates(&FAULTS),
        fault_at: PLACES.map(|at| at.parse().unwrap()).to_vec(),
        latency: Latency::LogNormal {
            median: Duration::from_millis(20),
            sigma: 1.0,
            cap: Some(Duration::from_millis(500)),
        },
        retry_after: Duration::from_millis(5),
        // All wait in line until there are thousands of them.
        capacity: Some(1),
        ..quick()
    };
    let agents = Agents::start(config.clone());
    let folder = Folder::with_tasks(sums(TASKS));
    let in_flight = load::concurrency(IN_FLIGHT).min(TASKS * REPEATS);
    let options = format!("--resume --concurrency {in_flight} --rollout-timeout 12s");
    let collect = || {
        let program = collecting(&folder).args("--agent sim");
        program.args(&agents.options()).args(&options)
    };
    let running = collect().start();
    agents.until("all are in flight", |agents| {
        agents.counts("sim").in_flight >= in_flight
    });
    let no_limit = AgentChange {
        capacity: Some(None),
        ..AgentChange::default()
    };
    agents.change("sim", no_limit);
    running.end().exited_with(3);
    let counts = || folder.json("run/run.json")["rollouts"].clone();
    // What was to be forgotten is still pending.
    while counts()["pending"] != 0 {
        let ended = collect().run();
        assert!(matches!(ended.code, Some(0 | 3)), "{ended:#?}");
    }

    let ledger = Ledger::read(&folder.path("run"));
    let given_up = every_rollout_is_settled(TASKS, &ledger);
    let planned = TASKS * REPEATS;
    let done = ledger.rollouts.len();
    assert_eq!((done + given_up) as u64, planned);
    assert_eq!(
        counts(),
        serde_json::json!({"planned": planned, "done": done, "failed": given_up, "pending": 0})
    );
    answers_are_right(&config, &ledger);
    requests_are_on_record(&agents, &ledger);
    every_row_has_its_request(&agents, &ledger);
    every_attempt_ended_as_planned(&config, &ledger);
    println!(
        "{done} done, {given_up} given up, {:?}",
        ledger.ends(|_| true)
    );
}

/// A row stands for a request that was made.
#[track_caller]
fn every_row_has_its_request(agents: &Agents, ledger: &Ledger) {
    let requests = agents.requests("sim").into_iter();
    let requests = requests.map(|request| {
        let [task, rollout, attempt] =
            [request.task_index, request.rollout_index, request.attempt].map(|index| index as i64);
        (task, rollout, attempt)
    });
    let requests: BTreeSet<(i64, i64, i64)> = requests.collect();
    let mut rows = BTreeSet::new();
    for row in &ledger.attempts {
        assert!(rows.insert(row.key()), "twice: {row:?}");
        // A machine that is too slow to send a request in all its time would be another matter.
        let has_request = requests.contains(&row.key()) || row.outcome == "timeout";
        assert!(has_request, "nobody was asked: {row:?}");
    }
}

/// What the agent did to each attempt is what is on record.
#[track_caller]
fn every_attempt_ended_as_planned(config: &SimConfig, ledger: &Ledger) {
    let mut kinds = BTreeSet::new();
    for row in &ledger.attempts {
        let [task, rollout, attempt] =
            [row.task, row.rollout, row.attempt].map(|index| index as u64);
        let fault = oracle(config, task, rollout, attempt).fault;
        kinds.extend(fault);
        let actual = (row.outcome.as_str(), row.http_status);
        // A time limit can end any call of a machine that is slow enough.
        let is_planned = actual == end(fault) || row.outcome == "timeout";
        assert!(is_planned, "{fault:?}, but {row:?}");
        let is_forever = fault == Some(FaultKind::FailureTerminal) && row.outcome != "timeout";
        assert_eq!(row.failure_terminal, is_forever, "{row:?}");
    }
    let places = PLACES.iter().filter_map(|at| at.split('=').next_back());
    let expected = FAULTS.iter().map(|(kind, _)| *kind).chain(places);
    let expected: BTreeSet<FaultKind> = expected.map(|kind| kind.parse().unwrap()).collect();
    assert_eq!(kinds, expected);
}
