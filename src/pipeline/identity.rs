use serde_json::{Map, Value, json};

use crate::config::{Routing, Settings};
use crate::error::{Error, Fatal, USAGE};
use crate::gym::GymRules;
use crate::store::{GYM, InputRecord, RunRecord};

/// What decides the requests of agents that run here.
const AGENTS: &str = "agents";

/// The digests of the inputs.
const INPUT: &str = "input";

/// What decides the requests of a sweep. A resume must have the same.
pub(super) fn identity(
    settings: &Settings,
    rules: &GymRules,
    inputs: &[InputRecord],
    prompt: Option<&str>,
) -> Value {
    let digests: Vec<&str> = inputs.iter().map(|input| input.digest.as_str()).collect();
    let mut identity = json!({
        INPUT: digests,
        "limit": settings.limit,
        "agent": settings.agent,
        "num_repeats": settings.num_repeats,
        "num_repeats_add_seed": settings.num_repeats_add_seed,
        "seed_field": settings.seed_field,
        "prompt_config": prompt.map(|text| blake3::hash(text.as_bytes()).to_hex().to_string()),
        "responses_create_params": settings.responses_create_params,
    });
    let native = native(settings);
    if !native.is_empty()
        && let Value::Object(fields) = &mut identity
    {
        fields.insert(AGENTS.to_owned(), native.into());
    }
    if let Some(fields) = identity.as_object_mut() {
        // Only where they are not as by default: older runs have none.
        let routing = Routing::given(settings);
        fields.extend(routing.map(|(key, value)| (key.to_owned(), value)));
    }
    add_rules(&mut identity, rules);
    identity
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
fn native(settings: &Settings) -> Map<String, Value> {
    let agents = settings.agents.iter();
    let agents = agents.filter(|(_, agent)| agent.runs_here());
    let own = agents.map(|(name, agent)| {
        let environments = agent.environments.iter().map(|(name, environment)| {
            let mut environment = environment.clone();
            if let Some(fields) = environment.as_object_mut() {
                fields.remove("url");
            }
            (name.clone(), environment)
        });
        let decisive = json!({
            "kind": agent.kind,
            "model": agent.model,
            "model_api": agent.model_api,
            "resources": agent.resources,
            "max_steps": agent.max_steps,
            "max_turns": agent.max_turns,
            "max_seq_len": agent.max_seq_len,
            "max_new_tokens": agent.max_new_tokens,
            "tokenizer": agent.tokenizer,
            "rules": agent.rules,
            "environments": environments.collect::<Map<_, _>>(),
        });
        (name.clone(), decisive)
    });
    own.collect()
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
        differences.extend(Routing::KEYS.iter().filter_map(|key| {
            let was = before.get(*key).filter(|_| !now.contains_key(*key))?;
            Some(((*key).to_owned(), not_given(key, was)))
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

/// A run that cannot be resumed as it was asked.
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
    Err(NotResumable {
        place: place.to_owned(),
        difference: texts.join("; "),
    }
    .into())
}
