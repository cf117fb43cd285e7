//! Sweeps on executors of this machine beside one process: the CPU of a rollout, the time until the first request, and
//! rollouts per second of more and more executors where an answer takes a second.
//!
//! ```sh
//! cargo bench --features cluster --bench goals -- cluster
//! ```

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{Goal, Report, SimServer, Sweep, Usage, millions, write_tasks};

/// Rollouts that each call in flight makes one after the other, where an answer takes a second.
const ROUNDS: usize = 10;

const REPEATS_OF_A_TASK: usize = 4;

/// Time, CPU and memory on a cluster of this machine, beside one process.
#[derive(Debug, Args)]
pub struct Cluster {
    /// Rollouts where an answer takes no time [default: 200000; 8000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Executors, where an answer takes a second
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    executors: Vec<usize>,
    /// Calls in flight of each of these executors
    #[arg(long, value_name = "N", default_value_t = 1024)]
    calls: usize,
}

/// What a sweep took.
struct Done {
    usage: Usage,
    /// From the start of the program.
    first_request: Duration,
}

impl Cluster {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        if !cfg!(feature = "cluster") {
            report.note("cluster: needs --features cluster");
            return Ok(());
        }
        self.beside_one_process(settings, report)?;
        report.save(&settings.options)?;
        for &executors in &self.executors {
            self.waiting(executors, settings, report)?;
            report.save(&settings.options)?;
        }
        Ok(())
    }

    fn beside_one_process(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let rollouts = settings.size(self.rollouts, 200_000, 8_000);
        // One executor shows what the cluster costs. More than there are cores wait for each other, too.
        let places = ["local:1", "local:4"];
        let (mut clusters, mut alone) = (places.map(|_| Vec::new()), Vec::new());
        for _ in 0..settings.options.repeats() {
            alone.push(sweep(rollouts, 256, "0s", &[])?);
            for (place, cluster) in places.iter().zip(&mut clusters) {
                cluster.push(sweep(rollouts, 256, "0s", &["--cluster", place])?);
            }
        }
        let baseline = ("one process", &*alone);
        for (place, cluster) in places.iter().zip(&clusters) {
            let case = format!("cluster, {rollouts} rollouts, {place}");
            let cpu = |done: &Done| done.usage.cpu.as_secs_f64() * 1e6 / rollouts as f64;
            report
                .measured(&case, ("CPU", "µs/rollout", &cpu), cluster, baseline)
                .goal(Goal::RatioAtMost(1.15));
            let time = |done: &Done| done.usage.wall.as_secs_f64();
            report.measured(&case, ("time", "s", &time), cluster, baseline);
            let first = |done: &Done| done.first_request.as_secs_f64();
            report.measured(&case, ("first request", "s", &first), cluster, baseline);
            let memory = |done: &Done| millions(done.usage.peak_memory as f64);
            report.measured(
                &case,
                ("memory of the largest process", "MB", &memory),
                cluster,
                baseline,
            );
        }
        Ok(())
    }

    fn waiting(
        &self,
        executors: usize,
        settings: &Settings,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let calls = executors * self.calls;
        let rollouts = calls * ROUNDS;
        let place = format!("local:{executors}");
        let flags = ["--cluster", &place, "--disable-aggregation"];
        let done = (0..settings.options.repeats_or(3))
            .map(|_| sweep(rollouts, calls, "1s", &flags))
            .collect::<anyhow::Result<Vec<Done>>>()?;
        let values = |of: &dyn Fn(&Done) -> f64| done.iter().map(of).collect::<Vec<f64>>();
        let case = format!(
            "cluster, {executors} executors with {} calls of 1 s",
            self.calls
        );
        let rate = |done: &Done| {
            let sending = done.usage.wall.saturating_sub(done.first_request);
            rollouts as f64 / sending.as_secs_f64()
        };
        report.figure(
            &case,
            "from the first request",
            "rollouts/s",
            &values(&rate),
        );
        let first = |done: &Done| done.first_request.as_secs_f64();
        report.figure(&case, "first request", "s", &values(&first));
        Ok(())
    }
}

fn sweep(
    rollouts: usize,
    concurrency: usize,
    latency: &str,
    flags: &[&str],
) -> anyhow::Result<Done> {
    let latency = format!("fixed:{latency}");
    let sim = SimServer::start(&["--latency", &latency, "--body-size", "1KB"])?;
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let input = directory.path().join("tasks.jsonl");
    write_tasks(&input, rollouts / REPEATS_OF_A_TASK)?;
    let sweep = Sweep {
        input: &input,
        run: &directory.path().join("run"),
        agents: &[("sim", sim.agent_url())],
        num_rollouts: rollouts,
        num_repeats: REPEATS_OF_A_TASK,
        concurrency,
        flags,
    };
    let began = Instant::now();
    let mut child = sweep.start()?;
    while child.ended()?.is_none() && sim.asked()? == 0 {
        sleep(Duration::from_millis(5));
    }
    let first_request = began.elapsed();
    Ok(Done {
        usage: sweep.finish(child)?,
        first_request,
    })
}
