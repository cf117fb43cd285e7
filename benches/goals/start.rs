//! From the start of the collector over the last byte of its input to the first request that an agent sees.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use rollstream::sim::{Latency, Sim, SimConfig};
use tempfile::TempDir;

use super::Settings;
use crate::common::{
    Goal, Growth, Report, Sweep, millions, peak_memory, position, task_row_of, write_rows,
};

/// How often it is looked how far the collector is.
const LOOK: Duration = Duration::from_millis(1);

/// Something is wrong if nothing comes for so long.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub struct Start {
    /// Tasks [default: 1000000; 20000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<usize>,
    /// Bytes of a task
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    task_size: usize,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    concurrency: usize,
}

/// What was seen of a start.
struct Started {
    /// Bytes per second of reading the input.
    reading: f64,
    /// Seconds from the last byte of input to the first request.
    waiting: f64,
    /// Seconds from the start of the program.
    first_request: f64,
    /// The largest that it had been by then, in bytes.
    memory: f64,
}

impl Start {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let tasks = settings.size(self.tasks, 1_000_000, 20_000);
        let runtime = tokio::runtime::Runtime::new()?;
        let sim = runtime.block_on(Sim::start(SimConfig {
            latency: Latency::Fixed(Duration::ZERO),
            ..SimConfig::default()
        }))?;
        let mut growth = Growth::default();
        for tasks in settings.sizes_up_to(tasks) {
            let directory = TempDir::with_prefix("rollstream-bench-")?;
            let input = directory.path().canonicalize()?.join("tasks.jsonl");
            write_rows(
                &input,
                (0..tasks).map(|task| task_row_of("sim", task, self.task_size)),
            )?;
            let starts = (0..settings.options.repeats())
                .map(|_| self.start(&sim, tasks, &input))
                .collect::<anyhow::Result<Vec<Started>>>()?;
            let values = |of: fn(&Started) -> f64| starts.iter().map(of).collect::<Vec<f64>>();
            let case = format!("start, {tasks} tasks of {} bytes", self.task_size);
            report
                .figure(
                    &case,
                    "reading",
                    "MB/s",
                    &values(|started| millions(started.reading)),
                )
                .goal(Goal::AtLeast(300.0));
            report
                .figure(
                    &case,
                    "last byte to first request",
                    "s",
                    &values(|started| started.waiting),
                )
                .goal(Goal::AtMost(1.0));
            let first = values(|started| started.first_request);
            report.figure(&case, "first request", "s", &first);
            let memory = values(|started| millions(started.memory));
            report.figure(&case, "peak memory then", "MB", &memory);
            growth.add("first request", tasks, &first);
            growth.add("peak memory then", tasks, &memory);
        }
        growth.report("start", report);
        Ok(())
    }

    /// Starts a sweep, and ends it when its first request is there.
    fn start(&self, sim: &Sim, tasks: usize, input: &Path) -> anyhow::Result<Started> {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let agent_url = sim.agent_url("sim").context("no agent")?;
        let sweep = Sweep {
            input,
            run: &directory.path().join("run"),
            agents: &[("sim", &agent_url)],
            num_rollouts: tasks,
            num_repeats: 1,
            concurrency: self.concurrency,
            flags: &["--disable-aggregation"],
        };
        let size = fs::metadata(input)?.len();
        let before = requests(sim);
        let child = sweep.start()?;
        let (id, began) = (child.id()?, Instant::now());
        let (mut opened, mut read) = (None, None);
        while requests(sim) == before {
            match position(id, input) {
                // Read again after its end, the last end counts.
                Some(at) if at < size => {
                    opened.get_or_insert_with(|| began.elapsed());
                    read = None;
                }
                Some(_) => {
                    opened.get_or_insert_with(|| began.elapsed());
                    read.get_or_insert_with(|| began.elapsed());
                }
                None if opened.is_some() => {
                    read.get_or_insert_with(|| began.elapsed());
                }
                None => {}
            }
            ensure!(began.elapsed() < PATIENCE, "nothing was sent");
            thread::sleep(LOOK);
        }
        let first_request = began.elapsed();
        let opened = opened.context("the collector was never seen to read its input")?;
        let read = read.unwrap_or(first_request);
        Ok(Started {
            reading: size as f64 / read.saturating_sub(opened).max(LOOK).as_secs_f64(),
            waiting: first_request.saturating_sub(read).as_secs_f64(),
            first_request: first_request.as_secs_f64(),
            memory: peak_memory(id)? as f64,
        })
    }
}

/// Requests to all agents so far.
pub fn requests(sim: &Sim) -> u64 {
    let counts = sim.counters();
    counts.values().map(|counts| counts.requests).sum()
}
