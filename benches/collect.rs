//! The collector with all that belongs to a sweep (ledger, journal, Parquet, metrics) against simulated agents
//! in another process that answer at once, beside a bare HTTP client that makes the same calls, reads the answers
//! and does nothing else. Each is a process of its own; they take turns.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use clap::Parser;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use tempfile::TempDir;
use tokio::task::JoinSet;

use common::{Child, Options, Report, SimServer, Usage, itself, millions, rollstream, write_tasks};

const BASELINE: &str = "bare reqwest";

/// Rollouts per second and CPU per rollout of the collector, beside a bare HTTP client.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Rollouts in each cell [default: 20000; 4000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeats_of_a_task: usize,
    /// Sizes of an answer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["1KB", "20KB"])]
    body_sizes: Vec<String>,
    /// Calls in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64, 256, 1024])]
    concurrency: Vec<usize>,
    /// Also measure the collector without metrics at the end
    #[arg(long)]
    without_metrics: bool,
    /// Be the bare client, of the agent at this address
    #[arg(long, hide = true, requires = "input")]
    bare: Option<String>,
    #[arg(long, hide = true)]
    input: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // Inherited by all the processes: a call in flight is a connection, at both its ends.
    rlimit::increase_nofile_limit(u64::MAX)?;
    match (&cli.bare, &cli.input) {
        (Some(url), Some(input)) => {
            tokio::runtime::Runtime::new()?.block_on(bare(&cli, url, input))
        }
        _ => measure(&cli),
    }
}

/// Name, unit, and how it is worked out.
type Figure<'a> = (&'static str, &'static str, &'a dyn Fn(&Usage) -> f64);

/// A cell of the table.
struct Cell<'a> {
    agent_url: &'a str,
    input: &'a Path,
    directory: &'a Path,
    num_repeats: usize,
    num_rollouts: usize,
    concurrency: usize,
}

fn measure(cli: &Cli) -> anyhow::Result<()> {
    let num_rollouts = cli
        .rollouts
        .unwrap_or(if cli.options.quick { 4_000 } else { 20_000 });
    let num_tasks = (num_rollouts / cli.repeats_of_a_task).max(1);
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let input = directory.path().join("tasks.jsonl");
    write_tasks(&input, num_tasks)?;
    let mut report = Report::new("collect");
    for size in &cli.body_sizes {
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", size])?;
        for &concurrency in &cli.concurrency {
            let cell = Cell {
                agent_url: sim.agent_url(),
                input: &input,
                directory: directory.path(),
                num_repeats: cli.repeats_of_a_task,
                num_rollouts: num_tasks * cli.repeats_of_a_task,
                concurrency,
            };
            cell.measure(
                cli,
                &format!("{size}, {concurrency} in flight"),
                &mut report,
            )?;
        }
    }
    report.finish(&cli.options)
}

impl Cell<'_> {
    fn measure(&self, cli: &Cli, case: &str, report: &mut Report) -> anyhow::Result<()> {
        let (mut collector, mut bare, mut without_metrics) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..cli.options.repeats() {
            collector.push(self.collector(&[])?);
            bare.push(self.bare()?);
            if cli.without_metrics {
                without_metrics.push(self.collector(&["--disable-aggregation"])?);
            }
        }
        self.report(case, &collector, &bare, report);
        if cli.without_metrics {
            self.report(
                &format!("{case}, no metrics"),
                &without_metrics,
                &bare,
                report,
            );
        }
        Ok(())
    }

    fn report(&self, case: &str, collector: &[Usage], bare: &[Usage], report: &mut Report) {
        let count = self.num_rollouts as f64;
        let rate = |usage: &Usage| count / usage.wall.as_secs_f64();
        let cpu = |usage: &Usage| usage.cpu.as_secs_f64() * 1e6 / count;
        let memory = |usage: &Usage| millions(usage.peak_memory as f64);
        let figures: [Figure; 3] = [
            ("rate", "rollouts/s", &rate),
            ("CPU", "µs/rollout", &cpu),
            ("peak memory", "MB", &memory),
        ];
        for (figure, unit, of) in figures {
            let values = |usages: &[Usage]| usages.iter().map(of).collect::<Vec<f64>>();
            report.compare(
                case,
                figure,
                unit,
                &values(collector),
                (BASELINE, &values(bare)),
            );
        }
    }

    /// A whole sweep, from an input file to metrics. That all of it is there is part of the measurement.
    fn collector(&self, flags: &[&str]) -> anyhow::Result<Usage> {
        let mut command = rollstream();
        command
            .arg("collect")
            .arg("--input")
            .arg(self.input)
            .arg("--output")
            .arg(self.directory.join("run"));
        command
            .args(["--overwrite", "--json", "--agent", "sim"])
            .args(flags);
        command.args(["--agent-url", &format!("sim={}", self.agent_url)]);
        command.args(["--num-repeats", &self.num_repeats.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        command.stderr(std::process::Stdio::null());
        let (output, usage) = Child::start(&mut command)?.finish()?;
        let finished = output.lines().last().unwrap_or_default();
        let finished: serde_json::Value =
            serde_json::from_str(finished).context("the collector's last event")?;
        let done = finished
            .pointer("/rollouts/done")
            .and_then(serde_json::Value::as_u64);
        ensure!(
            done == Some(self.num_rollouts as u64),
            "the collector did not collect everything: {finished}"
        );
        Ok(usage)
    }

    fn bare(&self) -> anyhow::Result<Usage> {
        let mut command = itself()?;
        command
            .args(["--bare", self.agent_url])
            .arg("--input")
            .arg(self.input);
        command.args(["--repeats-of-a-task", &self.num_repeats.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        Ok(Child::start(&mut command)?.finish()?.1)
    }
}

/// The same calls with nothing around them.
async fn bare(cli: &Cli, url: &str, input: &Path) -> anyhow::Result<()> {
    let tasks: Vec<String> = std::fs::read_to_string(input)?
        .lines()
        .map(|line| format!("{line:.*}", line.len() - 1))
        .collect();
    let concurrency = cli.concurrency.first().copied().unwrap_or(1);
    let client = Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .pool_max_idle_per_host(concurrency)
        .build()?;
    let work = Arc::new(Work {
        client,
        url: format!("{url}/run"),
        num_rollouts: tasks.len() * cli.repeats_of_a_task,
        tasks,
        num_repeats: cli.repeats_of_a_task,
        next: AtomicUsize::new(0),
    });
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        workers.spawn(Arc::clone(&work).call());
    }
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

struct Work {
    client: Client,
    url: String,
    /// Without the brace that ends them.
    tasks: Vec<String>,
    num_repeats: usize,
    num_rollouts: usize,
    next: AtomicUsize,
}

impl Work {
    async fn call(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.num_rollouts {
                return Ok(());
            }
            let (task, rollout) = (number / self.num_repeats, number % self.num_repeats);
            let row = self.tasks.get(task).context("there are too few tasks")?;
            let body = format!("{row},\"_ng_task_index\":{task},\"_ng_rollout_index\":{rollout}}}");
            let request = self
                .client
                .post(&self.url)
                .header(CONTENT_TYPE, "application/json")
                .body(body);
            let response = request.send().await?.error_for_status()?;
            ensure!(
                !response.bytes().await?.is_empty(),
                "the agent answered nothing"
            );
        }
    }
}
