//! Measures each row of the table of goals, beside its baselines.
//!
//! ```sh
//! cargo bench --bench goals -- --json now.json                        # all rows; some take long
//! cargo bench --bench goals -- --only throughput,in-flight --against earlier.json
//! cargo bench --bench goals -- throughput --help                      # a row alone has options of its own
//! ```

mod common;
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the tests ask for more of it"
)]
#[path = "../tests/common/s3_backend.rs"]
mod s3_backend;
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "the tests ask for more of it"
)]
#[path = "../tests/common/s3_server.rs"]
mod s3_server;

#[path = "goals"]
mod rows {
    mod baselines;
    pub mod binary;
    pub mod cluster;
    pub mod fleet;
    mod fleet_model;
    mod fleet_store;
    pub mod in_flight;
    pub mod journal;
    mod journal_calls;
    pub mod landing;
    pub mod memory;
    pub mod metrics;
    pub mod queries;
    pub mod resume;
    mod resume_place;
    pub mod scheduling;
    pub mod start;
    pub mod throughput;
    pub mod view;

    use super::Settings;
}

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use common::{Options, Report};

/// Measure the rows of the table of goals.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// Measure these rows [default: all]
    #[arg(long, value_name = "ROWS", value_delimiter = ',', value_parser = PossibleValuesParser::new(Row::NAMES))]
    only: Vec<String>,
    #[command(subcommand)]
    row: Option<Row>,
}

/// A row alone, with options of its own.
#[derive(Debug, Subcommand)]
enum Row {
    /// Rollouts per second and CPU per rollout, beside wrk and bare clients
    Throughput(rows::throughput::Throughput),
    /// As many rollouts at once as the collector can have
    InFlight(rows::in_flight::InFlight),
    /// Wall time beside the greedy list schedule of the same latencies
    Scheduling(rows::scheduling::Scheduling),
    /// From the program's start over the last byte of the input to the first request
    Start(rows::start::Start),
    /// Peak memory of a long sweep beside a short one, and of a huge answer
    Memory(rows::memory::Memory),
    /// Share of the collector's CPU that landing takes
    Landing(rows::landing::Landing),
    /// Throughput with and without a journal
    Journal(rows::journal::Journal),
    /// Time and memory until a resumed sweep sends its first request
    Resume(rows::resume::Resume),
    /// Time and memory of the metrics of a run, beside DuckDB over the same files
    Metrics(rows::metrics::Metrics),
    /// Time and memory of `sql` over a run, and of `ls` over a folder of runs
    Queries(rows::queries::Queries),
    /// Time until a page of the viewer is there, and the memory of the viewer
    View(rows::view::View),
    /// Sweeps on executors of this machine, beside one process
    Cluster(rows::cluster::Cluster),
    /// A hundred executors and a hundred million rollouts in virtual time: requests to the store, tail and cost
    Fleet(rows::fleet::Fleet),
    /// Time to start and size of the program
    Binary(rows::binary::Binary),
}

impl Row {
    const NAMES: [&str; 14] = [
        "throughput",
        "in-flight",
        "scheduling",
        "start",
        "memory",
        "landing",
        "journal",
        "resume",
        "metrics",
        "queries",
        "view",
        "cluster",
        "fleet",
        "binary",
    ];

    /// Returns the row of this name without options.
    fn named(name: &str) -> anyhow::Result<Self> {
        let matches = Cli::command().try_get_matches_from(["goals", name])?;
        let row = Cli::from_arg_matches(&matches)?.row;
        row.context("a row without a name")
    }

    /// Does the work for which this process was started by another, if it was.
    fn work(&self) -> Option<anyhow::Result<()>> {
        match self {
            Self::Throughput(row) => row.work(),
            Self::Journal(row) => row.work(),
            Self::Resume(row) => row.work(),
            Self::Metrics(row) => row.work(),
            _ => None,
        }
    }

    fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        match self {
            Self::Throughput(row) => row.measure(settings, report),
            Self::InFlight(row) => row.measure(settings, report),
            Self::Scheduling(row) => row.measure(settings, report),
            Self::Start(row) => row.measure(settings, report),
            Self::Memory(row) => row.measure(settings, report),
            Self::Landing(row) => row.measure(settings, report),
            Self::Journal(row) => row.measure(settings, report),
            Self::Resume(row) => row.measure(settings, report),
            Self::Metrics(row) => row.measure(settings, report),
            Self::Queries(row) => row.measure(settings, report),
            Self::View(row) => row.measure(settings, report),
            Self::Cluster(row) => row.measure(settings, report),
            Self::Fleet(row) => row.measure(settings, report),
            Self::Binary(row) => row.measure(settings, report),
        }
    }
}

/// The factor between sizes.
const FACTOR: usize = 10;

/// Settings of all rows.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    #[command(flatten)]
    pub options: Options,
    /// Measure what has a size at three, a factor of ten apart, and work out the exponents
    #[arg(long, global = true)]
    pub growth: bool,
    /// A Python: with aiohttp and DuckDB there are more baselines
    #[arg(long, value_name = "PROGRAM", default_value = "python3", global = true)]
    pub python: PathBuf,
}

impl Settings {
    /// Returns the size asked for, else `default`, or `quick` with `--quick`.
    pub fn size(&self, asked: Option<usize>, default: usize, quick: usize) -> usize {
        let usual = if self.options.quick { quick } else { default };
        asked.unwrap_or(usual).max(1)
    }

    /// Returns `size`, after smaller ones if growth is measured.
    pub fn sizes_up_to(&self, size: usize) -> Vec<usize> {
        if self.growth {
            vec![size / FACTOR / FACTOR, size / FACTOR, size]
        } else {
            vec![size]
        }
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // All processes inherit it: a call in flight is a connection, at both ends.
    rollstream::http::raise_open_files();
    if let Some(done) = cli.row.as_ref().and_then(Row::work) {
        return done;
    }
    let rows: Vec<Row> = match (cli.row, cli.only.as_slice()) {
        (Some(row), _) => vec![row],
        (None, []) => Row::NAMES
            .into_iter()
            .map(Row::named)
            .collect::<Result<_, _>>()?,
        (None, names) => names
            .iter()
            .map(|name| Row::named(name))
            .collect::<Result<_, _>>()?,
    };
    let options = &cli.settings.options;
    let mut report = Report::new("goals");
    if options.quick {
        report.note("--quick: too little is measured to say whether goals are met");
    }
    let mut failed = 0;
    for row in &rows {
        // Continues with the other rows.
        if let Err(error) = row.measure(&cli.settings, &mut report) {
            failed += 1;
            report.note(format!("a row could not be measured: {error:#}"));
        }
        report.save(options)?;
    }
    report.finish(options)?;
    match failed {
        0 => Ok(()),
        _ => bail!("{failed} of {} rows could not be measured", rows.len()),
    }
}
