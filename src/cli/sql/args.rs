use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::cli::measurement::FamilyArgs;
use crate::show::Format;

pub(in crate::cli) const SQL_EXAMPLES: &str = "\
Examples:
  rollstream sql runs/first
  rollstream sql runs/first -c 'select agent_name, avg(reward) from rollouts group by 1'
  rollstream sql runs/a runs/b -c 'select run, count(*) from attempts group by 1' --format csv
  rollstream sql base=runs/a cand=s3://bucket/b -c 'select count(*) from base.rollouts join cand.rollouts using (task_index)'
  rollstream sql runs/first -c 'select metric, k, pass_at_k, pass_hat_k from pass_at_k where k > 1'
  rollstream sql s3://bucket/run -f question.sql --format parquet -o answer.parquet
  rollstream sql runs/first < questions.sql

Without -c and -f it asks for statements, each ending with `;`, or runs those of the standard input one after another
and stops at the first that fails. \\help lists the other commands.

Tables: tasks, rollouts (every metric is a column), attempts; with several runs, or a name, each has a column `run`.
The metric families are tables too, computed when they are read (`rollstream metrics` lists them), and so are scores,
answers and absent, which they are written over; with several runs each run has its own, as NAME.pass_at_k.
Each run's own tables are NAME.tasks, NAME.rollouts and NAME.attempts. The name of a run that is given as a path alone
is the last part of the path, if that is a word of letters, digits and `_`.";

/// The options of `sql`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("query").args(["command", "file"]))]
pub struct SqlArgs {
    /// Runs: directories or object-store prefixes, with a name if need be
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// The question, or several with `;` between them
    #[arg(long, short, value_name = "SQL")]
    pub command: Option<String>,
    /// A file that holds the question or questions
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The format of the answer
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write the answer to this file instead of the standard output
    #[arg(long, short, value_name = "FILE", requires = "query")]
    pub output_file: Option<PathBuf>,
    /// Which metric families are tables.
    #[command(flatten)]
    pub metrics: FamilyArgs,
}
