//! How a case ended that did not fail.

/// What became of a case.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All that was expected is there.
    Passed,
    /// It needs something that this version does not have.
    NotSupported(String),
}
