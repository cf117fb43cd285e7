use clap::Args;

use crate::cli::args::DisplayArgs;
use crate::cli::measure_args::FamilyArgs;
use crate::config::Bytes;

pub(in crate::cli) const CHECK_EXAMPLES: &str = "\
Examples:
  rollstream check runs/first --gate gates.sql
  rollstream check runs/first --gate 'SELECT * FROM coverage WHERE pending > 0' -q
  rollstream check base=runs/a cand=runs/b --gate gates.sql --json
  rollstream check runs/first --health --ignore-checks model_call_missing_token_counts
  rollstream check results/rollouts.jsonl --health

A gate is a query: every row that it returns is a violation. A file holds one or more with `;` between them; the comment
before a query (`-- All is done`) is its name. The tables are those of `rollstream sql`, metric families included.

--health asks what the evidence of each rollout says of it, by the checks of NeMo Gym 0.7, and writes
quality_summary.json and rollout_verdicts.jsonl into the run, or beside the files. It is violated where a rollout is
unhealthy; NeMo Gym's own `gym eval health-check` ends with 0 then, too.

Exit codes:
  0    no gate is violated
  1    an error, as of the storage
  2    the command line or the SQL of a gate is wrong
  4    a gate is violated";

/// The options of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Runs: directories or object-store prefixes, with a name if need be; for --health alone also files of rollouts
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// A file of gates, or a gate itself; may be given several times
    #[arg(
        long = "gate",
        value_name = "FILE|SQL",
        required_unless_present = "health",
        allow_hyphen_values = true
    )]
    pub gates: Vec<String>,
    /// Check the health of all rollouts, and write the verdicts
    #[arg(long)]
    pub health: bool,
    /// Leave these checks out of --health
    #[arg(
        long,
        value_name = "CHECK,...",
        value_delimiter = ',',
        requires = "health"
    )]
    pub ignore_checks: Vec<String>,
    /// Which metric families are tables.
    #[command(flatten)]
    pub metrics: FamilyArgs,
    /// The memory for what can go to temporary files
    #[arg(long, value_name = "SIZE", default_value = "256MB")]
    pub memory: Bytes,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}
