use serde_json::{Value, json};

use crate::config::Settings;
use crate::error::Error;
use crate::store::{InputRecord, RunRecord};

/// What decides the requests of a sweep. A resume must have the same.
pub(super) fn identity(settings: &Settings, inputs: &[InputRecord], prompt: Option<&str>) -> Value {
    let digests: Vec<&str> = inputs.iter().map(|input| input.digest.as_str()).collect();
    json!({
        "input": digests,
        "limit": settings.limit,
        "agent": settings.agent,
        "num_repeats": settings.num_repeats,
        "num_repeats_add_seed": settings.num_repeats_add_seed,
        "seed_field": settings.seed_field,
        "prompt_config": prompt.map(|text| blake3::hash(text.as_bytes()).to_hex().to_string()),
        "responses_create_params": settings.responses_create_params,
    })
}

/// Refuses a resume that would send other requests than the run was begun with.
pub(super) fn check(record: &RunRecord, now: &Value, place: &str) -> Result<(), Error> {
    let mut differences = Vec::new();
    if let (Value::Object(before), Value::Object(now)) = (&record.identity, now) {
        for (key, value) in now {
            let was = before.get(key).unwrap_or(&Value::Null);
            if was != value {
                differences.push(format!("'{key}' was {was} and is {value}"));
            }
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(Error::Resume {
        place: place.to_owned(),
        difference: differences.join("; "),
    })
}
