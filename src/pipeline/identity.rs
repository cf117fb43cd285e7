use serde_json::{Map, Value};

use crate::config::options::Identity;
use crate::config::{AgentSettings, Routing, Settings};
use crate::error::Error;
use crate::gym::GymRules;
use crate::store::{GYM, InputRecord, RunRecord};

/// What decides the requests of agents that run here.
const AGENTS: &str = "agents";

/// The digests of the inputs.
const INPUT: &str = "input";

/// What decides the requests of a sweep. A resume must have the same. Options say by their declaration whether they are part
/// of it.
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
            // Older runs have none of these.
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

/// Notes the rules that a run follows, where they are not those of all earlier ones.
pub(super) fn add_rules(identity: &mut Value, rules: &GymRules) {
    if let Some(fields) = identity.as_object_mut()
        && rules != GymRules::of(None)
    {
        fields.insert(GYM.to_owned(), rules.version.into());
    }
}

/// What decides the requests of the agents that run here. Where their servers are does not.
fn native(settings: &Settings) -> Option<Value> {
    let agents = settings
        .agents
        .iter()
        .filter(|(_, agent)| agent.runs_here());
    let decisive = agents.map(|(name, agent)| {
        let mut values = serde_json::to_value(agent).unwrap_or_default();
        let environments = values
            .get_mut("environments")
            .and_then(Value::as_object_mut);
        for environment in environments.into_iter().flat_map(Map::values_mut) {
            environment
                .as_object_mut()
                .map(|fields| fields.remove("url"));
        }
        let options = AgentSettings::options().iter();
        let options = options.filter(|option| option.identity != Identity::No);
        let own = options.map(|option| (option.key.to_owned(), values[option.key].take()));
        (name.clone(), own.collect())
    });
    let decisive: Map<String, Value> = decisive.collect();
    (!decisive.is_empty()).then(|| decisive.into())
}

/// What differs between the identity that a run was begun with and that of now, by key.
pub(super) fn differences(record: &RunRecord, now: &Value) -> Vec<(String, String)> {
    let (Value::Object(before), Value::Object(now)) = (&record.identity, now) else {
        return Vec::new();
    };
    let differs = |(key, value): (&String, &Value)| {
        let was = before.get(key).unwrap_or(&Value::Null);
        (was != value).then(|| (key.clone(), format!("'{key}' was {was} and is {value}")))
    };
    let mut differences: Vec<(String, String)> = now.iter().filter_map(differs).collect();
    // With an input, all that decides is given, if only by default.
    if now.contains_key(INPUT) {
        differences.extend(Routing::keys().filter_map(|key| {
            let was = before.get(key).filter(|_| !now.contains_key(key))?;
            Some((key.to_owned(), not_given(key, was)))
        }));
    }
    differences
}

fn not_given(key: &str, was: &Value) -> String {
    format!("'{key}' was {was} and is not given")
}

/// What of the identity the settings say otherwise than the defaults do: what somebody gave who named no input.
pub(super) fn given(settings: &Settings, rules: &GymRules, prompt: Option<&str>) -> Value {
    let mut given = identity(settings, rules, &[], prompt);
    let default = identity(&Settings::default(), GymRules::of(None), &[], None);
    if let Value::Object(fields) = &mut given {
        fields.retain(|key, value| default.get(key) != Some(value));
    }
    given
}

/// Refuses a resume that would send other requests than the run was begun with.
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
    Err(Error::Resume {
        place: place.to_owned(),
        difference: texts.join("; "),
    })
}
