use std::io::{self, IsTerminal};
use std::pin::pin;

use super::Exit;
use super::args::StatusArgs;
use super::exit::unless_gone;
use super::open::open;
use super::signals::interrupted;
use crate::error::Error;
use crate::show::{StatusForm, StatusView};
use crate::status::RunStatus;

/// `rollstream status`: how a run is doing. Writes nothing to it.
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
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colors = is_terminal && !args.no_color && !unwanted;
    match args.watch {
        // Text that is shown again and again is of no use to a program.
        true if args.json || !is_terminal => StatusForm::JsonLines,
        true => StatusForm::Screen { colors },
        false if args.json => StatusForm::Json,
        false => StatusForm::Text { colors },
    }
}
