//! The token ids and log probabilities that vLLM gives with an answer, for training.

use serde_json::{Map, Value};

use super::ConversionError;
use super::items::given;

const PROMPT: &str = "prompt_token_ids";
const GENERATION: &str = "generation_token_ids";
const LOG_PROBS: &str = "generation_log_probs";
const EXPERTS: &str = "routed_experts";
const TOKEN_ID: &str = "token_id:";

/// The token fields of an item or message that has all of them.
pub(super) fn of_item(fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut tokens = Map::new();
    for name in [PROMPT, GENERATION, LOG_PROBS] {
        tokens.insert(name.to_owned(), given(fields, name)?.clone());
    }
    if let Some(experts) = given(fields, EXPERTS) {
        tokens.insert(EXPERTS.to_owned(), experts.clone());
    }
    Some(tokens)
}

/// The token fields of a chat answer, under the names that NeMo Gym's items have for them; empty where the server
/// gave none. Those of the message itself go first.
pub(super) fn of_answer(
    completion: &Map<String, Value>,
    choice: &Map<String, Value>,
    message: &Map<String, Value>,
) -> Result<Map<String, Value>, ConversionError> {
    let in_any = |names: &[&str], places: &[&Map<String, Value>]| {
        places
            .iter()
            .find_map(|place| names.iter().find_map(|name| given(place, name)))
            .cloned()
    };
    let prompt = in_any(&[PROMPT], &[message, choice, completion]);
    let generation = in_any(&[GENERATION, "token_ids"], &[message, choice]);
    let log_probs = in_any(&[LOG_PROBS], &[message, choice]).or_else(|| {
        // The ids are what says that somebody wants tokens: log probabilities alone stay with the text.
        (prompt.is_some() || generation.is_some()).then(|| log_probs_of(choice))?
    });
    if prompt.is_none() && generation.is_none() && log_probs.is_none() {
        return Ok(Map::new());
    }
    let missing: Vec<&str> = [
        (PROMPT, prompt.is_none()),
        (GENERATION, generation.is_none()),
        (LOG_PROBS, log_probs.is_none()),
    ]
    .into_iter()
    .filter_map(|(name, is_missing)| is_missing.then_some(name))
    .collect();
    let (Some(prompt), Some(generation), Some(log_probs)) = (prompt, generation, log_probs) else {
        return Err(ConversionError::Completion(format!(
            "has token information without {}: ask for `return_token_ids` and `logprobs` together, or for neither",
            missing.join(" and ")
        )));
    };
    let count = |value: &Value| value.as_array().map(Vec::len);
    if count(&generation) != count(&log_probs) || count(&prompt).is_none() {
        return Err(ConversionError::Completion(
            "has not one log probability for each generated token".to_owned(),
        ));
    }
    let mut tokens = Map::new();
    tokens.insert(PROMPT.to_owned(), prompt);
    tokens.insert(GENERATION.to_owned(), generation);
    tokens.insert(LOG_PROBS.to_owned(), log_probs);
    if let Some(experts) = in_any(&[EXPERTS], &[message, choice]) {
        tokens.insert(EXPERTS.to_owned(), experts);
    }
    Ok(tokens)
}

/// Whether log probabilities name tokens by id: vLLM's way to give ids, of no use to who reads the text.
pub(super) fn are_by_id(log_probs: &Value) -> bool {
    log_probs
        .get(0)
        .and_then(|entry| entry.get("token"))
        .and_then(Value::as_str)
        .is_some_and(|token| token.starts_with(TOKEN_ID))
}

fn log_probs_of(choice: &Map<String, Value>) -> Option<Value> {
    let entries = choice.get("logprobs")?.get("content")?.as_array()?;
    entries
        .iter()
        .map(|entry| {
            entry
                .get("logprob")
                .filter(|value| value.is_number())
                .cloned()
        })
        .collect()
}
