//! `POST /v1/completions`, with a prompt of text or of token ids. It returns token ids as vLLM does. A byte is a token
//! with its own value as id, and some pairs of bytes are tokens too, so a text has several tokenisations.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::agent::CREATED_AT;
use super::super::draws::{Draws, digest};
use super::super::environments::last_turn;
use super::super::plan::Profile;
use super::super::server::service::Rejected;
use super::conversation::Conversation;
use super::policy::{End, Prompt, Stop, cut};
use super::{MODEL_NAME, check_choices, remaining_context, unreadable, usage};

/// The streams of draws of the tokens of an answer, and of their log-probabilities.
const OF_TOKENS: u64 = 8;
const OF_LOGPROBS: u64 = 9;

#[derive(Deserialize)]
struct Request {
    model: Option<String>,
    prompt: PromptText,
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

/// A prompt: text or token ids, or a list of one of them.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a prompt of text or token ids, one at a time"
)]
enum PromptText {
    Text(String),
    Ids(Vec<u32>),
    One([Box<Self>; 1]),
}

impl PromptText {
    /// Returns the ids and the bytes of the prompt.
    fn tokens(self) -> Result<(Vec<u32>, Vec<u8>), Rejected> {
        match self {
            Self::Text(text) => Ok((encode(text.as_bytes(), None), text.into_bytes())),
            Self::Ids(ids) => match decode(&ids) {
                Ok(text) => Ok((ids, text)),
                Err(id) => {
                    let message = format!("token id {id} is not in the vocabulary");
                    Err(Rejected::openai(message, None))
                }
            },
            Self::One([prompt]) => prompt.tokens(),
        }
    }
}

pub(super) fn answer(body: &str, profile: &Profile) -> Result<Value, Rejected> {
    let request: Request = serde_json::from_str(body).map_err(unreadable)?;
    check_choices(request.stream, request.n)?;
    let (prompt_ids, text) = request.prompt.tokens()?;
    let text = String::from_utf8_lossy(&text);
    let ids_digest = prompt_ids.iter().fold(0, |digest, id| {
        Draws::keyed(digest, &[u64::from(*id)]).next_u64()
    });
    let (start, turns) = beginning(&text);
    let prompt_tokens = prompt_ids.len() as u64;
    let prompt = Prompt {
        conversation: Conversation {
            start,
            digest: ids_digest,
            turns,
            tokens: prompt_tokens,
        },
        tools: &[],
        parallel: false,
        seed: request.seed.map(i64::cast_unsigned),
    };
    let mut said = prompt.said(profile);
    let mut of_tokens = Draws::keyed(said.id, &[OF_TOKENS]);
    let mut ids = encode(said.text.as_bytes(), Some(&mut of_tokens));
    let most = remaining_context(profile, prompt_tokens, request.max_tokens)?;
    let end = end_of(&mut ids, &mut said.text, &request.stop, most);
    let mut choice = json!({
        "index": 0,
        "text": said.text,
        "finish_reason": end.reason(),
        "stop_reason": end.stop_string(),
    });
    if request.return_token_ids {
        choice["token_ids"] = json!(ids);
        choice["prompt_token_ids"] = json!(prompt_ids);
    }
    choice["logprobs"] = json!(request.logprobs.map(|_| logprobs(&ids, said.id)));
    Ok(json!({
        "id": format!("cmpl-{:016x}", said.id),
        "object": "text_completion",
        "created": CREATED_AT as u64,
        "model": request.model.as_deref().unwrap_or(MODEL_NAME),
        "choices": [choice],
        "usage": usage(prompt_tokens, ids.len() as u64),
    }))
}

/// Returns the beginning of a prompt, and how often the model has spoken in it. The model finds its turns by the header
/// of chat templates: `assistant` at the beginning of a line or after a mark such as `<|im_start|>`. If there is none, it
/// looks for the turns that the simulated environment mentions, and the beginning is the first question.
fn beginning(prompt: &str) -> (&str, u64) {
    const HEADER: &str = "assistant";
    let is_header = |at: &usize| {
        let before = prompt
            .get(..*at)
            .and_then(|before| before.chars().next_back());
        before.is_none_or(|c| matches!(c, '\n' | '>' | '|' | '['))
    };
    // The turn to come has a header of its own.
    let places = memchr::memmem::find_iter(prompt.as_bytes(), HEADER.as_bytes());
    let mut places = places.filter(is_header);
    let told = last_turn(prompt);
    if let Some(first) = places.next() {
        let turns = places.count() as u64;
        return (prompt.get(..first).unwrap_or(prompt), turns.max(told));
    }
    let question = prompt.find(['?', '\n']).map(|at| at + 1);
    let start = question.and_then(|end| prompt.get(..end)).unwrap_or(prompt);
    (start, told)
}

/// Cuts the tokens and the text as vLLM does: the text before the stop string, and the tokens after the one that
/// completes it.
fn end_of(ids: &mut Vec<u32>, text: &mut String, stop: &Stop, most: Option<u64>) -> End {
    let len = |id: &u32| bytes_of(*id).map_or(0, <[u8]>::len);
    let most = most.and_then(|most| usize::try_from(most).ok());
    let kept = most.filter(|most| *most < ids.len());
    // The text is ASCII, so every token ends at a character.
    let limit = kept.map(|kept| ids.iter().take(kept).map(len).sum());
    let end = cut(text, stop, limit);
    let complete = text.len() + end.stop_string().map_or(0, str::len);
    let mut bytes = 0;
    let before = ids.iter().take_while(|id| {
        let goes_on = bytes < complete;
        bytes += len(id);
        goes_on
    });
    ids.truncate(before.count());
    end
}

/// Makes up the log-probabilities of tokens.
fn logprobs(ids: &[u32], answer: u64) -> Value {
    let mut draws = Draws::keyed(answer, &[OF_LOGPROBS, digest(b"logprobs")]);
    // Three digits after the point survive any text format.
    let logprob = |_: &u32| ((draws.unit().ln() * 1000.0).round() / 1000.0).min(0.0);
    let logprobs: Vec<f64> = ids.iter().map(logprob).collect();
    json!({ "token_logprobs": logprobs, "top_logprobs": null })
}

/// Pairs of bytes that are tokens, from id 256.
const PAIRS: &[&[u8; 2]] = &[
    b"th", b"he", b"in", b"er", b"an", b"re", b"on", b"at", b"en", b"nd", b"ti", b"es", b"or",
    b"te", b"of", b"ed", b"is", b"it", b"al", b"ar", b"st", b"to", b"nt", b"ng", b"se", b"ha",
    b"as", b"ou", b"io", b"le", b"ve", b"co", b"me", b"de", b"hi", b"ri", b"ro", b"ic", b"ne",
    b"ea", b"ra", b"ce", b"e ", b"s ", b"t ", b"d ", b" t", b" a", b" i", b" s", b" w", b"Th",
    b"sw", b"we", b". ", b", ", b"12", b"10", b"20", b"00", b"42", b"ow", b"  ", b"\n\n",
];

/// The first id that is a pair.
const FIRST_PAIR: u32 = 256;

static IDS: LazyLock<HashMap<[u8; 2], u32>> =
    LazyLock::new(|| PAIRS.iter().map(|pair| **pair).zip(FIRST_PAIR..).collect());

/// Tokenises a text from left to right. With `draws`, a pair of bytes becomes one token
/// or two by chance; without, always one.
fn encode(text: &[u8], mut draws: Option<&mut Draws>) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let pair = after.first().and_then(|second| IDS.get(&[*first, *second]));
        let merged = pair.filter(|_| {
            let draws = draws.as_mut();
            draws.is_none_or(|draws| draws.below(2) == 0)
        });
        ids.push(merged.copied().unwrap_or(u32::from(*first)));
        rest = match merged {
            Some(_) => after.get(1..).unwrap_or_default(),
            None => after,
        };
    }
    ids
}

/// Returns the bytes of a token; none if there is no such token.
fn bytes_of(id: u32) -> Option<&'static [u8]> {
    static TOKENS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        bytes
            .chain(PAIRS.iter().map(|pair| pair.to_vec()))
            .collect()
    });
    TOKENS.get(usize::try_from(id).ok()?).map(Vec::as_slice)
}

/// Returns the bytes of tokens.
///
/// # Errors
/// The first id that is not a token.
fn decode(ids: &[u32]) -> Result<Vec<u8>, u32> {
    let bytes = ids.iter().map(|id| bytes_of(*id).ok_or(*id));
    Ok(bytes.collect::<Result<Vec<_>, _>>()?.concat())
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

    fn prompt(json: &str) -> Option<PromptText> {
        let prompt = serde_json::from_str(json).ok()?;
        match prompt {
            PromptText::One([prompt]) => Some(*prompt),
            prompt => Some(prompt),
        }
    }

    #[test]
    fn a_prompt_is_text_or_ids_and_may_be_in_a_list() {
        let ids = || Some(PromptText::Ids(vec![7, 300]));
        assert_eq!(prompt("[7, 300]"), ids());
        assert_eq!(prompt("[[7, 300]]"), ids());
        let text = || Some(PromptText::Text("a\nb".into()));
        assert_eq!(prompt(r#""a\nb""#), text());
        assert_eq!(prompt(r#"["a\nb"]"#), text());
        assert_eq!(prompt("[]"), Some(PromptText::Ids(Vec::new())));
        for json in [
            "7",
            r#"["a", "b"]"#,
            "[[7], [8]]",
            "[7, \"a\"]",
            "[-1]",
            "{}",
            "null",
        ] {
            assert_eq!(prompt(json), None, "{json}");
        }
    }

    const TEXT: &str = "Therefore the answer is 42. \u{e9}\u{1f980}";

    #[test]
    fn a_text_has_several_tokenisations_and_all_mean_the_same() {
        let tokenisations: std::collections::BTreeSet<Vec<u32>> = (0..20)
            .map(|seed| encode(TEXT.as_bytes(), Some(&mut Draws::from_state(seed))))
            .chain([encode(TEXT.as_bytes(), None)])
            .collect();
        assert!(tokenisations.len() > 15);
        for ids in tokenisations {
            assert_eq!(decode(&ids).unwrap(), TEXT.as_bytes());
            assert!(ids.iter().any(|id| *id >= FIRST_PAIR));
        }
    }

    #[test]
    fn every_token_has_bytes_and_no_other_id_has() {
        let count = FIRST_PAIR + PAIRS.len() as u32;
        for id in 0..count {
            assert!(!bytes_of(id).unwrap().is_empty());
        }
        assert_eq!(decode(&[65, count, 66]), Err(count));
        assert_eq!(IDS.len(), PAIRS.len(), "no pair is there twice");
    }
}
