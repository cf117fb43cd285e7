//! `rollstream sql`: a query, a script, or an interactive session. An `Interpreter` executes what `Statements` reads.

mod catalog;
mod command;
mod completion;
mod interpreter;
mod repl;
mod statements;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgGroup, Args};

use datafusion::prelude::SessionContext;

pub(super) use catalog::first_sentence;
pub(super) use statements::{Item, Statement, Statements};

use self::interpreter::Interpreter;
use super::measurement::{DEFAULT_MEMORY, FamilyArgs, metric_tables};
use super::output::Exit;
use super::runs::named_runs;
use crate::error::Error;
use crate::query::SqlSession;
use crate::session as sessions;
use crate::show::Format;

pub(super) const SQL_EXAMPLES: &str = "\
Examples:
  rollstream sql runs/first
  rollstream sql runs/first \\
      -c 'select agent_name, avg(reward) from rollouts group by 1'
  rollstream sql runs/a runs/b \\
      -c 'select run, count(*) from attempts group by 1' --format csv
  rollstream sql base=runs/a cand=s3://bucket/b \\
      -c 'select count(*) from base.tasks join cand.tasks using (task_digest)'
  rollstream sql runs/first \\
      -c 'select metric, k, pass_at_k, pass_hat_k from pass_at_k where k > 1'
  rollstream sql s3://bucket/run -f question.sql -o answer.parquet
  rollstream sql runs/first < questions.sql

Without -c and -f it prompts for statements, each ending with `;`, or runs those of the standard input one by one \
and stops at the first that fails. \\help lists the other commands.

Tables: tasks, rollouts (every metric is a column), attempts, calls, groups; with several runs, or a name, each has a column `run`. \
The metric families are tables too, computed when they are read (`rollstream metrics` lists them), and so are their \
inputs scores, totals, answers and absent; with several runs, each run has its own, such as NAME.pass_at_k. \
Each run's own tables are NAME.tasks, NAME.rollouts and NAME.attempts. The name of a run that is given as a path alone \
is the last part of the path, if that is a word of letters, digits and `_`.";

/// The options of `sql`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("query").args(["command", "file"]))]
pub struct SqlArgs {
    /// Runs: directories or object-store prefixes, optionally named
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// One or more statements, with `;` between them
    #[arg(long, short, value_name = "SQL")]
    pub command: Option<String>,
    /// A file with one or more statements
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The format of the answer [default: what the name of the output file tells, else table]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Write the answer to this file instead of the standard output
    #[arg(long, short, value_name = "FILE", requires = "query")]
    pub output_file: Option<PathBuf>,
    /// Which metric families are tables.
    #[command(flatten)]
    pub metrics: FamilyArgs,
}

/// `rollstream sql`: queries one or several runs.
pub(super) async fn sql(args: SqlArgs) -> Result<Exit, Error> {
    let text = match (args.command, &args.file) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => {
            let what = || format!("cannot read the query '{}' (-f)", path.display());
            let text = fs::read_to_string(path);
            Some(text.map_err(|error| Error::usage(what(), error))?)
        }
        (None, None) => None,
    };
    let metrics = metric_tables(&args.metrics, DEFAULT_MEMORY)?;
    let context = SessionContext::new_with_config(sessions::config());
    let session = SqlSession::new(context, named_runs(&args.runs).await?, Arc::new(metrics))?;
    let of_file = args.output_file.as_deref().and_then(Format::of_file);
    let format = args.format.or(of_file).unwrap_or(Format::Table);
    let mut interpreter = Interpreter::new(session, format, args.output_file);
    match text {
        Some(text) => interpreter::run_text(&mut interpreter, &text).await?,
        None if io::stdin().is_terminal() => repl::converse(interpreter).await?,
        None => interpreter::run_input(&mut interpreter).await?,
    }
    Ok(Exit::Done)
}
