//! What it costs to keep what is sent and what is answered: calls in flight whose outcomes are dropped, beside the same
//! with the log of dispatches, with that and the journal, and with all that lands. Agents answer at once: one
//! within the process, next to which everything is dear, and the simulated one over HTTP. Each measurement is a
//! process of its own; they take turns.

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::Settings;
use super::journal_calls::Calls;
use crate::common::{Child, FigureOf, Goal, Report, SimServer, Usage, itself, millions};

const BASELINE: &str = "nothing kept";

/// Throughput with and without a journal.
#[derive(Debug, Clone, Args)]
pub struct Journal {
    /// Rollouts of each measurement, of HTTP a quarter [default: 200000, or 800 MB of answers; a tenth with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Bytes of an answer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = [1_000, 20_000])]
    body_sizes: Vec<usize>,
    /// Calls in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64, 256])]
    concurrency: Vec<usize>,
    /// Keep this, and print the seconds that it took
    #[arg(long, hide = true)]
    keep: Option<Kept>,
    /// Ask the agent at this address, and not one within the process
    #[arg(long, hide = true)]
    agent_url: Option<String>,
}

/// What is kept of calls.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub enum Kept {
    Nothing,
    /// That they were sent.
    Dispatches,
    /// What came of them, too, in the journal.
    Journal,
    /// And in parts: all that a sweep keeps.
    Parts,
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => BASELINE,
            Self::Dispatches => "dispatch log",
            Self::Journal => "and journal",
            Self::Parts => "and parts",
        }
    }
}

impl Journal {
    /// Calls whose outcomes are kept, in this process.
    pub fn work(&self) -> Option<anyhow::Result<()>> {
        self.keep.map(|kept| {
            let calls = Calls {
                agent_url: self.agent_url.clone(),
                body_size: *self.body_sizes.first().context("how large an answer?")?,
                rollouts: self.rollouts.context("how many rollouts?")?,
                concurrency: *self.concurrency.first().context("how many in flight?")?,
            };
            tokio::runtime::Runtime::new()?.block_on(calls.make(kept))
        })
    }

    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        for &body_size in &self.body_sizes {
            let most = settings.size(None, 200_000, 20_000);
            let default = (most * 4_000 / body_size.max(1)).min(most);
            let rollouts = self.rollouts.unwrap_or(default);
            let size = format!("{body_size}B");
            let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", &size])?;
            for &concurrency in &self.concurrency {
                for agent_url in [None, Some(sim.agent_url())] {
                    let cell = Cell {
                        agent_url,
                        body_size,
                        rollouts: agent_url.map_or(rollouts, |_| rollouts / 4),
                        concurrency,
                    };
                    cell.measure(settings.options.repeats(), report)?;
                    report.save(&settings.options)?;
                }
            }
        }
        Ok(())
    }
}

/// Seconds that calls took, and what their process took.
type Taken = (f64, Usage);

/// A cell of the table.
struct Cell<'a> {
    agent_url: Option<&'a str>,
    body_size: usize,
    rollouts: usize,
    concurrency: usize,
}

impl Cell<'_> {
    fn measure(&self, repeats: usize, report: &mut Report) -> anyhow::Result<()> {
        let variants = Kept::value_variants();
        let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); variants.len()];
        for _ in 0..repeats {
            for (kept, taken) in variants.iter().zip(&mut taken) {
                taken.push(self.child(*kept)?);
            }
        }
        let count = self.rollouts as f64;
        let figures: [FigureOf<Taken>; 3] = [
            ("rate", "rollouts/s", &|(seconds, _)| count / seconds),
            ("CPU", "µs/rollout", &|(_, usage)| {
                usage.cpu.as_secs_f64() * 1e6 / count
            }),
            ("peak memory", "MB", &|(_, usage)| {
                millions(usage.peak_memory as f64)
            }),
        ];
        let Some((baseline, others)) = taken.split_first() else {
            return Ok(());
        };
        let over = self.agent_url.map_or("in process", |_| "over HTTP");
        for (kept, taken) in variants.iter().skip(1).zip(others) {
            let (size, concurrency) = (self.body_size, self.concurrency);
            let name = kept.name();
            let case = format!("journal, {over}, {size} B, {concurrency} in flight, {name}");
            for figure in figures {
                let measured = report.measured(&case, figure, taken, (BASELINE, baseline));
                if figure.0 == "rate" && *kept == Kept::Journal && self.agent_url.is_some() {
                    measured.goal(Goal::RatioAtLeast(0.9));
                }
            }
        }
        Ok(())
    }

    fn child(&self, kept: Kept) -> anyhow::Result<Taken> {
        let mut command = itself()?;
        let name = kept.to_possible_value().context("a thing without a name")?;
        command.args(["journal", "--keep", name.get_name()]);
        command.args(["--rollouts", &self.rollouts.to_string()]);
        command.args(["--body-sizes", &self.body_size.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        command.args(self.agent_url.map(|url| format!("--agent-url={url}")));
        let (seconds, usage) = Child::start(&mut command)?.finish()?;
        Ok((seconds.trim().parse()?, usage))
    }
}
