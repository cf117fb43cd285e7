//! A pager for what is longer than the terminal, and the keys that lead on from it.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use console::{Key, Term};

use crate::show::ShowError;

/// Writes to a pager at a terminal, and to the standard output elsewhere.
pub(super) fn page(
    is_terminal: bool,
    write: impl Fn(&mut dyn Write) -> Result<(), ShowError>,
) -> Result<(), ShowError> {
    let pager = is_terminal.then(pager).flatten();
    if let Some(mut command) = pager
        && let Ok(mut child) = command.stdin(Stdio::piped()).spawn()
    {
        let written = match child.stdin.take() {
            Some(input) => {
                let mut input = io::BufWriter::new(input);
                write(&mut input).and_then(|()| Ok(input.flush()?))
            }
            None => Ok(()),
        };
        let is_missing = child.wait()?.code() == Some(NOT_FOUND);
        return match written {
            _ if is_missing => write(&mut io::stdout().lock()),
            // The user left the pager before its end.
            Err(error) if error.is_broken_pipe() => Ok(()),
            written => written,
        };
    }
    let mut output = io::BufWriter::new(io::stdout().lock());
    write(&mut output)?;
    Ok(output.flush()?)
}

/// The exit code of a shell that does not find its command.
const NOT_FOUND: i32 = 127;

/// The user's pager; none if `PAGER` is empty.
fn pager() -> Option<Command> {
    match std::env::var("PAGER") {
        Ok(text) if text.trim().is_empty() => None,
        Ok(text) => {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(text);
            Some(shell)
        }
        Err(_) => {
            let mut less = Command::new("less");
            less.arg("-R");
            if std::env::var_os("LESS").is_none() {
                // Leaves at the end of a text that fits the screen, and does not clear it.
                less.arg("-FX");
            }
            Some(less)
        }
    }
}

/// Where a reader goes from a rollout.
pub(super) enum Step {
    Next,
    Previous,
    Full,
    Leave,
}

/// Waits for a key.
pub(super) fn ask(position: &str) -> Step {
    let terminal = Term::stderr();
    // Without a terminal there is nobody to ask.
    let _ = terminal.write_str(&format!(
        "{position}\nn next, p previous, f in full, q leave "
    ));
    let step = loop {
        match terminal.read_key() {
            Ok(Key::Char('n' | ' ' | 'j') | Key::ArrowRight | Key::Enter) => {
                break Step::Next;
            }
            Ok(Key::Char('p' | 'k') | Key::ArrowLeft) => break Step::Previous,
            Ok(Key::Char('f')) => break Step::Full,
            Ok(Key::Char('q' | '\u{4}') | Key::Escape | Key::CtrlC) | Err(_) => {
                break Step::Leave;
            }
            Ok(_) => {}
        }
    };
    let _ = terminal.write_line("");
    step
}
