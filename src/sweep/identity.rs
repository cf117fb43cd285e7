//! The identity of a run, which decides whether it may be resumed or extended: [`identity`], [`check`] and
//! [`check_extension`].

use datafusion::prelude::SessionContext;
use serde_json::{Map, Value};

use super::inputs::Spool;
use crate::config::option_spec::Identity;
use crate::config::{AgentSettings, Routing, Settings};
use crate::error::{Error, Fatal, USAGE};
use crate::gym::GymRules;
use crate::schema::TASKS;
use crate::session::{self, Rows, RunTables, row};
use crate::store::{GYM, InputRecord, RunRecord, RunStore};

const EXTENSION: &str = include_str!("../../queries/expand/extension.sql");

/// Keys that may differ in an extension: they only say how many rollouts there are.
const MAY_DIFFER: [&str; 3] = ["input", "limit", "num_repeats"];

/// Key of the settings that decide the requests of agents within rollstream.
const AGENTS: &str = "agents";

/// Key of the digests of the inputs.
const INPUT: &str = "input";

/// Returns the settings that decide the requests of a sweep, which a resume must share. Options declare whether they
/// are among them.
pub(super) fn identity(
    settings: &Settings,
    rules: &GymRules,
    inputs: &[InputRecord],
    prompt: Option<&str>,
) -> Value {
    let mut values = serde_json::to_value(settings).unwrap_or_default();
    let mut identity = Map::new();
    for option in Settings::options() {
        let mut value = || values.get_mut(option.key).map(Value::take);
        let decisive = match (option.identity, option.key) {
            (Identity::No, _) => None,
            (Identity::Value, _) => value(),
            // Left out at its default, because older runs have none of these.
            (Identity::Routing, _) => value().filter(|value| *value != option.default),
            (Identity::Content, AGENTS) => native(settings),
            (Identity::Content, INPUT) => Some(inputs.iter().map(|input| &*input.digest).collect()),
            (Identity::Content, _) => Some(prompt.map(digest).into()),
        };
        identity.extend(decisive.map(|value| (option.key.to_owned(), value)));
    }
    let mut identity = Value::Object(identity);
    add_rules(&mut identity, rules);
    identity
}

fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Adds the version of the rules to an identity, unless they are the default that runs without a version follow.
pub(super) fn add_rules(identity: &mut Value, rules: &GymRules) {
    if let Some(fields) = identity.as_object_mut()
        && rules != GymRules::of(None)
    {
        fields.insert(GYM.to_owned(), rules.version.into());
    }
}

/// Returns the settings that decide the requests of agents within rollstream. Addresses and secrets of servers are not
/// among them.
fn native(settings: &Settings) -> Option<Value> {
    let agents = settings.agents.iter();
    let agents = agents.filter(|(_, agent)| agent.runs_here());
    let decisive = agents.map(|(name, agent)| {
        let mut values = serde_json::to_value(agent).unwrap_or_default();
        let environments = values["environments"].as_object_mut();
        for environment in environments.into_iter().flat_map(Map::values_mut) {
            if let Some(fields) = environment.as_object_mut() {
                fields.remove("url");
                fields.remove("bearer_token_env");
            }
        }
        let options = AgentSettings::options().iter();
        let options = options.filter(|option| option.identity != Identity::No);
        let own = options.map(|option| (option.key.to_owned(), values[option.key].take()));
        (name.clone(), own.collect())
    });
    let decisive: Map<String, Value> = decisive.collect();
    (!decisive.is_empty()).then(|| decisive.into())
}

/// Returns the differences, by key, between the identity that a run began with and the current one.
fn differences(record: &RunRecord, now: &Value) -> Vec<(String, String)> {
    let (Value::Object(before), Value::Object(now)) = (&record.identity, now) else {
        return Vec::new();
    };
    let differs = |(key, value): (&String, &Value)| {
        let was = before.get(key).unwrap_or(&Value::Null);
        (was != value).then(|| (key.clone(), format!("'{key}' was {was} and is {value}")))
    };
    let mut differences: Vec<(String, String)> = now.iter().filter_map(differs).collect();
    // With an input, a missing routing key means its default, and the run had another value.
    if now.contains_key(INPUT) {
        differences.extend(Routing::keys().filter_map(|key| {
            let was = before.get(key).filter(|_| !now.contains_key(key))?;
            Some((key.to_owned(), not_given(key, was)))
        }));
    }
    differences
}

fn not_given(key: &str, was: &Value) -> String {
    format!("'{key}' was {was} and is missing now")
}

/// Returns the part of the identity that differs from the defaults: the options given to a resume without an input.
pub(super) fn given(settings: &Settings, rules: &GymRules, prompt: Option<&str>) -> Value {
    let mut given = identity(settings, rules, &[], prompt);
    let default = identity(&Settings::default(), GymRules::of(None), &[], None);
    if let Value::Object(fields) = &mut given {
        fields.retain(|key, value| default.get(key) != Some(value));
    }
    given
}

/// The error for a run that cannot be resumed with these settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot resume {place}: {difference}. Give the same input and options (--extend allows more tasks and repeats), or \
     another --output"
)]
pub struct NotResumable {
    /// The run.
    pub place: String,
    /// What differs from `run.json`.
    pub difference: String,
}

impl Fatal for NotResumable {
    fn exit_code(&self) -> u8 {
        USAGE
    }
}

/// Refuses a resume whose requests would differ from those of the run.
pub(super) fn check(record: &RunRecord, now: &Value, place: &str) -> Result<(), Error> {
    let mut differences = differences(record, now);
    // Of the rest, what is not given stays as it was. An agent that ran here must not be asked elsewhere, nor by other rules.
    for key in [AGENTS, GYM] {
        if let (Some(was), None) = (record.identity.get(key), now.get(key)) {
            differences.push((key.to_owned(), not_given(key, was)));
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = differences.into_iter().map(|(_, text)| text).collect();
    Err(NotResumable {
        place: place.to_owned(),
        difference: texts.join("; "),
    }
    .into())
}

/// Returns whether the run's tasks are written again; an error if the input changes or drops what the run has.
pub(super) async fn check_extension(
    record: &RunRecord,
    now: &Value,
    run: &RunStore,
    spool: &Spool,
) -> Result<bool, Error> {
    let place = run.display("");
    let differences = differences(record, now);
    let others: Vec<String> = differences
        .iter()
        .filter(|(key, _)| !MAY_DIFFER.contains(&key.as_str()))
        .map(|(_, text)| text.clone())
        .collect();
    if !others.is_empty() {
        let difference = format!("--extend adds tasks and repeats, but {}", others.join("; "));
        return Err(NotResumable { place, difference }.into());
    }
    if differences.is_empty() {
        return Ok(false);
    }
    let lost = lost(run, spool).await?;
    if lost.is_empty() {
        return Ok(true);
    }
    let difference = format!("--extend keeps what there is, but {}", lost.join("; "));
    Err(NotResumable { place, difference }.into())
}

row! {
    struct LostTask {
        source_file: String,
        source_line: i64,
        num_repeats: i64,
        num_repeats_now: Option<i64>,
    }
}

/// Describes the tasks and rollouts that the run has and the input no longer asks for.
///
/// # Errors
/// A table can't be read.
pub(super) async fn lost(run: &RunStore, spool: &Spool) -> Result<Vec<String>, Error> {
    let session = SessionContext::new_with_config(session::config());
    let before = RunTables::tasks(run).await?;
    let before = before.table(&session, TASKS).await?;
    session.register_table("tasks_before", before.into_view())?;
    let tasks = RunTables::tasks(spool.store()).await?;
    let tasks = tasks.table(&session, TASKS).await?;
    session.register_table(TASKS, tasks.into_view())?;
    let mut lost = Vec::new();
    let mut tasks = Rows::start(session.sql(EXTENSION).await?, LostTask::rows).await?;
    while let Some(task) = tasks.next().await? {
        let what = match task.num_repeats_now {
            None => "is missing or has changed".to_owned(),
            Some(now) => format!("had {} rollouts and has {now}", task.num_repeats),
        };
        let LostTask {
            source_file,
            source_line,
            ..
        } = task;
        lost.push(format!(
            "the task of {source_file} line {source_line} {what}"
        ));
    }
    Ok(lost)
}
