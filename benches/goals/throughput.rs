//! The collector with all that belongs to a sweep (ledger, journal, Parquet, metrics) against simulated agents
//! in another process that answer at once, beside `wrk`, which shows what the agents and the loopback can do, and
//! clients that make the same calls, read the answers and do nothing else. Each is a process of its own; they take
//! turns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use rollstream::sim::parse_size;
use tempfile::TempDir;

use super::Settings;
use super::baselines::{Aiohttp, Calls, Client, Wrk};
use crate::common::{
    Child, Goal, Growth, Report, SimServer, Sweep, Usage, itself, millions, write_tasks,
};

/// Up to this size an answer is small: it is asked for more often, and the goals are higher.
const SMALL: usize = 2_000;

/// A loop in Python makes this share of the calls: it takes longer for each.
const OF_PYTHON: usize = 10;

#[derive(Debug, Args)]
pub struct Throughput {
    /// Rollouts in each cell [default: 200000; 8000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [4, 100])]
    repeats_of_a_task: Vec<usize>,
    /// Sizes of an answer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values = ["1KB", "20KB"])]
    body_sizes: Vec<String>,
    /// Calls in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [256])]
    concurrency: Vec<usize>,
    /// Partitions of more collectors, which are set beside the one with as many as it chooses
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    partitions: Vec<usize>,
    /// Be this client, of the agent at --url
    #[arg(long, hide = true, requires_all = ["url", "input", "rollouts"])]
    client: Option<Client>,
    #[arg(long, hide = true)]
    url: Option<String>,
    #[arg(long, hide = true)]
    input: Option<PathBuf>,
}

/// What one of them did, and what it took.
#[derive(Debug, Clone, Copy)]
struct Done {
    calls: f64,
    seconds: f64,
    /// Seconds.
    cpu: f64,
    /// Bytes.
    peak_memory: f64,
    /// Seconds of the simulated agents' process meanwhile.
    sim_cpu: f64,
}

impl Done {
    fn rate(&self) -> f64 {
        self.calls / self.seconds
    }

    /// Microseconds.
    fn cpu_of_call(&self) -> f64 {
        self.cpu * 1e6 / self.calls
    }

    /// Microseconds.
    fn sim_cpu_of_call(&self) -> f64 {
        self.sim_cpu * 1e6 / self.calls
    }

    fn megabytes(&self) -> f64 {
        millions(self.peak_memory)
    }
}

/// A cell of the table.
struct Cell<'a> {
    sim: &'a SimServer,
    directory: &'a Path,
    input: &'a Path,
    num_repeats: usize,
    num_rollouts: usize,
    concurrency: usize,
    partitions: &'a [usize],
    wrk: Option<&'a Wrk>,
    aiohttp: Option<&'a Aiohttp<'a>>,
}

/// All that was measured of a cell, in turns.
#[derive(Debug, Default)]
struct Cells {
    collector: Vec<Done>,
    /// In these numbers of partitions.
    partitioned: BTreeMap<usize, Vec<Done>>,
    /// With all metrics but those that the agents' servers compute.
    own_metrics: Vec<Done>,
    without_metrics: Vec<Done>,
    wrk: Vec<Done>,
    hyper: Vec<Done>,
    reqwest: Vec<Done>,
    aiohttp: Vec<Done>,
}

impl Throughput {
    /// The calls of a bare client.
    pub fn work(&self) -> Option<anyhow::Result<()>> {
        let (client, url, input) = (self.client?, self.url.as_ref()?, self.input.as_ref()?);
        let num_repeats = self.repeats_of_a_task.first().copied().unwrap_or(1);
        let calls = Calls::new(input, num_repeats, self.rollouts?);
        let concurrency = self.concurrency.first().copied().unwrap_or(1);
        Some(calls.and_then(|calls| client.make(calls, url, concurrency)))
    }

    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let rollouts = settings.size(self.rollouts, 200_000, 8_000);
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let input = directory.path().join("tasks.jsonl");
        write_tasks(&input, 1)?;
        let seconds = if settings.options.quick { 1 } else { 5 };
        let body = Calls::new(&input, 1, 1)?.next();
        let wrk = Wrk::new(directory.path(), &body.unwrap_or_default(), seconds)?;
        if wrk.is_none() {
            report.note(
                "throughput: there is no wrk on the PATH, so that nothing is compared with it",
            );
        }
        let aiohttp = Aiohttp::new(&settings.python);
        if aiohttp.is_none() {
            let python = settings.python.display();
            report.note(format!(
                "throughput: {python} has no aiohttp, so that nothing is compared with it"
            ));
        }
        for size in &self.body_sizes {
            let is_small = parse_size(size).map_err(anyhow::Error::msg)? <= SMALL;
            let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", size])?;
            let cells = self.repeats_of_a_task.iter().flat_map(|num_repeats| {
                let cell = |concurrency: &usize| ((*num_repeats).max(1), *concurrency);
                self.concurrency.iter().map(cell)
            });
            for (num_repeats, concurrency) in cells {
                let of = format!("{size}, x {num_repeats}, {concurrency} in flight");
                let mut growth = Growth::default();
                for rollouts in settings.sizes_up_to(rollouts) {
                    let num_tasks = rollouts.div_ceil(num_repeats);
                    write_tasks(&input, num_tasks)?;
                    let cell = Cell {
                        sim: &sim,
                        directory: directory.path(),
                        input: &input,
                        num_repeats,
                        num_rollouts: num_tasks * num_repeats,
                        concurrency,
                        partitions: &self.partitions,
                        wrk: wrk.as_ref(),
                        aiohttp: aiohttp.as_ref(),
                    };
                    let of_size = if settings.growth {
                        format!("{rollouts} of ")
                    } else {
                        String::new()
                    };
                    let case = format!("throughput, {of_size}{of}");
                    let cells = cell.measure(settings.options.repeats())?;
                    cells.report(&case, is_small, report);
                    cells.note(cell.num_rollouts, &mut growth);
                    report.save(&settings.options)?;
                }
                growth.report(&format!("throughput, {of}"), report);
            }
        }
        Ok(())
    }
}

impl Cell<'_> {
    fn measure(&self, repeats: usize) -> anyhow::Result<Cells> {
        let mut cells = Cells::default();
        for _ in 0..repeats {
            cells.collector.push(self.collector(&[])?);
            for number in self.partitions {
                let done = self.collector(&["--partitions", &number.to_string()])?;
                cells.partitioned.entry(*number).or_default().push(done);
            }
            cells.hyper.push(self.bare(Client::Hyper)?);
            if let Some(wrk) = self.wrk {
                cells.wrk.push(self.wrk(wrk)?);
            }
            cells
                .own_metrics
                .push(self.collector(&["--no-agent-metrics"])?);
            cells
                .without_metrics
                .push(self.collector(&["--disable-aggregation"])?);
            cells.reqwest.push(self.bare(Client::Reqwest)?);
            if let Some(aiohttp) = self.aiohttp {
                cells.aiohttp.push(self.aiohttp(aiohttp)?);
            }
        }
        Ok(cells)
    }

    fn collector(&self, flags: &[&str]) -> anyhow::Result<Done> {
        let sweep = Sweep {
            input: self.input,
            run: &self.directory.join("run"),
            agents: &[("sim", self.sim.agent_url())],
            num_rollouts: self.num_rollouts,
            num_repeats: self.num_repeats,
            concurrency: self.concurrency,
            flags,
        };
        self.done(|| Ok(of_process(self.num_rollouts, sweep.run()?)))
    }

    fn bare(&self, client: Client) -> anyhow::Result<Done> {
        let name = client
            .to_possible_value()
            .context("a client without a name")?;
        let mut command = itself()?;
        command.args(["throughput", "--client", name.get_name()]);
        command.args(["--url", self.sim.agent_url()]);
        command.arg("--input").arg(self.input);
        command.args(["--repeats-of-a-task", &self.num_repeats.to_string()]);
        command.args(["--rollouts", &self.num_rollouts.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        self.done(|| {
            let usage = Child::start(&mut command)?.finish()?.1;
            Ok(of_process(self.num_rollouts, usage))
        })
    }

    fn wrk(&self, wrk: &Wrk) -> anyhow::Result<Done> {
        let url = format!("{}/run", self.sim.agent_url());
        self.done(|| {
            let driven = wrk.drive(&url, self.concurrency)?;
            Ok(Done {
                seconds: driven.requests / driven.rate,
                ..of_process(driven.requests as usize, driven.usage)
            })
        })
    }

    fn aiohttp(&self, aiohttp: &Aiohttp) -> anyhow::Result<Done> {
        let rollouts = self.num_rollouts.div_ceil(OF_PYTHON);
        self.done(|| {
            let (looped, usage) = aiohttp.collect(
                self.input,
                self.sim.agent_url(),
                self.num_repeats,
                rollouts,
                self.concurrency,
            )?;
            Ok(Done {
                seconds: looped.seconds,
                cpu: looped.cpu,
                ..of_process(rollouts, usage)
            })
        })
    }

    fn done(&self, work: impl FnOnce() -> anyhow::Result<Done>) -> anyhow::Result<Done> {
        let before = self.sim.cpu()?;
        let done = work()?;
        let sim_cpu = self.sim.cpu()?.saturating_sub(before);
        Ok(Done {
            sim_cpu: sim_cpu.as_secs_f64(),
            ..done
        })
    }
}

fn of_process(calls: usize, usage: Usage) -> Done {
    Done {
        calls: calls as f64,
        seconds: usage.wall.as_secs_f64(),
        cpu: usage.cpu.as_secs_f64(),
        peak_memory: usage.peak_memory as f64,
        sim_cpu: 0.0,
    }
}

impl Cells {
    fn report(&self, case: &str, is_small: bool, report: &mut Report) {
        let wrk = ("wrk", &*self.wrk);
        let hyper = (Client::Hyper.name(), &*self.hyper);
        let others = [
            (Client::Reqwest.name(), &*self.reqwest),
            ("aiohttp loop", &*self.aiohttp),
        ];
        let rate = |done: &Done| done.rate();
        let cpu = |done: &Done| done.cpu_of_call();
        let (whole, alone) = if is_small { (0.35, 0.5) } else { (0.25, 0.35) };
        for (case, ours, of_wrk) in [
            (case, &*self.collector, whole),
            (
                &*format!("{case}, metrics of its own"),
                &*self.own_metrics,
                whole,
            ),
            (
                &*format!("{case}, no metrics"),
                &*self.without_metrics,
                alone,
            ),
        ] {
            report
                .measured(case, ("rate", "rollouts/s", &rate), ours, wrk)
                .goal(Goal::RatioAtLeast(of_wrk));
            let of_hyper = report.measured(case, ("CPU", "µs/rollout", &cpu), ours, hyper);
            if is_small {
                of_hyper.goal(Goal::RatioAtMost(3.0));
            }
        }
        let ours = &*self.collector;
        for (number, theirs) in &self.partitioned {
            let case = format!("{case}, {number} partitions");
            let few = ("its own number of partitions", ours);
            report.measured(&case, ("rate", "rollouts/s", &rate), theirs, few);
            report.measured(&case, ("CPU", "µs/rollout", &cpu), theirs, few);
        }
        report.measured(case, ("rate", "rollouts/s", &rate), ours, hyper);
        for other in others.into_iter().filter(|(_, theirs)| !theirs.is_empty()) {
            report.measured(case, ("rate", "rollouts/s", &rate), ours, other);
            report.measured(case, ("CPU", "µs/rollout", &cpu), ours, other);
        }
        report.measured(case, ("peak memory", "MB", &Done::megabytes), ours, hyper);
        report.measured(
            case,
            ("CPU of the sim", "µs/request", &Done::sim_cpu_of_call),
            ours,
            wrk,
        );
    }

    fn note(&self, size: usize, growth: &mut Growth) {
        let values = |of: fn(&Done) -> f64| self.collector.iter().map(of).collect::<Vec<_>>();
        growth.add("time", size, &values(|done| done.seconds));
        growth.add("CPU", size, &values(|done| done.cpu));
        growth.add("peak memory", size, &values(|done| done.peak_memory));
    }
}
