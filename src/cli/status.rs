//! `rollstream status`.

use std::io::{self, IsTerminal};
use std::pin::pin;

use clap::Args;

use super::output::{Exit, unless_gone, wants_colors};
use super::runs::open;
use super::signals::interrupted;
use crate::config::Span;
use crate::error::Error;
use crate::show::{Look, StatusForm, StatusView};
use crate::status::RunStatus;

const EXAMPLES: &str = "\
Examples:
  rollstream status runs/first
  rollstream status s3://bucket/run --watch --interval 10s
  rollstream status runs/first --json | jq \\
      '.agents[] | {agent_name, done, pending, errors}'";

/// The options of `status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// The run: a directory or an object-store prefix
    pub run: String,
    /// Show the status repeatedly until no process works on the run
    #[arg(long)]
    pub watch: bool,
    /// Time between two updates
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch")]
    pub interval: Span,
    /// Show JSON for programs: one document, or with --watch one per line
    #[arg(long)]
    pub json: bool,
    /// Show whole errors
    #[arg(long, short)]
    pub verbose: bool,
    /// Show no colours (the variable NO_COLOR does the same)
    #[arg(long)]
    pub no_color: bool,
}

/// `rollstream status`: shows how a run is doing. Writes nothing to it.
pub(super) async fn status(args: StatusArgs) -> Result<Exit, Error> {
    let run = open(&args.run)?;
    let mut view = StatusView::new(form(&args));
    if !args.watch {
        let status = RunStatus::of(&run).await?;
        unless_gone(view.show(&status))?;
        return Ok(Exit::Done);
    }
    let mut interrupted = pin!(interrupted());
    let mut last = None;
    loop {
        let looked = tokio::select! {
            looked = RunStatus::of(&run) => looked?,
            stopped = &mut interrupted => { stopped?; break }
        };
        if let Some(exit) = unless_gone(view.show(&looked))? {
            return Ok(exit);
        }
        let is_live = last.insert(looked).state.is_live();
        if !is_live {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(args.interval.duration()) => {}
            stopped = &mut interrupted => { stopped?; break }
        }
    }
    unless_gone(view.finish(last.as_ref()))?;
    Ok(Exit::Done)
}

fn form(args: &StatusArgs) -> StatusForm {
    let is_terminal = io::stdout().is_terminal();
    let look = Look {
        colors: is_terminal && wants_colors(args.no_color),
        verbose: args.verbose,
    };
    match (args.watch, args.json) {
        // A program has no use for a screen that is drawn again and again.
        (true, as_json) if as_json || !is_terminal => StatusForm::JsonLines,
        (true, _) => StatusForm::Screen(look),
        (false, true) => StatusForm::Json,
        (false, false) => StatusForm::Text(look),
    }
}
