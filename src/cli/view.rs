//! `rollstream view` and `rollstream report`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use super::measurement::{DEFAULT_MEMORY, FamilyArgs, metric_tables};
use super::output::{Exit, note, print};
use super::runs::named_runs;
use super::signals::interrupted;
use crate::error::Error;
use crate::view::{self, Viewer};

const EXAMPLES: &str = "\
Examples:
  rollstream view runs/first
  rollstream view base=runs/a cand=s3://bucket/b
  rollstream view runs/first --no-open --listen 127.0.0.1:8000

Prints the address, opens it in the browser, and serves it until it is interrupted. Only who knows the token in the \
address can read the runs. A run that is being collected moves on the page.";

/// The options of `view`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ViewArgs {
    /// Runs: directories or object-store prefixes, optionally named
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// Address and port to listen on [default: a free port of this machine alone]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// The secret in the address [default: a random one]
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    pub token: Option<String>,
    /// Don't open the browser
    #[arg(long)]
    pub no_open: bool,
    /// Where metric families come from, and their parameters.
    #[command(flatten)]
    pub families: FamilyArgs,
}

/// The options of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Runs: directories or object-store prefixes, optionally named; the first is the base of the comparison
    #[arg(value_name = "[NAME=]RUN", required = true)]
    pub runs: Vec<String>,
    /// The file to write
    #[arg(long, short, value_name = "FILE.html")]
    pub output: PathBuf,
    /// Where metric families come from, and their parameters.
    #[command(flatten)]
    pub families: FamilyArgs,
}

/// The fewest characters of a token that nobody guesses.
const MIN_TOKEN: usize = 16;

fn token(text: &str) -> Result<String, String> {
    let is_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_plain && text.len() >= MIN_TOKEN {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "a token has {MIN_TOKEN} or more letters, digits, `-` and `_`"
        ))
    }
}

/// `rollstream view`: serves the pages of runs. Writes nothing to them.
pub(super) async fn view(args: ViewArgs) -> Result<Exit, Error> {
    let metrics = Arc::new(metric_tables(&args.families, DEFAULT_MEMORY)?);
    let listen = args
        .listen
        .unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let viewer = Viewer::open(listen, args.token, named_runs(&args.runs).await?, metrics).await?;
    let url = viewer.url();
    print(format!("{url}\n"))?;
    if !args.no_open
        && let Err(error) = open::that_detached(&url)
    {
        note(format_args!(
            "no browser could be opened ({error}); open the address yourself"
        ));
    }
    note("serving until it is interrupted with Ctrl-C");
    tokio::select! {
        () = viewer.serve() => Ok(Exit::Done),
        stopped = interrupted() => stopped.map(|()| Exit::Done),
    }
}

/// `rollstream report`: writes the report of runs. Writes nothing to them.
pub(super) async fn report(args: ReportArgs) -> Result<Exit, Error> {
    write(&args.output, &args.runs, &args.families).await?;
    Ok(Exit::Done)
}

/// Writes a report, and says where it is.
pub(super) async fn write(
    file: &Path,
    runs: &[String],
    families: &FamilyArgs,
) -> Result<(), Error> {
    let metrics = Arc::new(metric_tables(families, DEFAULT_MEMORY)?);
    view::report(file, named_runs(runs).await?, metrics).await?;
    note(format_args!("the report is {}", file.display()));
    Ok(())
}
