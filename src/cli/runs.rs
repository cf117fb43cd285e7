//! Opens the runs and the files of rollouts that arguments name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::measurement::{DEFAULT_MEMORY, FamilyArgs, metric_tables};
use super::output::warn;
use crate::error::Error;
use crate::query::SqlSession;
use crate::session::{self, NamedRun};
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

/// Opens the runs that the command line gives as tables of a session, as `NAME=RUN` or `RUN` alone.
pub(super) async fn named_runs(given: &[String]) -> Result<Vec<NamedRun>, Error> {
    let mut runs = Vec::new();
    for given in given_runs(given)? {
        let (run, _) = open_recorded(&given.place).await?;
        runs.push(NamedRun {
            label: given.label,
            schema: given.schema,
            run,
        });
    }
    Ok(runs)
}

/// Opens a session of one run with the built-in metric families.
pub(super) async fn session_of(run: &str) -> Result<SqlSession, Error> {
    let metrics = metric_tables(&FamilyArgs::default(), DEFAULT_MEMORY)?;
    let runs = named_runs(&[run.to_owned()]).await?;
    let context = session::measuring(DEFAULT_MEMORY)?;
    let mut session = SqlSession::new(context, runs, Arc::new(metrics))?;
    session.look().await?;
    Ok(session)
}

/// A run as it was given on the command line.
#[derive(Debug, PartialEq, Eq)]
struct NamedPlace {
    /// Directory or address.
    pub place: String,
    /// What the column `run` holds for it.
    pub label: String,
    /// The schema of its own tables, if it has one.
    pub schema: Option<String>,
}

/// Schemas that a session has already.
const TAKEN: [&str; 2] = ["public", "information_schema"];

/// Parses the runs that the command line gives.
fn given_runs(given: &[String]) -> Result<Vec<NamedPlace>, Error> {
    named(given, |place| Path::new(place).exists())
}

fn named(given: &[String], exists: impl Fn(&str) -> bool) -> Result<Vec<NamedPlace>, Error> {
    let given: Vec<(Option<&str>, &str)> = given
        .iter()
        .map(|text| match split(text) {
            Some((name, place)) if !exists(text) => (Some(name), place),
            _ => (None, text.as_str()),
        })
        .collect();
    let schema = |(name, place): &(Option<&str>, &str)| {
        let name = name.or_else(|| place.trim_end_matches('/').rsplit('/').next());
        name.filter(|name| is_identifier(name))
            .map(str::to_ascii_lowercase)
    };
    let schemas: Vec<Option<String>> = given.iter().map(schema).collect();
    let count = |schema: &String| schemas.iter().flatten().filter(|s| *s == schema).count();
    let mut runs: Vec<NamedPlace> = Vec::new();
    for ((name, place), schema) in given.iter().zip(&schemas) {
        let label = name.unwrap_or_else(|| place.trim_end_matches('/'));
        if place.is_empty() {
            return Err(Error::Usage(format!(
                "'{label}=' names no run; write {label}=RUN"
            )));
        }
        let is_taken = |schema: &String| TAKEN.contains(&schema.as_str());
        if let (Some(name), Some(schema)) = (name, schema)
            && is_taken(schema)
        {
            return Err(Error::Usage(format!(
                "a run cannot be called '{name}', the name of a built-in schema; give it another name"
            )));
        }
        if runs.iter().any(|run| run.label.eq_ignore_ascii_case(label)) {
            return Err(Error::Usage(match name {
                Some(name) => format!("two runs are called '{name}'; give each a name of its own"),
                None => {
                    format!("the run {label} is given twice; tell them apart with NAME={label}")
                }
            }));
        }
        // A given name takes precedence over the last part of a path.
        let is_free = |schema: &String| {
            name.is_some() || (given.len() > 1 && count(schema) == 1 && !is_taken(schema))
        };
        runs.push(NamedPlace {
            place: (*place).to_owned(),
            label: label.to_owned(),
            schema: schema.clone().filter(is_free),
        });
    }
    Ok(runs)
}

/// Splits a text into the name before a run, and the run.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    let (name, place) = text.split_once('=')?;
    is_identifier(name).then_some((name, place))
}

pub(super) fn is_identifier(text: &str) -> bool {
    let mut characters = text.chars();
    let first = characters.next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
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

    fn names_of(line: &str) -> Vec<(String, String, Option<String>)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let runs = named(&words, |place| place == "a=b").unwrap();
        runs.into_iter()
            .map(|run| (run.label, run.place, run.schema))
            .collect()
    }

    fn run(label: &str, place: &str, schema: Option<&str>) -> (String, String, Option<String>) {
        (label.into(), place.into(), schema.map(str::to_owned))
    }

    #[test]
    fn a_name_goes_before_its_run() {
        assert_eq!(
            names_of("base=runs/a Cand=s3://b/c=d/"),
            [
                run("base", "runs/a", Some("base")),
                run("Cand", "s3://b/c=d/", Some("cand"))
            ]
        );
        assert_eq!(names_of("x=runs/a"), [run("x", "runs/a", Some("x"))]);
    }

    #[test]
    fn what_is_no_name_is_part_of_the_path() {
        assert_eq!(
            names_of("a=b runs/x=1 4x=y"),
            [
                run("a=b", "a=b", None),
                run("runs/x=1", "runs/x=1", None),
                run("4x=y", "4x=y", None)
            ]
        );
    }

    #[test]
    fn a_path_among_others_is_called_by_its_last_part_where_that_is_one_name() {
        assert_eq!(names_of("runs/a"), [run("runs/a", "runs/a", None)]);
        assert_eq!(
            names_of("runs/a/ s3://x/b c=d 1/c 2/e 3/e f-1 public"),
            [
                run("runs/a", "runs/a/", Some("a")),
                run("s3://x/b", "s3://x/b", Some("b")),
                run("c", "d", Some("c")),
                run("1/c", "1/c", None),
                run("2/e", "2/e", None),
                run("3/e", "3/e", None),
                run("f-1", "f-1", None),
                run("public", "public", None),
            ]
        );
    }

    #[test]
    fn a_name_is_given_once_and_to_a_run() {
        for (line, complaint) in [
            ("a=x A=y", "two runs are called 'A'"),
            ("x/y x/y/", "x/y is given twice"),
            ("x=", "'x=' names no run"),
            ("public=x", "cannot be called 'public'"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = named(&words, |_| false).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
