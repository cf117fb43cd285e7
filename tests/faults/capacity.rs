//! A server with a hard limit, which refuses what is beyond: the collector finds the limit, and follows it. How many
//! calls are in flight is what it finds, and nothing that could be asked for.

use std::time::Duration;

use rollstream::sim::{Latency, OverCapacity, SimConfig};

use super::agents::Agents;
use super::ledger::{Attempt, Ledger};
use super::refusals::nobody_came_too_early;
use super::scene::{answers_are_right, collecting, quick, requests_are_on_record};
use crate::common::{Folder, sums};

const TASKS: u64 = 800;
const ROLLOUTS: u64 = TASKS * 4;

fn mean_limit(rows: &[&Attempt]) -> f64 {
    let limits = rows.iter().map(|row| row.concurrency_limit.unwrap());
    limits.map(f64::from).sum::<f64>() / rows.len() as f64
}

#[track_caller]
fn is_within_a_fifth(found: f64, capacity: f64) {
    assert!(
        (0.8..=1.2).contains(&(found / capacity)),
        "{found}, not {capacity}"
    );
}

#[test]
fn the_limit_of_calls_in_flight_finds_the_servers_capacity_and_follows_it() {
    let config = SimConfig {
        capacity: Some(48),
        over_capacity: OverCapacity::Refuse,
        // Long beside what a machine that is busy adds to it.
        latency: Latency::Fixed(Duration::from_millis(500)),
        retry_after: Duration::from_millis(100),
        ..quick()
    };
    let agents = Agents::start(config.clone());
    let folder = Folder::with_tasks(sums(TASKS));
    let program = collecting(&folder).args("--agent sim --concurrency auto");
    let running = program.args(&agents.options()).start();
    let answered = |of: u64| move |agents: &Agents| agents.counts("sim").ok >= of;
    agents.until("a quarter is done", answered(ROLLOUTS / 4));
    let raised_at = agents.requests("sim").len();
    agents.set_capacity("sim", 96);
    running.end().succeeded();

    let ledger = Ledger::read(&folder.path("run"));
    ledger.is_consistent();
    assert_eq!(ledger.rollouts.len() as u64, ROLLOUTS);
    answers_are_right(&config, &ledger);
    requests_are_on_record(&agents, &ledger);
    nobody_came_too_early(&agents.requests("sim"), &ledger);

    let mut rows: Vec<&Attempt> = ledger.attempts.iter().collect();
    rows.sort_by_key(|row| row.dispatched_at);
    let (before, _) = rows.split_at(raised_at);
    is_within_a_fifth(mean_limit(&before[before.len() / 2..]), 48.0);
    is_within_a_fifth(mean_limit(&rows[rows.len() * 3 / 4..]), 96.0);
    let refused = ledger.attempts.iter().filter(|row| row.outcome != "ok");
    assert!(refused.clone().all(|row| row.http_status == Some(429)));
    // It asks beyond the limit to find it, and seldom.
    let refused = refused.count();
    assert!(refused > 0 && refused < rows.len() / 5, "{refused}");
}
