use std::process::ExitCode;

use crate::error::Error;
use crate::show::ShowError;

/// How a command ended, where it was no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is done.
    Done,
    /// Finished, but some rollouts failed for good, or are still pending.
    SomeFailed,
    /// Stopped early by a limit that was set; it can be gone on with.
    Stopped,
    /// What was checked is not as it should be.
    Violated,
    /// Interrupted; it can be gone on with.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::SomeFailed => 3,
            Exit::Stopped | Exit::Violated => 4,
            Exit::Interrupted => 130,
        })
    }
}

/// How a command ends whose output was `written`, if it has to end: a reader that has had enough is
/// no error.
pub(super) fn unless_gone(written: Result<(), ShowError>) -> Result<Option<Exit>, Error> {
    match written {
        Ok(()) => Ok(None),
        Err(error) if error.is_broken_pipe() => Ok(Some(Exit::Done)),
        Err(error) => Err(error.into()),
    }
}
