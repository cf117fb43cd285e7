//! The answer of a simulated agent: [`write_answer`] builds the bytes of a verify response.

use std::io::Write;
use std::sync::LazyLock;

use super::super::draws::Draws;
use super::super::fault::FaultKind;
use super::super::plan::{Planned, Profile};
use super::super::verifier::{Verdict, last_words};
use super::bad_answer::HUGE_BYTES;
use super::row::Row;

/// When every simulated response was created, in seconds since 1970. Answers hold no clock, so
/// the same request has the same answer at any time.
pub(crate) const CREATED_AT: f64 = 1_767_225_600.0;

const REASONING_OPEN: &str =
    r#"{"type":"reasoning","id":"rs_0","summary":[{"type":"summary_text","text":""#;
const REASONING_CLOSE: &str = r#""}]},"#;

/// Size of the pool of text that all answers share: larger than the window of a compressor.
const POOL_BYTES: usize = 1 << 20;

const WORDS: &str = "first then so we take add the of to both sides each group total number count \
    share half twice remaining price cost unit per hour minute distance speed because since \
    therefore which gives leaves means check again result sum product difference quotient carry \
    multiply divide subtract round exact estimate compare before after every whole part left over \
    box bag row shelf ticket bottle coin page lap tray crate litre metre gram dollar cent day week \
    month year morning evening train bus baker farmer teacher student garden market school team \
    given known unknown let call it this that value step next now finally write down recall notice";

static POOL: LazyLock<String> = LazyLock::new(|| {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut draws = Draws::from_state(0);
    let mut pool = String::with_capacity(POOL_BYTES + 16);
    while pool.len() < POOL_BYTES {
        match draws.below(12) {
            0 => pool.push_str(&draws.below(1000).to_string()),
            _ => pool.push_str(words.get(draws.below(words.len())).unwrap_or(&"so")),
        }
        pool.push_str(if draws.below(14) == 0 { ". " } else { " " });
    }
    pool.truncate(POOL_BYTES);
    pool
});

/// Appends exactly `len` bytes of text that needs no escapes in JSON. `variation` chooses where in the pool it begins.
pub(crate) fn append_filler(out: &mut Vec<u8>, len: usize, variation: u64) {
    let pool = POOL.as_bytes();
    let mut from = Draws::from_state(variation).below(pool.len());
    let mut left = len;
    while left > 0 {
        let piece = pool.get(from..).unwrap_or(pool);
        let piece = piece.get(..left).unwrap_or(piece);
        out.extend_from_slice(piece);
        left -= piece.len();
        from = 0;
    }
}

/// Begins a verify response: its brace, and the row's fields if they are echoed.
pub(crate) fn begin_answer(row: &Row, profile: &Profile) -> Vec<u8> {
    let mut out = vec![b'{'];
    let fields = row.fields();
    if profile.echo && !fields.is_empty() {
        out.extend_from_slice(fields.as_bytes());
        out.push(b',');
    }
    out
}

/// Writes the verify response to `row`: the row's fields, `response`, `reward`, and what the verifier adds. Filler in the
/// model's output brings it to the profile's body size, unless it is longer already.
pub(crate) fn write_answer(row: &Row, planned: &Planned, profile: &Profile) -> Vec<u8> {
    let mut out = begin_answer(row, profile);
    let tail = tail(row, planned, profile.echo);
    let size = match planned.fault {
        Some(FaultKind::HugeAnswer) => profile.body_size.max(HUGE_BYTES),
        _ => profile.body_size,
    };
    out.reserve(size.saturating_sub(out.len()).max(tail.len() + 256));
    // Writing to memory cannot fail.
    let _ = write!(
        out,
        r#""response":{{"id":"resp_{:016x}","created_at":{CREATED_AT:?},"model":"rollstream-sim","object":"response","output":["#,
        planned.answer_id
    );
    let missing = size.saturating_sub(out.len() + tail.len());
    let wrapping = REASONING_OPEN.len() + REASONING_CLOSE.len();
    if missing > wrapping {
        out.extend_from_slice(REASONING_OPEN.as_bytes());
        append_filler(&mut out, missing - wrapping, planned.answer_id);
        out.extend_from_slice(REASONING_CLOSE.as_bytes());
    }
    out.extend_from_slice(tail.as_bytes());
    out
}

/// Writes everything from the model's message to the end. Its length decides how much filler precedes it.
fn tail(row: &Row, planned: &Planned, echo: bool) -> String {
    let expected = row.expected();
    let draws = Draws::from_state(planned.variation);
    let said = last_words(expected, planned.correct, draws);
    let verdict = Verdict::of(&said, expected, || planned.correct);
    let Planned {
        input_tokens,
        output_tokens,
        turns,
        ..
    } = planned;
    let total_tokens = input_tokens + output_tokens;
    let expected = row.expected_text().filter(|_| !echo);
    let expected = expected.map(|text| format!(r#","expected_answer":{text}"#));
    format!(
        r#"{{"id":"msg_0","type":"message","role":"assistant","status":"completed","content":[{{"type":"output_text","text":"{said}","annotations":[]}}]}}],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"usage":{{"input_tokens":{input_tokens},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{output_tokens},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{total_tokens}}}}},"reward":{:?}{},"extracted_answer":{},"accuracy":{},"turns":{turns}}}"#,
        verdict.reward(),
        expected.unwrap_or_default(),
        verdict.extracted_json(),
        verdict.correct
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::super::config::SimConfig;
    use super::super::super::plan::{Key, RowDifficulty};
    use super::super::super::verifier::ANSWER_MARK;
    use super::super::bad_answer::spoil;
    use super::*;

    const ROW: &str = r#"{"responses_create_params": {"input": [{"role": "user", "content": "3 bags of 14 nuts?"}]}, "expected_answer": 42, "big":123456789012345678901234567890, "dup": 1, "dup": 2, "_ng_task_index": 3}"#;

    fn config() -> SimConfig {
        SimConfig {
            body_size: 0,
            ..SimConfig::default()
        }
    }

    fn answer(config: &SimConfig, row: &str, rollout: u64) -> (String, Planned) {
        let profile = Profile::new(config, "sim");
        let row = Row::parse(row).unwrap();
        let key = Key {
            rollout,
            ..row.key()
        };
        let planned = profile.plan(key, RowDifficulty::Medium);
        let bytes = write_answer(&row, &planned, &profile);
        let bytes = match planned.fault {
            Some(kind) => spoil(kind, bytes),
            None => bytes,
        };
        (String::from_utf8(bytes).unwrap(), planned)
    }

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_verifier_decides_as_the_oracle_planned() {
        let config = config();
        let mut seen = [0, 0];
        for rollout in 0..200 {
            let (text, planned) = answer(&config, ROW, rollout);
            let body = value(&text);
            let said = body["response"]["output"][0]["content"][0]["text"]
                .as_str()
                .unwrap();
            let (_, number) = said.trim_end_matches('.').rsplit_once(' ').unwrap();
            assert_eq!(body["extracted_answer"].to_string(), number);
            assert_eq!(body["reward"], planned.reward);
            assert_eq!(body["accuracy"], planned.correct);
            assert_eq!(number == "42", planned.correct);
            seen[usize::from(planned.correct)] += 1;
        }
        assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
    }

    #[test]
    fn the_example_tasks_are_verified_one_by_one() {
        let tasks: Vec<&str> = include_str!("../../../tests/data/example_tasks.jsonl")
            .lines()
            .collect();
        assert!(tasks.len() >= 40);
        for task in tasks {
            let row = value(task);
            assert!(["easy", "medium", "hard"].contains(&row["difficulty"].as_str().unwrap()));
            for difficulty in [0.0, 1.0] {
                let (text, _) = answer(
                    &SimConfig {
                        difficulty,
                        ..config()
                    },
                    task,
                    0,
                );
                let body = value(&text);
                let right = body["extracted_answer"].as_f64() == row["expected_answer"].as_f64();
                assert_eq!(
                    (right, &body["reward"]),
                    (difficulty == 0.0, &json!(1.0 - difficulty)),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn the_row_comes_first_byte_for_byte() {
        let (text, _) = answer(&config(), ROW, 0);
        let fields = ROW.strip_suffix('}').unwrap();
        assert!(text.starts_with(fields), "{text}");
        assert!(
            text[fields.len()..].starts_with(r#","response":{"id":"resp_"#),
            "{text}"
        );
    }

    #[test]
    fn without_echo_the_answer_still_says_what_was_expected() {
        let (text, _) = answer(
            &SimConfig {
                echo: false,
                ..config()
            },
            ROW,
            0,
        );
        assert!(text.starts_with(r#"{"response""#));
        assert_eq!(value(&text)["expected_answer"], 42);
    }

    #[test]
    fn a_row_without_an_expected_number_is_rewarded_by_the_oracle() {
        for rollout in 0..50 {
            let (text, planned) = answer(&config(), "{}", rollout);
            let body = value(&text);
            assert_eq!(body["reward"], planned.reward);
            assert_eq!(body["extracted_answer"], Value::Null);
        }
    }

    #[test]
    fn filler_brings_the_answer_to_its_size() {
        let (smallest, _) = answer(&config(), ROW, 0);
        for body_size in [smallest.len() + 200, 20_000, 3_000_000] {
            let (text, _) = answer(
                &SimConfig {
                    body_size,
                    ..config()
                },
                ROW,
                0,
            );
            assert_eq!(text.len(), body_size);
            let output = &value(&text)["response"]["output"];
            assert_eq!(output[0]["type"], "reasoning");
            assert_eq!(output[1]["type"], "message");
        }
        let (text, _) = answer(
            &SimConfig {
                body_size: 10,
                ..config()
            },
            ROW,
            0,
        );
        assert_eq!(text, smallest);
    }

    #[test]
    fn usage_is_what_was_planned() {
        let (text, planned) = answer(&config(), ROW, 4);
        let usage = &value(&text)["response"]["usage"];
        assert_eq!(usage["input_tokens"], planned.input_tokens);
        assert_eq!(usage["output_tokens"], planned.output_tokens);
        assert_eq!(
            usage["total_tokens"],
            planned.input_tokens + planned.output_tokens
        );
        assert_eq!(value(&text)["turns"], planned.turns);
    }

    #[test]
    fn flags_are_those_of_the_fault() {
        let with = |kind: &str| {
            let fault_at = vec![format!("3={kind}").parse().unwrap()];
            value(
                &answer(
                    &SimConfig {
                        fault_at,
                        ..config()
                    },
                    ROW,
                    0,
                )
                .0,
            )
        };
        assert!(with("missing_reward").get("reward").is_none());
        assert_eq!(with("no_persist")["_ng_no_persist"], true);
        let class = with("failure_class");
        assert_eq!(class["_ng_failure_class"], "simulated_failure");
        assert!(class.get("_ng_failure_terminal").is_none());
        let terminal = with("failure_terminal");
        assert_eq!(terminal["_ng_failure_class"], "simulated_failure");
        assert_eq!(terminal["_ng_failure_terminal"], json!(true));
        let none = with("slow_first_byte");
        assert!(
            none.as_object()
                .unwrap()
                .keys()
                .all(|key| !key.starts_with("_ng_f"))
        );
        assert!(none["reward"].is_f64());
    }

    #[test]
    fn a_row_that_is_an_answer_already_gets_no_second_reward() {
        let (text, _) = answer(&config(), r#"{"reward": 7, "a": 1, "turns": 99}"#, 0);
        assert_eq!(text.matches("\"reward\"").count(), 1);
        assert!(text.starts_with(r#"{"a":1,"response""#), "{text}");
    }

    fn filler(len: usize, variation: u64) -> String {
        let mut out = Vec::new();
        append_filler(&mut out, len, variation);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn filler_has_the_length_that_was_asked_for() {
        for len in [0, 1, 20_000, POOL_BYTES * 2 + 7] {
            assert_eq!(filler(len, 9).len(), len);
        }
    }

    #[test]
    fn filler_needs_no_escapes_and_holds_no_answer() {
        let text = filler(POOL_BYTES, 1);
        assert_eq!(serde_json::to_string(&text).unwrap().len(), text.len() + 2);
        assert!(!text.contains(ANSWER_MARK));
    }

    #[test]
    fn variations_differ() {
        assert_ne!(filler(50, 1), filler(50, 2));
        assert_eq!(filler(50, 1), filler(50, 1));
    }
}
