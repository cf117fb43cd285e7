use std::ffi::OsString;

use super::args::{Cli, Command};
use super::output::{Exit, print};
use super::{
    aggregate, check, collect, compare, config, export, import, metrics, profile, sim, sql, status,
};
use crate::error::Error;
use crate::guide;

/// The guide page that a command line asks for with `help TOPIC`.
pub fn guide_page(arguments: impl IntoIterator<Item = OsString>) -> Option<&'static str> {
    let mut arguments = arguments.into_iter().skip(1);
    let is_help = arguments.next()? == "help";
    guide::page(arguments.next().filter(|_| is_help)?.to_str()?)
}

/// Runs the command.
///
/// # Errors
/// The command failed; [`Error::exit_code`] gives the exit code.
pub async fn run(cli: Cli) -> Result<Exit, Error> {
    match cli.command {
        Command::Collect(args) => collect::collect(*args).await,
        Command::Plan(args) => collect::plan(*args).await,
        Command::Config(args) => print(config::render(&args)?).map(|_| Exit::Done),
        Command::Sql(args) => sql::sql(args).await,
        Command::Aggregate(args) => aggregate::aggregate(*args).await,
        Command::Check(args) => check::check(args).await,
        Command::Profile(args) => profile::profile(args).await,
        Command::Metrics(args) => print(metrics::render(&args)?).map(|_| Exit::Done),
        Command::Compare(args) => compare::compare(*args).await,
        Command::Status(args) => status::status(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Export(args) => export::export(args).await,
        Command::Sim(args) => sim::sim(*args).await,
        Command::Completions(args) => print(args.script()).map(|_| Exit::Done),
    }
}
