//! A collector for as long as it takes, between an agent that fails in every way and a kill every minute: whether what it
//! takes stays the same, and whether its accounts are exact.
//!
//! Each sweep has an agent of its own, in a process of its own, which remembers every request of it: a sweep is no larger
//! than what an agent remembers. What all of them left behind is compared with what was asked and what was planned.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod common;

#[allow(dead_code, reason = "the tests ask for more of it")]
#[path = "../tests/faults/ledger.rs"]
mod ledger;

mod soak {
    pub mod accounting;
    pub mod lives;
    pub mod process;

    use super::{common, ledger};
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use reqwest::Client;
use rollstream::sim::{FaultRates, MAX_REQUESTS, Profile, SimConfig};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use common::{Child, Options, SimServer, rollstream, write_tasks};
use soak::accounting::{Account, Plan, Request, counts};
use soak::lives::tell;
use soak::process::{Life, Sample};

/// Shares of all requests. The few that are told a whole second stop all others meanwhile.
const FAULTS: [(&str, f64); 15] = [
    ("error_500", 0.02),
    ("error_503", 0.000_01),
    ("rate_limited_429", 0.000_01),
    ("rate_limited_reset", 0.001),
    ("reset", 0.02),
    ("fin", 0.01),
    ("truncated_body", 0.01),
    ("slow_first_byte", 0.001),
    ("hang", 0.000_1),
    ("not_json", 0.005),
    ("missing_reward", 0.005),
    ("invalid_utf8", 0.005),
    ("bad_request_400", 0.005),
    ("failure_class", 0.02),
    ("failure_terminal", 0.001),
];

/// What the faults add to the requests of a sweep, kills among them, at most.
const REQUESTS_PER_ROLLOUT: f64 = 1.25;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Memory, descriptors and accounts of collectors that are killed again and again.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// How long collectors run, all together [default: 30m; 1m with --quick]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// Age at which a collector is killed [default: 60s; 20s with --quick]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    kill_every: Option<Duration>,
    /// Rollouts of a sweep [default: 1500000; 50000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<u64>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 100)]
    repeats_of_a_task: u64,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    concurrency: usize,
    /// Size of an answer
    #[arg(long, value_name = "SIZE", default_value = "2KB")]
    body_size: String,
    /// Time to an answer, as `rollstream sim` takes it
    #[arg(
        long,
        value_name = "DISTRIBUTION",
        default_value = "lognormal:20ms,0.6"
    )]
    latency: String,
    /// Longest time for a rollout: how long calls hang
    #[arg(long, value_name = "TIME", default_value = "10s")]
    rollout_timeout: String,
    /// Compute metrics at the end of a sweep too, which takes memory by the size of the sweep
    #[arg(long)]
    with_metrics: bool,
    /// Keep the runs in this directory, which must not exist
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
}

impl Cli {
    fn quick<T>(&self, asked: Option<T>, usual: T, quick: T) -> T {
        asked.unwrap_or(if self.options.quick { quick } else { usual })
    }

    fn kill_every(&self) -> Duration {
        let (usual, quick) = (Duration::from_secs(60), Duration::from_secs(20));
        self.quick(self.kill_every, usual, quick)
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // Inherited by all the processes: a call in flight is a connection, at both its ends.
    rollstream::http::raise_open_files();
    let duration = cli.quick(
        cli.duration,
        Duration::from_secs(1800),
        Duration::from_secs(60),
    );
    let rollouts = cli.quick(cli.rollouts, 1_500_000, 50_000);
    ensure!(
        rollouts as f64 * REQUESTS_PER_ROLLOUT <= MAX_REQUESTS as f64,
        "an agent remembers {MAX_REQUESTS} requests, too few for a sweep of {rollouts} rollouts: lower --rollouts"
    );
    let mut temporary = TempDir::with_prefix("rollstream-bench-")?;
    let directory = match &cli.keep {
        Some(keep) => {
            fs::create_dir(keep).with_context(|| format!("cannot make {}", keep.display()))?;
            keep.canonicalize()?
        }
        None => temporary.path().to_owned(),
    };
    let num_tasks = (rollouts / cli.repeats_of_a_task).max(1);
    write_tasks(&directory.join("tasks.jsonl"), usize::try_from(num_tasks)?)?;
    let runtime = Runtime::new()?;
    let mut left = duration;
    let (mut lives, mut accounts) = (Vec::new(), Vec::new());
    let mut is_exact = Ok(());
    for number in 0.. {
        if left.is_zero() || is_exact.is_err() {
            break;
        }
        let sweep = Sweep::start(&cli, number, num_tasks, &directory, &runtime)?;
        match sweep.run(&mut left, &mut lives) {
            Ok(account) => accounts.push(account),
            Err(error) => is_exact = Err(error),
        }
        if cli.keep.is_none() && is_exact.is_ok() {
            fs::remove_dir_all(&sweep.run)?;
        }
    }
    tell(&cli.options, &lives, &accounts)?;
    is_exact.inspect_err(|_| {
        // To be looked at.
        temporary.disable_cleanup(true);
        println!("not exact; the runs are in {}", directory.display());
    })
}

/// A sweep, and its agent.
struct Sweep<'a> {
    cli: &'a Cli,
    number: u64,
    plan: Plan,
    directory: &'a Path,
    run: PathBuf,
    sim: SimServer,
    runtime: &'a Runtime,
    client: Client,
}

impl<'a> Sweep<'a> {
    fn start(
        cli: &'a Cli,
        number: u64,
        num_tasks: u64,
        directory: &'a Path,
        runtime: &'a Runtime,
    ) -> anyhow::Result<Self> {
        let faults = FAULTS.map(|(kind, rate)| format!("{kind}={rate}"));
        let seed = number.to_string();
        let mut flags = vec![
            "--seed",
            &seed,
            "--latency",
            &cli.latency,
            "--body-size",
            &cli.body_size,
            "--retry-after",
            "10ms",
        ];
        flags.extend(faults.iter().flat_map(|fault| ["--fault", fault]));
        let rates =
            FAULTS.map(|(kind, rate)| Ok((kind.parse().map_err(anyhow::Error::msg)?, rate)));
        let config = SimConfig {
            seed: number,
            faults: FaultRates(rates.into_iter().collect::<anyhow::Result<_>>()?),
            ..SimConfig::default()
        };
        Ok(Self {
            cli,
            number,
            plan: Plan {
                num_tasks,
                num_repeats: cli.repeats_of_a_task,
                profile: Profile::new(&config, "sim"),
            },
            directory,
            run: directory.join(format!("run-{number}")),
            sim: SimServer::start(&flags)?,
            runtime,
            client: Client::builder().no_proxy().build()?,
        })
    }

    /// Runs and goes on until nothing is pending, or no time is left; then compares what is there.
    fn run(&self, left: &mut Duration, lives: &mut Vec<Life>) -> anyhow::Result<Account> {
        loop {
            let life = self.live(*left)?;
            *left = left.saturating_sub(life.took);
            println!(
                "sweep {}: {} after {:.0} s, {} answers; {:.0} s left",
                self.number,
                life.end,
                life.took.as_secs_f64(),
                life.answered,
                left.as_secs_f64()
            );
            let is_over = match life.end {
                ENDED => counts(&self.run)?["pending"] == 0,
                STOPPED => true,
                _ => false,
            };
            lives.push(life);
            if is_over {
                break;
            }
        }
        let began = Instant::now();
        let account = self.plan.account(&self.run, self.requests()?);
        let account = account.with_context(|| format!("sweep {}", self.number))?;
        println!(
            "sweep {}: {account:?}, exact; looked at for {:.0} s",
            self.number,
            began.elapsed().as_secs_f64()
        );
        Ok(account)
    }

    fn collector(&self) -> anyhow::Result<Child> {
        let mut command = rollstream();
        command
            .args(["collect", "--quiet", "--resume"])
            .arg("--input")
            .arg(self.directory.join("tasks.jsonl"))
            .arg("--output")
            .arg(&self.run)
            .args(["--num-repeats", &self.plan.num_repeats.to_string()])
            .args(["--agent-url", &format!("sim={}", self.sim.agent_url())])
            .args(["--concurrency", &self.cli.concurrency.to_string()])
            .args(["--rollout-timeout", &self.cli.rollout_timeout])
            .args(["--retry-backoff", "10ms", "--grace", "30s"]);
        if !self.cli.with_metrics {
            command.arg("--disable-aggregation");
        }
        Child::start(&mut command)
    }

    /// A process of the collector: to its end, to its kill, or until no time is left.
    fn live(&self, left: Duration) -> anyhow::Result<Life> {
        let answered_before = self.answered()?;
        let mut collector = self.collector()?;
        let (pid, began) = (collector.id()?, Instant::now());
        let mut samples = Vec::new();
        let mut next = Duration::ZERO;
        let mut stopped_at = None;
        let end = loop {
            if let Some(status) = collector.ended()? {
                ensure!(has_done(status), "the collector failed: {status}");
                break if status.code() == Some(130) {
                    STOPPED
                } else {
                    ENDED
                };
            }
            sleep(Duration::from_millis(20));
            let age = began.elapsed();
            if age < next || stopped_at.is_some() {
                continue;
            }
            if age < left && age >= self.cli.kill_every() {
                break KILLED;
            }
            // Once it goes on, what was in flight at the last kill is on record.
            if age >= left && self.answered()? > answered_before {
                interrupt(pid)?;
                stopped_at = Some(age);
            } else {
                samples.extend(Sample::take(pid, age, &self.run));
                next = age + SAMPLE_EVERY;
            }
        };
        // Kills it, if it has not ended.
        drop(collector);
        Ok(Life {
            sweep: self.number,
            samples,
            answered: self.answered()? - answered_before,
            took: stopped_at.unwrap_or_else(|| began.elapsed()),
            end,
        })
    }

    /// Rollouts that the agent gave.
    fn answered(&self) -> anyhow::Result<u64> {
        let url = format!("{}/stats", self.sim.url("head server"));
        let stats = self.runtime.block_on(async {
            let response = self.client.get(url).send().await?.error_for_status()?;
            response.bytes().await
        })?;
        let stats: Value = serde_json::from_slice(&stats)?;
        let answered = stats["agents"]["sim"]["ok"].as_u64();
        answered.with_context(|| format!("the agent counts no answers: {stats}"))
    }

    /// Every request that the agent remembers.
    fn requests(&self) -> anyhow::Result<Vec<Request>> {
        let url = format!("{}/sim/sim/requests", self.sim.url("head server"));
        self.runtime.block_on(async {
            let mut response = self.client.get(url).send().await?.error_for_status()?;
            let (mut requests, mut rest) = (Vec::new(), Vec::new());
            while let Some(chunk) = response.chunk().await? {
                rest.extend_from_slice(&chunk);
                let whole = rest.iter().rposition(|byte| *byte == b'\n');
                let Some(whole) = whole else { continue };
                for line in rest[..whole].split(|byte| *byte == b'\n') {
                    requests.push(serde_json::from_slice(line)?);
                }
                rest.drain(..=whole);
            }
            ensure!(rest.is_empty(), "the agent tells of half a request");
            Ok(requests)
        })
    }
}

const ENDED: &str = "ended";
const STOPPED: &str = "stopped";
const KILLED: &str = "killed";

/// It ended by itself, or when it was told to.
fn has_done(status: ExitStatus) -> bool {
    matches!(status.code(), Some(0 | 3 | 130))
}

fn interrupt(pid: u32) -> anyhow::Result<()> {
    let kill = Command::new("sh")
        .args(["-c", &format!("kill -INT {pid}")])
        .status()?;
    if !kill.success() {
        bail!("process {pid} cannot be interrupted: {kill}");
    }
    Ok(())
}
