use std::ffi::OsString;
use std::io::{self, Write};

use super::args::{Cli, Command};
use super::exit::unless_gone;
use super::{
    Exit, aggregate, check, collect, compare, completions, config, export, import, metrics, plan,
    profile, sim, sql, status,
};
use crate::error::Error;
use crate::guide;
use crate::show::ShowError;

/// The guide page that a command line asks for with `help TOPIC`.
pub fn guide_page(arguments: impl IntoIterator<Item = OsString>) -> Option<&'static str> {
    let mut arguments = arguments.into_iter().skip(1);
    let is_help = arguments.next()? == "help";
    guide::page(arguments.next().filter(|_| is_help)?.to_str()?)
}

/// Does what was asked.
///
/// # Errors
/// It could not be done; [`Error::exit_code`] says of what kind that is.
pub async fn run(cli: Cli) -> Result<Exit, Error> {
    match cli.command {
        Command::Collect(args) => collect::collect(*args).await,
        Command::Plan(args) => plan::plan(*args).await,
        Command::Config(args) => print(config::render(&args)?.as_bytes()),
        Command::Sql(args) => sql::sql(args).await,
        Command::Aggregate(args) => aggregate::aggregate(*args).await,
        Command::Check(args) => check::check(args).await,
        Command::Profile(args) => profile::profile(args).await,
        Command::Metrics(args) => print(metrics::render(&args)?.as_bytes()),
        Command::Compare(args) => compare::compare(*args).await,
        Command::Status(args) => status::status(args).await,
        Command::Import(args) => import::import(args).await,
        Command::Export(args) => export::export(args).await,
        Command::Sim(args) => sim::sim(*args).await,
        Command::Completions(args) => print(&completions::render(&args)),
    }
}

fn print(text: &[u8]) -> Result<Exit, Error> {
    unless_gone(io::stdout().lock().write_all(text).map_err(ShowError::from))?;
    Ok(Exit::Done)
}
