//! How well places are kept filled: the wall time of a sweep whose calls take very different times, beside the greedy
//! list schedule of the same calls in the same order, which gives a place that falls free to the next call at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use anyhow::{Context, ensure};
use clap::Args;
use rollstream::sim::{RequestRecord, SimConfig, oracle};
use tempfile::TempDir;

use super::Settings;
use super::baselines::Aiohttp;
use crate::common::{Child, Goal, Growth, Report, SimServer, Sweep, rollstream, write_tasks};

const ATTEMPTS: &str = "SELECT task_index, rollout_index, CAST(dispatched_at AS BIGINT) AS dispatched, \
    CAST(finished_at AS BIGINT) AS finished FROM attempts ORDER BY dispatched, task_index, rollout_index";

#[derive(Debug, Args)]
pub struct Scheduling {
    /// Rollouts [default: 20480; 1024 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 4)]
    repeats_of_a_task: usize,
    /// Time to an answer
    #[arg(long, value_name = "DISTRIBUTION", default_value = "lognormal:200ms,1")]
    latency: String,
    /// Calls in flight [default: 1024; 128 with --quick]
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
}

/// A sweep, in seconds.
struct Times {
    wall: f64,
    /// By the time that the agent took for each request, which is what it drew and how late its timer was.
    by_served: f64,
    /// By the latencies that were drawn.
    by_drawn: f64,
}

impl Times {
    /// In percent.
    fn over_served(&self) -> f64 {
        (self.wall / self.by_served - 1.0) * 100.0
    }

    /// In percent.
    fn over_drawn(&self) -> f64 {
        (self.wall / self.by_drawn - 1.0) * 100.0
    }
}

impl Scheduling {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let rollouts = settings.size(self.rollouts, 20_480, 1_024);
        let concurrency = settings.size(self.concurrency, 1_024, 128);
        let aiohttp = Aiohttp::new(&settings.python);
        let mut growth = Growth::default();
        for rollouts in settings.sizes_up_to(rollouts) {
            let num_tasks = rollouts.div_ceil(self.repeats_of_a_task);
            let directory = TempDir::with_prefix("rollstream-bench-")?;
            let input = directory.path().join("tasks.jsonl");
            write_tasks(&input, num_tasks)?;
            let run = directory.path().join("run");
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for repeat in 0..settings
                .options
                .repeats_or(if settings.options.quick { 2 } else { 3 })
            {
                // Other latencies each time: one very long one at the end says little.
                let config = SimConfig {
                    seed: repeat as u64,
                    latency: self.latency.parse().map_err(anyhow::Error::msg)?,
                    ..SimConfig::default()
                };
                let seed = config.seed.to_string();
                let flags = [
                    "--latency",
                    &self.latency,
                    "--seed",
                    &seed,
                    "--body-size",
                    "1KB",
                ];
                let sim = SimServer::start(&flags)?;
                let sweep = Sweep {
                    input: &input,
                    run: &run,
                    agents: &[("sim", sim.agent_url())],
                    num_rollouts: num_tasks * self.repeats_of_a_task,
                    num_repeats: self.repeats_of_a_task,
                    concurrency,
                    flags: &["--disable-aggregation"],
                };
                sweep.run()?;
                let attempts = Attempt::all(&run)?;
                ensure!(
                    attempts.len() == sweep.num_rollouts,
                    "{} attempts",
                    attempts.len()
                );
                ours.push(times(&attempts, &sim.requests()?, &config, concurrency)?);
                if let Some(aiohttp) = &aiohttp {
                    let sim = SimServer::start(&flags)?;
                    let (url, count) = (sim.agent_url(), sweep.num_rollouts);
                    let (looped, _) =
                        aiohttp.collect(&input, url, sweep.num_repeats, count, concurrency)?;
                    theirs.push(times_of_loop(
                        looped.seconds,
                        &sim.requests()?,
                        &config,
                        concurrency,
                    ));
                }
            }
            let case = format!("scheduling, {rollouts} rollouts, {concurrency} in flight");
            let values = |of: fn(&Times) -> f64| ours.iter().map(of).collect::<Vec<f64>>();
            let wall = values(|times| times.wall);
            let schedule = values(|times| times.by_drawn);
            report.compare(&case, "time", "s", &wall, ("greedy schedule", &schedule));
            let drawn = (
                "over the schedule of what was drawn",
                "%",
                &Times::over_drawn as &dyn Fn(&Times) -> f64,
            );
            let served = (
                "over the schedule of what was served",
                "%",
                &Times::over_served as &dyn Fn(&Times) -> f64,
            );
            for figure in [drawn, served] {
                report
                    .measured(&case, figure, &ours, ("aiohttp loop", &theirs))
                    .goal(Goal::AtMost(1.0));
            }
            growth.add("time", rollouts, &wall);
        }
        growth.report("scheduling", report);
        Ok(())
    }
}

/// An attempt as the run has it.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    task: u64,
    rollout: u64,
    /// Microseconds since 1970.
    dispatched: u64,
    /// Microseconds since 1970.
    finished: u64,
}

impl Attempt {
    /// Those of a run in the order in which they were sent.
    fn all(run: &Path) -> anyhow::Result<Vec<Self>> {
        let mut command = rollstream();
        command.arg("sql").arg(run);
        command.args(["--command", ATTEMPTS, "--format", "csv"]);
        let (output, _) = Child::start(&mut command)?.finish()?;
        let attempt = |line: &str| {
            let fields: Result<Vec<u64>, _> = line.split(',').map(str::parse).collect();
            let &[task, rollout, dispatched, finished] = fields?.as_slice() else {
                anyhow::bail!("'{line}' is no attempt");
            };
            Ok(Self {
                task,
                rollout,
                dispatched,
                finished,
            })
        };
        output.lines().skip(1).map(attempt).collect()
    }
}

fn times(
    attempts: &[Attempt],
    records: &[RequestRecord],
    config: &SimConfig,
    concurrency: usize,
) -> anyhow::Result<Times> {
    let served: HashMap<(u64, u64), u64> = records
        .iter()
        .map(|record| ((record.task_index, record.rollout_index), served(record)))
        .collect();
    let first = attempts.iter().map(|attempt| attempt.dispatched).min();
    let last = attempts.iter().map(|attempt| attempt.finished).max();
    let (first, last) = first.zip(last).context("no attempts")?;
    let by_served: Vec<u64> = attempts
        .iter()
        .map(|attempt| served.get(&(attempt.task, attempt.rollout)).copied())
        .collect::<Option<_>>()
        .context("the agent has no record of a request")?;
    let by_drawn = attempts
        .iter()
        .map(|attempt| drawn(config, attempt.task, attempt.rollout));
    Ok(Times {
        wall: (last - first) as f64 / 1e6,
        by_served: schedule(by_served, concurrency),
        by_drawn: schedule(by_drawn, concurrency),
    })
}

/// Of a loop that keeps no record, in the order in which its requests came.
fn times_of_loop(
    wall: f64,
    records: &[RequestRecord],
    config: &SimConfig,
    concurrency: usize,
) -> Times {
    let drawn = records
        .iter()
        .map(|record| drawn(config, record.task_index, record.rollout_index));
    Times {
        wall,
        by_served: schedule(records.iter().map(served), concurrency),
        by_drawn: schedule(drawn, concurrency),
    }
}

/// Microseconds from a request to its answer.
fn served(record: &RequestRecord) -> u64 {
    let ended = record.ended_at_us.unwrap_or(record.arrived_at_us);
    ended.saturating_sub(record.arrived_at_us)
}

/// Microseconds.
fn drawn(config: &SimConfig, task: u64, rollout: u64) -> u64 {
    let latency = oracle(config, task, rollout, 0).latency;
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}

/// Seconds that calls of so many microseconds take, each in the place that falls free first.
fn schedule(calls: impl IntoIterator<Item = u64>, places: usize) -> f64 {
    let mut free: BinaryHeap<Reverse<u64>> = vec![Reverse(0); places].into();
    let mut last = 0;
    for call in calls {
        if let Some(mut place) = free.peek_mut() {
            place.0 += call;
            last = last.max(place.0);
        }
    }
    last as f64 / 1e6
}
