//! The options of the commands that measure what has landed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::args::DisplayArgs;
use super::sweep_flags::gym_output;
use crate::config::{Bytes, Span};
use crate::gym::GymChoice;

/// Which metric families there are, and what they are told.
#[derive(Debug, Args)]
pub struct FamilyArgs {
    /// A directory whose `.sql` files add to the built-in metric families or replace them
    #[arg(long, value_name = "DIR")]
    pub queries: Option<PathBuf>,
    /// A parameter of the metric families (`rollstream metrics` lists them); may be given several times
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
}

/// Which metrics, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub struct MetricArgs {
    /// Which families, and what they are told.
    #[command(flatten)]
    pub families: FamilyArgs,
    /// Where the answer stands in what the agent gave back, for majority@k: a path as extracted_answer or a.b[0]
    #[arg(long, value_name = "PATH")]
    pub answer_key: Option<String>,
    /// How rollouts count that were asked for and are not there
    #[arg(long, value_enum, default_value_t = MissingArg::Drop)]
    pub missing: MissingArg,
    /// Measure the rollouts by the values of this, too: a column, or a path into the request or the answer
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// What a million tokens of input and of output cost at an agent
    #[arg(long = "price", value_name = "AGENT=INPUT,OUTPUT")]
    pub prices: Vec<String>,
    /// The memory for what can go to temporary files
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    pub memory: Bytes,
}

/// How rollouts count that were asked for and are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MissingArg {
    /// Not at all
    Drop,
    /// As zero in every metric
    Zero,
    /// Not at all; but the lowest and highest that each number can become stand beside it
    Bounds,
}

/// Which agents are asked for metrics of their own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics of agents")]
pub struct MetricServerArgs {
    /// Ask each agent's server for its own metrics (POST /aggregate_metrics), and add them to aggregate_metrics.json
    #[arg(long, conflicts_with_all = ["families", "tables_only"])]
    pub agent_metrics: bool,
    /// Address of an agent's server; repeatable [default: where it was when the run was collected]
    #[arg(
        long = "agent-url",
        value_name = "NAME=URL",
        requires = "agent_metrics"
    )]
    pub agent_urls: Vec<String>,
    /// NeMo Gym head server, which knows the addresses of the others
    #[arg(long, value_name = "URL", requires = "agent_metrics")]
    pub head_server: Option<String>,
    /// The longest time that an agent's server may take
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        requires = "agent_metrics"
    )]
    pub agent_metrics_timeout: Span,
}

/// The options of `aggregate`.
#[derive(Debug, Args)]
pub struct AggregateArgs {
    /// Runs, which count as one; or files of rollouts of NeMo Gym, also as globs
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,
    /// Where metrics/ and aggregate_metrics.json go: a directory or an object-store prefix [default: the run, if it is one]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<String>,
    /// Write the rollouts of all files, sorted, to this file as well
    #[arg(long, value_name = "FILE")]
    pub merge: Option<PathBuf>,
    /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto, which takes the one that the runs follow or the files are of
    #[arg(
        long,
        value_name = "VERSION",
        default_value = "auto",
        help_heading = "NeMo Gym"
    )]
    pub gym: GymChoice,
    /// Count rollouts as zero whose last failure is of one of these classes, by NAME_failures.jsonl beside each file
    #[arg(
        long,
        value_name = "CLASS,...",
        value_delimiter = ',',
        help_heading = "NeMo Gym"
    )]
    pub count_failure_classes_as_zero: Vec<String>,
    /// Count rollouts as zero that left no row, by NAME_materialized_inputs.jsonl beside each file
    #[arg(long, help_heading = "NeMo Gym")]
    pub count_missing_rollouts_as_zero: bool,
    /// Where NeMo Gym's files go: the rollouts of all files, merged, to NAME.jsonl, and NAME_aggregate_metrics.json
    #[arg(
        long,
        value_name = "NAME.jsonl",
        value_parser = gym_output,
        help_heading = "NeMo Gym",
        conflicts_with = "merge"
    )]
    pub gym_output: Option<String>,
    /// With --gym-output: do not check the health of the rollouts, which the rules of 0.7 do
    #[arg(long, help_heading = "NeMo Gym", requires = "gym_output")]
    pub no_health_check: bool,
    /// Checks of the health of rollouts that are left out
    #[arg(
        long,
        value_name = "CHECK,...",
        value_delimiter = ',',
        help_heading = "NeMo Gym",
        requires = "gym_output"
    )]
    pub health_check_ignore: Vec<String>,
    /// Leave NAME.jsonl out of --gym-output
    #[arg(long, help_heading = "NeMo Gym", requires = "gym_output")]
    pub no_merge: bool,
    /// Compute this metric family and no others; may be given several times
    #[arg(long = "family", value_name = "NAME")]
    pub families: Vec<String>,
    /// Write the tables, but no aggregate_metrics.json, which holds every rollout
    #[arg(long)]
    pub tables_only: bool,
    /// Report pass@k of this in aggregate_metrics.json as NeMo Gym's benchmarks do, as accuracy=reward
    #[arg(
        long = "score",
        value_name = "NAME=METRIC",
        help_heading = "NeMo Gym",
        conflicts_with_all = ["families", "tables_only"]
    )]
    pub scores: Vec<String>,
    /// Which metrics are key metrics: the largest k of names such as pass@{k}, or a whole name
    #[arg(
        long = "key-metric",
        value_name = "PATTERN",
        help_heading = "NeMo Gym",
        conflicts_with_all = ["families", "tables_only"]
    )]
    pub key_metrics: Vec<String>,
    /// Which agents are asked for metrics of their own.
    #[command(flatten)]
    pub servers: MetricServerArgs,
    /// Which metrics, and how.
    #[command(flatten)]
    pub metrics: MetricArgs,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}
