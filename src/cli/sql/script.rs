//! Statements that are there already, or come down a pipe: one after another, up to the first that
//! fails.

use std::io;
use std::os::fd::AsFd;

use tokio::io::{AsyncBufReadExt, BufReader};

use super::interpreter::{Flow, Interpreter};
use super::statements::{Item, Statement, Statements};
use crate::error::Error;

/// Does what a text says.
///
/// # Errors
/// Something failed; what comes after it is not done.
pub(super) async fn run_text(interpreter: &mut Interpreter, text: &str) -> Result<(), Error> {
    let mut statements = Statements::default();
    let mut is_empty = true;
    for line in text.lines() {
        for item in statements.push(line) {
            is_empty = false;
            if interpreter.execute(&item).await? == Flow::Break(()) {
                return Ok(());
            }
        }
    }
    // Who asks nothing is told so.
    let last = match statements.finish() {
        None if is_empty => Some(Item::Statement(Statement::default())),
        last => last,
    };
    if let Some(item) = last {
        interpreter.execute(&item).await.map(drop)?;
    }
    Ok(())
}

/// Does what the lines of the standard input say, each statement as soon as it is complete.
///
/// # Errors
/// Something failed; what comes after it is not read.
pub(super) async fn run_input(interpreter: &mut Interpreter) -> Result<(), Error> {
    let failed = |error: io::Error| Error::usage("cannot read the standard input", error);
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let input = tokio::fs::File::from_std(input.into());
    let mut lines = BufReader::new(input).lines();
    let mut statements = Statements::default();
    while let Some(line) = lines.next_line().await.map_err(failed)? {
        for item in statements.push(&line) {
            if interpreter.execute(&item).await? == Flow::Break(()) {
                return Ok(());
            }
        }
    }
    if let Some(item) = statements.finish() {
        interpreter.execute(&item).await.map(drop)?;
    }
    Ok(())
}
