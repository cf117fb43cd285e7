//! Output and exit codes of all commands: [`Exit`], [`DisplayArgs`], and writers for stdout and stderr.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;

use crate::error::Error;
use crate::show::{ShowError, terminal_width, visible_lines, wrapped};

/// How things are shown. These are not settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Display")]
pub struct DisplayArgs {
    /// Show errors only
    #[arg(long, short)]
    pub quiet: bool,
    /// Show more: whole errors, and the physical plan
    #[arg(long, short, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Show JSON for programs: an event per line, or one document
    #[arg(long)]
    pub json: bool,
    /// Show no colours (the variable NO_COLOR does the same)
    #[arg(long)]
    pub no_color: bool,
}

/// How a command that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is done.
    Done,
    /// Finished, but some rollouts failed for good, or are still pending.
    SomeFailed,
    /// Stopped early by a limit that was set; it can be resumed.
    Stopped,
    /// A check found a violation.
    Violated,
    /// Interrupted; it can be resumed.
    Interrupted,
    /// As the program ended that was run.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::SomeFailed => 3,
            Exit::Stopped | Exit::Violated => 4,
            Exit::Interrupted => 130,
            Exit::Code(code) => code,
        })
    }
}

/// Returns the exit if the command must end because the reader has closed the pipe, which is no error.
pub(super) fn unless_gone(written: Result<(), ShowError>) -> Result<Option<Exit>, Error> {
    match written {
        Ok(()) => Ok(None),
        Err(error) if error.is_broken_pipe() => Ok(Some(Exit::Done)),
        Err(error) => Err(error.into()),
    }
}

/// Writes to stdout. Returns false if the reader has closed it.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<bool, Error> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_ref());
    let written = written.and_then(|()| output.flush());
    Ok(unless_gone(written.map_err(ShowError::from))?.is_none())
}

/// Whether the user allows colours on a terminal.
pub(super) fn wants_colors(no_color: bool) -> bool {
    !no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes an error and its causes to stderr.
pub fn complain(error: &Error) {
    say("error", error.report());
}

/// Writes a warning to stderr.
pub(super) fn warn(warning: impl Display) {
    say("warning", warning);
}

/// Writes a note to stderr, which needs no action.
pub(super) fn note(note: impl Display) {
    say("note", note);
}

fn say(kind: &str, text: impl Display) {
    let text = visible_lines(&format!("{kind}: {text}"));
    let text = wrapped(&text, 2, terminal_width(io::stderr()));
    // The error is ignored: the terminal may be gone.
    let _ = writeln!(io::stderr(), "{text}");
}
