//! Opens the runs and the files of rollouts that arguments name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::output::warn;
use super::sql::split;
use crate::error::Error;
use crate::store::{RunRecord, RunStore, StoreError};

/// Opens the run at a place. Prints each warning about unreadable files of the run once.
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

/// Returns the directory for the journals of remote runs, if the environment names one.
pub(super) fn state_dir() -> Option<PathBuf> {
    std::env::var_os("ROLLSTREAM_STATE_DIR").map(PathBuf::from)
}

/// Whether an argument names files of rollouts rather than a run.
pub(super) fn is_file(text: &str) -> bool {
    let is_glob = text.contains(['*', '?', '[']) && !text.contains("://");
    (is_glob || text.ends_with(".jsonl")) && !PathBuf::from(text).is_dir()
}

/// Opens a run that must exist, and loads its record.
pub(super) async fn open_recorded(place: &str) -> Result<(RunStore, RunRecord), Error> {
    let run = open(place)?;
    match RunRecord::load(&run).await? {
        Some(record) => Ok((run, record)),
        None => Err(StoreError::NoRun {
            place: run.display(""),
        }
        .into()),
    }
}

/// Opens runs, each of which must exist and be given once.
pub(super) async fn runs(places: &[String]) -> Result<Vec<RunStore>, Error> {
    let mut runs: Vec<RunStore> = Vec::new();
    for place in places {
        let (run, _) = open_recorded(place).await?;
        let is_same = |other: &RunStore| other.display("") == run.display("");
        if runs.iter().any(is_same) {
            return Err(Error::Usage(format!("{place} is given twice")));
        }
        runs.push(run);
    }
    Ok(runs)
}

/// A run as an argument names it: `[NAME=]RUN[#AGENT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenRun {
    pub name: String,
    pub place: String,
    pub agent: Option<String>,
}

/// Parses `[NAME=]RUN[#AGENT]`. A text that is an existing path is taken as a path.
pub(super) fn given_run(text: &str) -> Result<GivenRun, Error> {
    parse(text, |place| Path::new(place).exists())
}

fn parse(text: &str, exists: impl Fn(&str) -> bool) -> Result<GivenRun, Error> {
    let (name, rest) = match split(text) {
        Some((name, rest)) if !exists(text) => (Some(name), rest),
        _ => (None, text),
    };
    let (place, agent) = match rest.rsplit_once('#') {
        Some((place, agent)) if !exists(rest) => (place, Some(agent)),
        _ => (rest, None),
    };
    if place.is_empty() {
        return Err(Error::Usage(format!(
            "'{text}' names no run; write [NAME=]RUN[#AGENT]"
        )));
    }
    if agent == Some("") {
        return Err(Error::Usage(format!(
            "'{text}' names no agent; write {place}, or {place}#AGENT"
        )));
    }
    let place = place.to_owned();
    let agent = agent.map(str::to_owned);
    let name = name.map_or_else(
        || match &agent {
            Some(agent) => format!("{}#{agent}", place.trim_end_matches('/')),
            None => place.trim_end_matches('/').to_owned(),
        },
        str::to_owned,
    );
    Ok(GivenRun { name, place, agent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> (String, String, Option<String>) {
        let run = parse(text, |place| ["a=b", "x#y"].contains(&place)).unwrap();
        (run.name, run.place, run.agent)
    }

    #[test]
    fn a_name_goes_before_a_run_and_an_agent_behind_it() {
        for (text, name, place, agent) in [
            ("runs/a/", "runs/a", "runs/a/", None),
            ("base=runs/a", "base", "runs/a", None),
            ("runs/a#x", "runs/a#x", "runs/a", Some("x")),
            ("b=s3://b/c=d#x", "b", "s3://b/c=d", Some("x")),
            ("runs/x=1", "runs/x=1", "runs/x=1", None),
            ("a=b", "a=b", "a=b", None),
            ("x#y", "x#y", "x#y", None),
            ("n=x#y", "n", "x#y", None),
            ("x#y#z", "x#y#z", "x#y", Some("z")),
        ] {
            let agent = agent.map(str::to_owned);
            assert_eq!(given(text), (name.into(), place.into(), agent), "{text}");
        }
    }

    #[test]
    fn a_part_that_is_missing_is_an_error() {
        for text in ["", "a=", "#x", "a=#x", "runs/a#"] {
            let error = parse(text, |_| false).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("names no"), "{error}");
        }
    }
}
