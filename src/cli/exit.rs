use std::process::ExitCode;

/// How a command ended, where it was no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is done.
    Done,
    /// Finished, but some rollouts failed for good.
    SomeFailed,
    /// Interrupted; it can be gone on with.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::SomeFailed => 3,
            Exit::Interrupted => 130,
        })
    }
}
