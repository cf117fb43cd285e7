use std::io::{self, IsTerminal};

use datafusion::prelude::SessionContext;

use super::args::SqlArgs;
use super::interpreter::Interpreter;
use super::session::SqlSession;
use super::{repl, script};
use crate::cli::Exit;
use crate::cli::measurement::{DEFAULT_MEMORY, metric_tables};
use crate::error::Error;
use crate::session;

/// `rollstream sql`: questions to one or several runs.
pub(in crate::cli) async fn sql(args: SqlArgs) -> Result<Exit, Error> {
    let text = match (args.command, &args.file) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|source| {
                Error::Usage(format!(
                    "cannot read the query '{}' (-f): {source}",
                    path.display()
                ))
            });
            Some(text?)
        }
        (None, None) => None,
    };
    let metrics = metric_tables(&args.metrics, DEFAULT_MEMORY)?;
    let context = SessionContext::new_with_config(session::config());
    let session = SqlSession::open(context, &args.runs, metrics).await?;
    let mut interpreter = Interpreter::new(session, args.format.into(), args.output_file);
    match text {
        Some(text) => script::run_text(&mut interpreter, &text).await?,
        None if io::stdin().is_terminal() => repl::converse(interpreter).await?,
        None => script::run_input(&mut interpreter).await?,
    }
    Ok(Exit::Done)
}
