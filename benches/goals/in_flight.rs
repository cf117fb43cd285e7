//! Very many rollouts at once: agents on several loopback addresses, since there are only so many local ports to one,
//! that take so long to answer that all requests have come before the first answer.

use std::thread;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{
    Goal, Growth, Report, SimServer, Sweep, Usage, millions, task_row_of, thousands, write_rows,
};

/// Connections to one address.
const OF_ADDRESS: u64 = 16_384;

/// Files that a process has open beside its connections.
const OTHER_FILES: u64 = 512;

/// Calls in flight of the sweep that shows what the collector needs without many.
const FEW: usize = 64;

/// How often the agents are asked how many requests they have.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub struct InFlight {
    /// Rollouts in flight [default: 65536; 2048 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Time to an answer [default: fixed:10s; fixed:2s with --quick]
    #[arg(long, value_name = "DISTRIBUTION")]
    latency: Option<String>,
    /// Size of an answer
    #[arg(long, value_name = "SIZE", default_value = "1KB")]
    body_size: String,
}

/// What became of a sweep.
struct Held {
    usage: Usage,
    /// The most that the agents had at one time.
    most: u64,
}

impl InFlight {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let wanted = settings.size(self.rollouts, 65_536, 2_048);
        let files = rollstream::http::raise_open_files();
        let most = files.saturating_sub(OTHER_FILES);
        let rollouts = wanted.min(usize::try_from(most)?);
        ensure!(rollouts > FEW, "a process may only have {files} files open");
        if rollouts < wanted {
            report.note(format!(
                "in-flight: a process may only have {files} files open (ulimit -Hn): {rollouts} rollouts are in flight \
                 in place of {wanted}"
            ));
        }
        let default = if settings.options.quick {
            "fixed:2s"
        } else {
            "fixed:10s"
        };
        let latency = self.latency.as_deref().unwrap_or(default);
        let repeats = settings
            .options
            .repeats_or(if settings.options.quick { 1 } else { 3 });
        let mut growth = Growth::default();
        for rollouts in settings.sizes_up_to(rollouts) {
            let (mut held, mut few) = (Vec::new(), Vec::new());
            for _ in 0..repeats {
                held.push(self.sweep(rollouts, rollouts, latency)?);
                few.push(self.sweep(rollouts, rollouts.min(FEW), "fixed:0s")?);
            }
            let case = format!("in-flight, {rollouts} at once");
            let values = |of: &dyn Fn(&Held) -> f64| held.iter().map(of).collect::<Vec<f64>>();
            let wanted = Goal::AtLeast(wanted as f64);
            let in_flight = report.figure(
                &case,
                "most in flight",
                "rollouts",
                &values(&|held| held.most as f64),
            );
            if !settings.growth {
                in_flight.goal(wanted);
            }
            let megabytes = |held: &Held| millions(held.usage.peak_memory as f64);
            let baseline = ("64 in flight", &*few);
            report.measured(&case, ("peak memory", "MB", &megabytes), &held, baseline);
            let each: Vec<f64> = held
                .iter()
                .zip(&few)
                .map(|(held, few)| {
                    let more = held.usage.peak_memory as f64 - few.usage.peak_memory as f64;
                    thousands(more / held.most.max(1) as f64)
                })
                .collect();
            report
                .figure(&case, "memory of each", "KB", &each)
                .goal(Goal::AtMost(40.0));
            let cpu = |held: &Held| held.usage.cpu.as_secs_f64() * 1e6 / rollouts as f64;
            report.figure(&case, "CPU", "µs/rollout", &values(&cpu));
            let wall = |held: &Held| held.usage.wall.as_secs_f64();
            report.figure(&case, "time", "s", &values(&wall));
            growth.add("peak memory", rollouts, &values(&megabytes));
            growth.add(
                "CPU",
                rollouts,
                &values(&|held| held.usage.cpu.as_secs_f64()),
            );
        }
        growth.report("in-flight", report);
        Ok(())
    }

    fn sweep(&self, rollouts: usize, concurrency: usize, latency: &str) -> anyhow::Result<Held> {
        let files = rollstream::http::raise_open_files();
        let of_address = usize::try_from(files.saturating_sub(OTHER_FILES).min(OF_ADDRESS))?;
        let num_agents = concurrency.div_ceil(of_address);
        let start = |number: usize| {
            let host = format!("127.0.0.{}", number + 1);
            let flags = [
                "--host",
                &host,
                "--latency",
                latency,
                "--body-size",
                &self.body_size,
            ];
            SimServer::start(&flags)
        };
        let sims = (0..num_agents)
            .map(start)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let names: Vec<String> = (0..num_agents)
            .map(|number| format!("sim{number}"))
            .collect();
        let agents: Vec<(&str, &str)> = names
            .iter()
            .zip(&sims)
            .map(|(name, sim)| (name.as_str(), sim.agent_url()))
            .collect();
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let input = directory.path().join("tasks.jsonl");
        let rows = (0..rollouts).zip(names.iter().cycle());
        write_rows(
            &input,
            rows.map(|(task, agent)| task_row_of(agent, task, 0)),
        )?;
        let run = directory.path().join("run");
        let sweep = Sweep {
            input: &input,
            run: &run,
            agents: &agents,
            num_rollouts: rollouts,
            num_repeats: 1,
            concurrency,
            flags: &[],
        };
        let child = sweep.start()?;
        thread::scope(|scope| {
            let ending = scope.spawn(|| sweep.finish(child));
            let mut most = 0;
            while !ending.is_finished() {
                // An agent that is too busy to tell has no fewer at the next look.
                let in_flight = sims.iter().filter_map(|sim| sim.in_flight().ok());
                most = most.max(in_flight.sum());
                thread::sleep(LOOK);
            }
            let usage = ending.join().map_err(|_| anyhow!("waiting failed"))??;
            Ok(Held { usage, most })
        })
    }
}
