//! `POST /v1/completions`, with a prompt of text or of token ids, and token ids out as vLLM has them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::super::answer::CREATED_AT;
use super::super::draws::{Draws, digest};
use super::super::environments::turn_told;
use super::super::profile::Profile;
use super::super::service::Rejected;
use super::asked::Asked;
use super::chat::Usage;
use super::cut::{End, Stop, first_stop};
use super::policy::Prompt;
use super::service::{room, unreadable, unsupported, written};
use super::vocabulary::{bytes_of, decode, encode};

/// The streams of draws of the tokens of an answer, and of their log-probabilities.
const OF_TOKENS: u64 = 8;
const OF_LOGPROBS: u64 = 9;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default, borrow)]
    model: Option<Cow<'a, str>>,
    prompt: Asked,
    max_tokens: Option<u64>,
    #[serde(default)]
    stop: Stop,
    seed: Option<i64>,
    #[serde(default)]
    return_token_ids: bool,
    logprobs: Option<u64>,
    n: Option<u64>,
    stream: Option<bool>,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Usage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u64,
    text: &'a str,
    finish_reason: &'static str,
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    logprobs: Option<Logprobs>,
}

#[derive(Serialize)]
struct Logprobs {
    text_offset: Vec<usize>,
    token_logprobs: Vec<f64>,
    tokens: Vec<String>,
    top_logprobs: Option<()>,
}

/// Answers a request.
pub(super) fn answer(body: &str, profile: &Profile) -> Result<Vec<u8>, Rejected> {
    let request: Request = serde_json::from_str(body).map_err(unreadable)?;
    if request.stream == Some(true) {
        return Err(unsupported("streams"));
    }
    if request.n.is_some_and(|n| n != 1) {
        return Err(unsupported("second choice: ask again with another seed"));
    }
    let (prompt_ids, text) = match request.prompt {
        Asked::Text(text) => {
            let bytes = text.into_bytes();
            (encode(&bytes, None), bytes)
        }
        Asked::Ids(ids) => {
            let unknown = |id| {
                let message = format!("token id {id} is not in the vocabulary");
                Rejected::openai(message, None)
            };
            let text = decode(&ids).map_err(unknown)?;
            (ids, text)
        }
    };
    let text = String::from_utf8_lossy(&text);
    let ids_digest = prompt_ids.iter().fold(0, |digest, id| {
        Draws::keyed(digest, &[u64::from(*id)]).next_u64()
    });
    let seed = request.seed.map(i64::cast_unsigned);
    let (start, turns) = beginning(&text);
    let prompt = Prompt {
        start,
        digest: ids_digest,
        turns,
        tools: &[],
        parallel: false,
        seed,
    };
    let mut said = prompt.said(profile);
    said.reasoning = None;
    let mut of_tokens = Draws::keyed(said.id, &[OF_TOKENS]);
    let mut ids = encode(said.text.as_bytes(), Some(&mut of_tokens));
    let prompt_tokens = prompt_ids.len() as u64;
    let most = room(profile, prompt_tokens, request.max_tokens)?;
    let end = end_of(&mut ids, &mut said.text, &request.stop, most);
    let logprobs = request.logprobs.map(|_| logprobs(&ids, said.id));
    let completion_tokens = ids.len() as u64;
    written(&Completion {
        id: format!("cmpl-{:016x}", said.id),
        object: "text_completion",
        created: CREATED_AT as u64,
        model: request.model.as_deref().unwrap_or("rollstream-sim"),
        choices: [Choice {
            index: 0,
            text: &said.text,
            finish_reason: end.reason(),
            stop_reason: end.stop_string(),
            token_ids: request.return_token_ids.then_some(&ids),
            prompt_token_ids: request.return_token_ids.then_some(&prompt_ids),
            logprobs,
        }],
        usage: Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        },
    })
}

/// What a prompt begins with, and how often the model has spoken in it. The model knows its own
/// turns by the header that chat templates give them: `assistant` at the beginning of a line or
/// after a mark such as `<|im_start|>`. Where there is none, by what the simulated environment says,
/// and takes the first question for the beginning.
fn beginning(prompt: &str) -> (&str, u64) {
    const HEADER: &str = "assistant";
    let is_header = |at: &usize| {
        let before = prompt
            .get(..*at)
            .and_then(|before| before.chars().next_back());
        before.is_none_or(|c| matches!(c, '\n' | '>' | '|' | '['))
    };
    // What is generated comes after a header of its own.
    let places = memchr::memmem::find_iter(prompt.as_bytes(), HEADER.as_bytes());
    let mut places = places.filter(is_header);
    let told = turn_told(prompt);
    if let Some(first) = places.next() {
        let turns = places.count() as u64;
        return (prompt.get(..first).unwrap_or(prompt), turns.max(told));
    }
    let question = prompt.find(['?', '\n']).map(|at| at + 1);
    let start = question.and_then(|end| prompt.get(..end)).unwrap_or(prompt);
    (start, told)
}

/// Ends the tokens and the text as vLLM does: the text before the stop string, and the tokens with
/// the one that completes it.
fn end_of(ids: &mut Vec<u32>, text: &mut String, stop: &Stop, most: Option<u64>) -> End {
    let most = most.and_then(|most| usize::try_from(most).ok());
    let is_cut = most.is_some_and(|most| most < ids.len());
    let len = |id: &u32| bytes_of(*id).map_or(0, |(_, len)| len);
    if let Some(most) = most.filter(|_| is_cut) {
        ids.truncate(most);
        // What the model says is ASCII, so that any token ends at a character.
        text.truncate(ids.iter().map(len).sum());
    }
    let Some((at, stop)) = first_stop(text.as_bytes(), stop) else {
        return if is_cut { End::Length } else { End::Done };
    };
    let complete = at + stop.len();
    let mut bytes = 0;
    let before = ids.iter().take_while(|id| {
        let goes_on = bytes < complete;
        bytes += len(id);
        goes_on
    });
    let kept = before.count();
    ids.truncate(kept);
    let stop = stop.to_owned();
    text.truncate(at);
    End::Stopped(stop)
}

/// Log-probabilities, made up.
fn logprobs(ids: &[u32], answer: u64) -> Logprobs {
    let mut draws = Draws::keyed(answer, &[OF_LOGPROBS, digest(b"logprobs")]);
    let mut logprobs = Logprobs {
        text_offset: Vec::with_capacity(ids.len()),
        token_logprobs: Vec::with_capacity(ids.len()),
        tokens: Vec::with_capacity(ids.len()),
        top_logprobs: None,
    };
    let mut offset = 0;
    for (bytes, len) in ids.iter().filter_map(|id| bytes_of(*id)) {
        logprobs.text_offset.push(offset);
        offset += len;
        // Three digits after the point travel unharmed through any text.
        let drawn = (draws.unit().ln() * 1000.0).round() / 1000.0;
        logprobs.token_logprobs.push(drawn.min(0.0));
        let token = String::from_utf8_lossy(bytes.get(..len).unwrap_or_default());
        logprobs.tokens.push(token.into_owned());
    }
    logprobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_stays_while_the_conversation_grows() {
        let template = "<|im_start|>user\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n";
        let (start, turns) = beginning(template);
        assert_eq!(turns, 0);
        let longer = format!(
            "{template}Hm.<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(beginning(&longer), (start, 1));

        let plain = "You are a helpful assistant. What is 1 + 2?";
        assert_eq!(beginning(plain), (plain, 0));
        let longer = format!("{plain} Hm. Turn 1: go on. Hm. Turn 2: go on.");
        assert_eq!(beginning(&longer), (plain, 2));
    }

    #[test]
    fn tokens_end_where_the_stop_string_is_complete() {
        let text = "so the end is near";
        for seed in 0..20 {
            let mut ids = encode(text.as_bytes(), Some(&mut Draws::from_state(seed)));
            let mut said = text.to_owned();
            let stop: Stop = serde_json::from_str("\"end i\"").unwrap();
            let end = end_of(&mut ids, &mut said, &stop, None);
            assert_eq!(
                (end, said.as_str()),
                (End::Stopped("end i".into()), "so the ")
            );
            let bytes = decode(&ids).unwrap();
            assert!(
                bytes == b"so the end i" || bytes == b"so the end is",
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn tokens_are_as_many_as_allowed() {
        for seed in 0..20 {
            let mut ids = encode(b"the answer", Some(&mut Draws::from_state(seed)));
            let mut text = "the answer".to_owned();
            assert_eq!(
                end_of(&mut ids, &mut text, &Stop::None, Some(3)),
                End::Length
            );
            assert_eq!(ids.len(), 3);
            assert_eq!(decode(&ids).unwrap(), text.as_bytes());
        }
    }
}
