//! The options of `profile`.

use std::path::PathBuf;

use clap::Args;

use super::args::DisplayArgs;
use crate::config::Bytes;
use crate::gym::GymChoice;

pub(super) const PROFILE_EXAMPLES: &str = "\
Examples:
  rollstream profile runs/first
  rollstream profile s3://bucket/run --allow-partial -o profiles/run
  rollstream profile results/rollouts.jsonl

Of a run it writes reward_profiling.jsonl and agent_metrics.json, of NAME.jsonl NAME_reward_profiling.jsonl and
NAME_agent_metrics.json; by the rules of NeMo Gym 0.7 repeat_level_metrics.json as well.";

/// The options of `profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// The run: a directory or an object-store prefix; or the rollouts of a NeMo Gym collection
    #[arg(value_name = "RUN|NAME.jsonl")]
    pub run: String,
    /// Where the files go: a directory or an object-store prefix [default: the run, or where NAME.jsonl is]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<String>,
    /// Profile what is there, also where rollouts are missing
    #[arg(long)]
    pub allow_partial: bool,
    /// The materialized inputs of NAME.jsonl, if not NAME_materialized_inputs.jsonl
    #[arg(long, value_name = "FILE")]
    pub materialized_inputs: Option<PathBuf>,
    /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto, which takes the one that the run follows or the files are of
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// The memory for what can go to temporary files
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    pub memory: Bytes,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}
