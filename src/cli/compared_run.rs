//! A run as `compare` is given it: `[NAME=]RUN[#AGENT]`.

use std::path::Path;

use super::sql::run_names::split;
use crate::error::Error;

/// A run as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GivenRun {
    pub name: String,
    pub place: String,
    pub agent: Option<String>,
}

/// Reads what was given. What is there as a whole is a path, whatever it is called.
///
/// # Errors
/// A part is missing.
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
