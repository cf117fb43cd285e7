//! Runs that commands read.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::store::RunStore;

/// The run at a place. What of it can't be read is said once.
pub(super) fn open(place: &str) -> Result<RunStore, Error> {
    let said = Mutex::new(BTreeSet::new());
    let run = RunStore::open(place, state_dir().as_deref())?;
    Ok(run.telling(move |warning| {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert(warning.clone()) {
            warn(warning);
        }
    }))
}

/// Where journals of remote runs are, if it was said.
pub(super) fn state_dir() -> Option<PathBuf> {
    std::env::var_os("ROLLSTREAM_STATE_DIR").map(PathBuf::from)
}

/// Says what is odd.
pub(super) fn warn(warning: impl Display) {
    say("warning", warning);
}

/// Says what somebody may want to know, and need not.
pub(super) fn note(note: impl Display) {
    say("note", note);
}

fn say(kind: &str, text: impl Display) {
    // A terminal that has gone need not be told.
    let _ = writeln!(io::stderr(), "{kind}: {text}");
}
