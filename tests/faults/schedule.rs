//! A sweep under a random schedule: an agent that fails at random, and a collector that is killed at random and gone on
//! with until it ends by itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rollstream::sim::{Draws, FaultRates, Latency, SimConfig};

use super::agents::Agents;
use super::files::below;
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

/// Attempts that count against each budget before a rollout has failed.
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
    pub takeovers: usize,
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
            takeovers: self.takeovers + other.takeovers,
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
    let (mut kills, mut takeovers) = (0, 0);
    loop {
        let life = Life::draw(&mut draws);
        let mut processes: Vec<Running> = Vec::new();
        let mut is_stopped = false;
        for own in life.processes() {
            // Who takes a lock finds its holder at work.
            if let (Life::Takeover, Some(holder)) = (life, processes.last_mut())
                && reached(holder, &agents, &folder, larger, &mut draws)
            {
                holder.signal("STOP");
                is_stopped = true;
            }
            let concurrency = 1 + draws.below(load::concurrency(CONCURRENCY) as usize);
            let options = format!(
                "collect -i tasks.jsonl --num-repeats {REPEATS} -o run --agent sim --resume --retry-backoff 1ms \
                 --disable-aggregation --part-size {}KB --concurrency {concurrency} {own}",
                20 * larger
            );
            let program = folder.rollstream(&options).args(&partitions(&mut draws));
            processes.push(program.args(&agents.options()).start());
        }
        let mut ended = Vec::new();
        if let (true, [holder, taker]) = (is_stopped, &mut processes[..]) {
            taken(taker, &place);
            holder.signal("CONT");
            ended.push(processes.remove(0).end());
        }
        if let Some(last) = processes.last_mut().filter(|_| kills < most_kills)
            && reached(last, &agents, &folder, larger, &mut draws)
        {
            last.signal("KILL");
        }
        ended.extend(processes.into_iter().rev().map(Running::end));
        for ended in &ended {
            let is_well = match ended.code {
                // Its lock was taken.
                Some(1) => life == Life::Takeover && ended.stderr.contains("lock"),
                code => matches!(code, None | Some(0 | 3)),
            };
            assert!(is_well, "seed {seed}, {life:?}: {ended:#?}");
        }
        let with_code = |code| ended.iter().filter(|ended| ended.code == code).count();
        kills += with_code(None);
        takeovers += with_code(Some(1));
        if with_code(None) > 0 {
            continue;
        }
        // What was to be forgotten is still pending.
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
        takeovers,
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

/// How collectors share the work until all of them have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alone,
    /// Two, each with its share of the tasks.
    Shards,
    /// A second one takes the lock of the first.
    Takeover,
}

impl Life {
    fn draw(draws: &mut Draws) -> Self {
        match draws.below(8) {
            0 | 1 => Self::Shards,
            2 | 3 => Self::Takeover,
            _ => Self::Alone,
        }
    }

    /// The options of each process, in the order in which they start.
    fn processes(self) -> &'static [&'static str] {
        match self {
            Self::Alone => &[""],
            Self::Shards => &["--shard 1/2", "--shard 2/2"],
            Self::Takeover => &["--lease 2s", "--lease 2s --break-lock"],
        }
    }
}

/// As many partitions as the environment asks for, or any, and parts that are cut for readers, or not.
fn partitions(draws: &mut Draws) -> String {
    let asked = load::partitions();
    let partitions = if asked.is_empty() {
        format!("--partitions {}", 1 + draws.below(4))
    } else {
        asked
    };
    match draws.below(2) {
        0 => partitions,
        _ => format!("{partitions} --part-interval 5ms"),
    }
}

/// Waits until the agent has counted some more requests, or some more parts are there; says whether the collector has
/// not ended before.
fn reached(
    running: &mut Running,
    agents: &Agents,
    folder: &Folder,
    larger: usize,
    draws: &mut Draws,
) -> bool {
    let place = folder.path("run");
    let landed = || parts(&place, "rollouts").len() + parts(&place, "attempts").len();
    let requests = agents.num_requests() + 1 + draws.below(20 * larger) as u64;
    let parts = landed() + 1 + draws.below(2);
    let by_parts = draws.unit() < 0.25;
    loop {
        let is_time = if by_parts {
            landed() >= parts
        } else {
            agents.num_requests() >= requests
        };
        if is_time || !running.is_running() {
            return is_time;
        }
        // Only spares the processor: what is waited for is counted.
        sleep(Duration::from_micros(200));
    }
}

/// Waits until a lock of the run is this process's, or the process has ended.
fn taken(taker: &mut Running, run: &Path) {
    let own = format!("\"pid\":{},", taker.pid());
    let is_own = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.replace(' ', "").contains(&own)
    };
    while taker.is_running() && !below(&run.join("lock")).iter().any(is_own) {
        // Only spares the processor.
        sleep(Duration::from_millis(1));
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
