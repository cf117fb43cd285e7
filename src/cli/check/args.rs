use clap::Args;

use crate::cli::args::DisplayArgs;
use crate::cli::measure_args::FamilyArgs;
use crate::config::Bytes;

pub(in crate::cli) const CHECK_EXAMPLES: &str = "\
Examples:
  rollstream check runs/first --gate gates.sql
  rollstream check runs/first --gate 'SELECT * FROM coverage WHERE pending > 0' -q
  rollstream check base=runs/a cand=runs/b --gate gates.sql --json

A gate is a query: every row that it returns is a violation. A file holds one or more with `;` between them; the comment
before a query (`-- All is done`) is its name. The tables are those of `rollstream sql`, metric families included.

Exit codes:
  0    no gate is violated
  1    an error, as of the storage
  2    the command line or the SQL of a gate is wrong
  4    a gate is violated";

/// The options of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Runs: directories or object-store prefixes, with a name if need be
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// A file of gates, or a gate itself; may be given several times
    #[arg(
        long = "gate",
        value_name = "FILE|SQL",
        required = true,
        allow_hyphen_values = true
    )]
    pub gates: Vec<String>,
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
