//! `rollstream sql`: one question, a script of them, or a conversation. `SqlSession` has the tables of the runs, which
//! `check` asks too; an `Interpreter` does what `Statements` reads.

pub mod args;
mod catalog;
mod command;
mod completion;
mod interpreter;
mod repl;
mod session;
mod statements;

use std::fs;
use std::io::{self, IsTerminal};

use datafusion::prelude::SessionContext;

pub(super) use catalog::first_sentence;
pub(super) use session::{SqlSession, split};
pub(super) use statements::{Item, Statement, Statements};

use self::args::SqlArgs;
use self::interpreter::Interpreter;
use super::measurement::{DEFAULT_MEMORY, metric_tables};
use super::output::Exit;
use crate::error::Error;
use crate::session as sessions;

/// `rollstream sql`: questions to one or several runs.
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
    let session = SqlSession::open(context, &args.runs, metrics).await?;
    let mut interpreter = Interpreter::new(session, args.format, args.output_file);
    match text {
        Some(text) => interpreter::run_text(&mut interpreter, &text).await?,
        None if io::stdin().is_terminal() => repl::converse(interpreter).await?,
        None => interpreter::run_input(&mut interpreter).await?,
    }
    Ok(Exit::Done)
}
