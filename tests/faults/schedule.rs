//! A sweep under a random schedule: an agent that fails at random, and a collector that is killed at random and gone on
//! with until it ends by itself.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use rollstream::sim::{Draws, FaultRates, Latency, SimConfig};

use super::agents::Agents;
use super::ledger::{Attempt, Ledger, parts};
use super::load;
use super::reader::Reader;
use super::scene::{answers_are_right, quick, requests_are_on_record};
use crate::common::{Folder, Running, sums};

const TASKS: u64 = 30;
const CONCURRENCY: u64 = 12;
const REPEATS: u64 = 4;

/// Faults, and the most that each happens of 1000 requests. All of them together leave most requests alone: an agent
/// that answers nothing else would be paused.
const FAULTS: [(&str, f64); 14] = [
    ("error_500", 60.0),
    ("error_503", 10.0),
    ("reset", 50.0),
    ("fin", 50.0),
    ("truncated_body", 40.0),
    ("not_json", 100.0),
    ("missing_reward", 100.0),
    ("invalid_utf8", 20.0),
    ("bad_request_400", 20.0),
    ("no_persist", 30.0),
    ("failure_class", 120.0),
    ("failure_terminal", 40.0),
    ("rate_limited_reset", 50.0),
    ("slow_first_byte", 40.0),
];

/// Attempts that count against each budget before a rollout is given up.
const BUDGETS: [(&str, usize); 4] = [
    ("infra", 5),
    ("rate_limit", 50),
    ("data", 2),
    ("agent_flagged", 3),
];

/// What happened under a schedule.
#[derive(Debug, Default, Clone, Copy)]
pub struct Happened {
    pub kills: usize,
    pub looks: usize,
    pub requests: usize,
    pub attempts: usize,
    pub interrupted: usize,
    pub given_up: usize,
}

impl Happened {
    pub fn and(self, other: Self) -> Self {
        Self {
            kills: self.kills + other.kills,
            looks: self.looks + other.looks,
            requests: self.requests + other.requests,
            attempts: self.attempts + other.attempts,
            interrupted: self.interrupted + other.interrupted,
            given_up: self.given_up + other.given_up,
        }
    }
}

/// Runs the schedule of this seed: at most so many kills. Whatever is wrong afterwards is a panic.
pub fn run(seed: u64, most_kills: usize) -> Happened {
    let mut draws = Draws::keyed(seed, &[TASKS, REPEATS]);
    let config = config(seed, &mut draws);
    let agents = Agents::start(config.clone());
    let tasks = load::tasks(TASKS, REPEATS);
    // As often as a small sweep is this one killed, and as many parts does it have.
    let larger = (tasks / TASKS) as usize;
    let folder = Folder::with_tasks(sums(tasks));
    let place = folder.path("run");
    let reader = Reader::start(place.clone());
    let mut kills = 0;
    loop {
        let concurrency = 1 + draws.below(load::concurrency(CONCURRENCY) as usize);
        let options = format!(
            "collect -i tasks.jsonl --num-repeats {REPEATS} -o run --agent sim --resume --retry-backoff 1ms \
             --disable-aggregation --part-size {}KB --concurrency {concurrency}",
            20 * larger
        );
        let program = folder.rollstream(&options).args(&load::partitions());
        let mut running = program.args(&agents.options()).start();
        if kills < most_kills {
            let requests = 1 + draws.below(20 * larger) as u64;
            kill(&mut running, &agents, &folder, requests, &mut draws);
        }
        let ended = running.end();
        if ended.code.is_none() {
            kills += 1;
            continue;
        }
        assert!(matches!(ended.code, Some(0 | 3)), "seed {seed}: {ended:#?}");
        // What was to be forgotten is still owed.
        if folder.json("run/run.json")["rollouts"]["pending"] == 0 {
            break;
        }
    }
    let looks = reader.stop();
    let ledger = Ledger::read(&place);
    let given_up = every_rollout_is_settled(tasks, &ledger);
    answers_are_right(&config, &ledger);
    requests_are_on_record(&agents, &ledger);
    let interrupted = ledger.attempts.iter();
    let interrupted = interrupted.filter(|row| row.outcome == "interrupted");
    Happened {
        kills,
        looks,
        requests: agents.requests("sim").len(),
        attempts: ledger.attempts.len(),
        interrupted: interrupted.count(),
        given_up,
    }
}

fn config(seed: u64, draws: &mut Draws) -> SimConfig {
    let faults = FAULTS.iter().map(|(kind, most)| {
        // Half of the kinds, so that not everything goes wrong always.
        let rate = (draws.unit() - 0.5).max(0.0) * 2.0 * most / 1000.0;
        (kind.parse().unwrap(), rate)
    });
    SimConfig {
        seed,
        faults: FaultRates(faults.collect()),
        latency: Latency::LogNormal {
            median: Duration::from_micros(1 + draws.below(8000) as u64),
            sigma: 1.0,
            cap: Some(Duration::from_millis(50)),
        },
        retry_after: Duration::from_millis(3),
        slow_first_byte: Duration::from_millis(10),
        ..quick()
    }
}

/// Kills the collector when the agent has counted so many more requests, or when some more parts are there, if it does
/// not end before.
fn kill(running: &mut Running, agents: &Agents, folder: &Folder, requests: u64, draws: &mut Draws) {
    let place = folder.path("run");
    let landed = || parts(&place, "rollouts").len() + parts(&place, "attempts").len();
    let requests = agents.num_requests() + requests;
    let parts = landed() + 1 + draws.below(2);
    let by_parts = draws.unit() < 0.25;
    loop {
        let is_time = match by_parts {
            true => landed() >= parts,
            false => agents.num_requests() >= requests,
        };
        if is_time {
            return running.signal("KILL");
        }
        if !running.is_running() {
            return;
        }
        // Only spares the processor: what is waited for is counted.
        sleep(Duration::from_micros(200));
    }
}

/// Each planned rollout is done once, or was given up with its budget spent and not before; and nothing was asked after
/// that.
#[track_caller]
pub fn every_rollout_is_settled(tasks: u64, ledger: &Ledger) -> usize {
    ledger.is_consistent();
    let attempts = ledger.by_rollout();
    let planned = (0..tasks as i64).flat_map(|task| (0..REPEATS as i64).map(move |n| (task, n)));
    let mut given_up = 0;
    assert_eq!(attempts.len() as u64, tasks * REPEATS);
    for key in planned {
        let attempts = &attempts[&key];
        let (last, before) = attempts.split_last().unwrap();
        assert!(
            !is_spent(before),
            "{key:?} was asked too often: {attempts:#?}"
        );
        if ledger.rollouts.contains_key(&key) {
            continue;
        }
        given_up += 1;
        let is_spent = is_spent(attempts);
        assert!(last.terminal && is_spent, "{key:?} is lost: {attempts:#?}");
    }
    given_up
}

fn is_spent(attempts: &[&Attempt]) -> bool {
    let mut spent: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in attempts {
        let budget = match (attempt.outcome.as_str(), attempt.http_status) {
            ("infra", Some(429)) => "rate_limit",
            ("timeout", _) => "infra",
            (outcome, _) => outcome,
        };
        *spent.entry(budget).or_default() += 1;
    }
    let is_over = |(budget, most): &(&str, usize)| spent.get(budget) >= Some(most);
    BUDGETS.iter().any(is_over) || attempts.iter().any(|attempt| attempt.failure_terminal)
}
