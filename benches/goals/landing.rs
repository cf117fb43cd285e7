//! How much of the collector's CPU landing takes, by the names of its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{self, available_parallelism};
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{Goal, Report, SimServer, Sweep, Thread, Usage, threads, write_tasks};

/// What the names of threads that land begin with.
const LANDING: &str = "land";

/// What the names of tokio's threads begin with: first those that run tasks, then those that may block.
const TOKIO: &str = "tokio";

const BLOCKING: &str = "blocking threads";

/// How often threads are looked at: one that has ended tells nothing more.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub struct Landing {
    /// Rollouts [default: 50000; 4000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Size of an answer
    #[arg(long, value_name = "SIZE", default_value = "20KB")]
    body_size: String,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    concurrency: usize,
}

impl Landing {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let rollouts = settings.size(self.rollouts, 50_000, 4_000);
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", &self.body_size])?;
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let input = directory.path().join("tasks.jsonl");
        write_tasks(&input, rollouts)?;
        let run = directory.path().join("run");
        let sweep = Sweep {
            input: &input,
            run: &run,
            agents: &[("sim", sim.agent_url())],
            num_rollouts: rollouts,
            num_repeats: 1,
            concurrency: self.concurrency,
            // Metrics are no part of it.
            flags: &["--disable-aggregation"],
        };
        let (mut shares, mut cpu) = (Vec::new(), Vec::new());
        for _ in 0..settings.options.repeats() {
            let (usage, threads) = watch(&sweep)?;
            shares.push(shares_of(&usage, &threads));
            cpu.push(usage.cpu.as_secs_f64() * 1e6 / rollouts as f64);
        }
        let case = format!(
            "landing, {rollouts} of {}, {} in flight",
            self.body_size, self.concurrency
        );
        report.figure(&case, "CPU", "µs/rollout", &cpu);
        let is_named = shares
            .iter()
            .any(|shares| shares.keys().any(|name| name.starts_with(LANDING)));
        if !is_named {
            report.note(
                "landing: the collector has no threads of that name; what lands is among the blocking threads, with the \
                 journal and the reading of input, and partly among those that run tasks",
            );
        }
        let names: BTreeSet<&String> = shares.iter().flat_map(BTreeMap::keys).collect();
        for name in names {
            let values = shares
                .iter()
                .map(|shares| shares.get(name).copied().unwrap_or_default());
            let figure = format!("share of {name}");
            let figure = report.figure(&case, &figure, "%", &values.collect::<Vec<f64>>());
            if name.starts_with(LANDING) || (!is_named && name == BLOCKING) {
                figure.goal(Goal::AtMost(25.0));
            }
        }
        Ok(())
    }
}

/// Does a sweep, and gives what its threads took.
fn watch(sweep: &Sweep) -> anyhow::Result<(Usage, BTreeMap<u32, Thread>)> {
    let child = sweep.start()?;
    let id = child.id()?;
    thread::scope(|scope| {
        let ending = scope.spawn(|| sweep.finish(child));
        let mut seen = BTreeMap::new();
        while !ending.is_finished() {
            seen.extend(threads(id));
            thread::sleep(LOOK);
        }
        let usage = ending.join().map_err(|_| anyhow!("waiting failed"))??;
        Ok((usage, seen))
    })
}

/// Percent of the CPU time by kind of thread.
fn shares_of(usage: &Usage, threads: &BTreeMap<u32, Thread>) -> BTreeMap<String, f64> {
    let num_workers = available_parallelism().map_or(1, usize::from);
    let (mut shares, mut num_tokio) = (BTreeMap::new(), 0);
    for (place, thread) in threads.values().enumerate() {
        let kind = match thread.name.as_str() {
            _ if place == 0 => "main thread",
            name if name.starts_with(TOKIO) => {
                num_tokio += 1;
                if num_tokio <= num_workers {
                    "threads that run tasks"
                } else {
                    BLOCKING
                }
            }
            name => name.trim_end_matches(|end: char| end.is_ascii_digit() || end == '-'),
        };
        let percent = thread.cpu.as_secs_f64() / usage.cpu.as_secs_f64() * 100.0;
        *shares.entry(kind.to_owned()).or_default() += percent;
    }
    shares
}
