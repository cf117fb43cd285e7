//! The simulated episode: the model says something, the verifier reads it, and both become a
//! verify response. [`write_answer`] builds its bytes.

use std::io::Write;

use bytes::Bytes;

use super::arithmetic::{ANSWER_MARK, Number, extract_answer};
use super::draws::Draws;
use super::fault::FaultKind;
use super::filler::append_filler;
use super::oracle::Planned;
use super::profile::Profile;
use super::row::Row;

/// When every simulated response was created, in seconds since 1970: answers hold no clock, so
/// that the same request has the same answer at any time.
pub(super) const CREATED_AT: f64 = 1_767_225_600.0;

const OPENINGS: [&str; 4] = [
    "The question gives everything that is needed. Taking the quantities in turn and doing the sum: ",
    "Working through it step by step, and checking the units on the way. ",
    "First what is known, then what is asked, then the calculation. ",
    "Reading it twice, the quantities are clear, and so is what to do with them. ",
];

const REASONING_OPEN: &str =
    r#"{"type":"reasoning","id":"rs_0","summary":[{"type":"summary_text","text":""#;
const REASONING_CLOSE: &str = r#""}]},"#;

/// Size of an answer that is huge, in bytes.
pub(super) const HUGE_BYTES: usize = 40_000_000;

/// How deep the arrays of a deep answer are nested.
pub(super) const DEPTH: usize = 100_000;

/// What the verifier made of what the model said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// The answer that it found.
    pub extracted: Option<Number>,
    /// It is the right one.
    pub correct: bool,
}

/// Writes the verify response to `row`: its fields, then `response`, `reward` and what the
/// verifier adds. As long as the profile's body size wants, by filler in the model's output; longer
/// where the answer does not fit into that.
pub fn write_answer(row: &Row, planned: &Planned, profile: &Profile) -> Bytes {
    let fields = if profile.echo {
        row.fields()
    } else {
        Default::default()
    };
    let tail = tail(row, planned, profile.echo);
    let size = match planned.fault {
        Some(FaultKind::HugeAnswer) => profile.body_size.max(HUGE_BYTES),
        _ => profile.body_size,
    };
    let mut out = Vec::with_capacity(size.max(fields.len() + tail.len() + 256));
    out.push(b'{');
    if !fields.is_empty() {
        out.extend_from_slice(fields.as_bytes());
        out.push(b',');
    }
    append(
        &mut out,
        format_args!(
            r#""response":{{"id":"resp_{:016x}","created_at":{CREATED_AT:?},"model":"rollstream-sim","object":"response","output":["#,
            planned.answer_id
        ),
    );
    let missing = size.saturating_sub(out.len() + tail.len());
    let wrapping = REASONING_OPEN.len() + REASONING_CLOSE.len();
    if missing > wrapping {
        out.extend_from_slice(REASONING_OPEN.as_bytes());
        append_filler(&mut out, missing - wrapping, planned.answer_id);
        out.extend_from_slice(REASONING_CLOSE.as_bytes());
    }
    out.extend_from_slice(&tail);
    Bytes::from(out)
}

/// Everything from the model's message to the end. Its length decides how much filler goes before
/// it, so it is written first.
fn tail(row: &Row, planned: &Planned, echo: bool) -> Vec<u8> {
    let expected = row.expected();
    let said = say(row, planned, expected);
    let verdict = match expected {
        Some(expected) => verify(&said, expected),
        None => Verdict {
            extracted: None,
            correct: planned.correct,
        },
    };
    let Planned {
        input_tokens,
        output_tokens,
        turns,
        fault,
        ..
    } = planned;
    let total_tokens = input_tokens + output_tokens;
    let mut out = Vec::with_capacity(1024);
    append(
        &mut out,
        format_args!(
            r#"{{"id":"msg_0","type":"message","role":"assistant","status":"completed","content":[{{"type":"output_text","text":"{said}"#
        ),
    );
    if *fault == Some(FaultKind::InvalidUtf8) {
        out.push(0xff);
    }
    append(
        &mut out,
        format_args!(
            r#"","annotations":[]}}]}}],"parallel_tool_calls":false,"tool_choice":"auto","tools":[],"usage":{{"input_tokens":{input_tokens},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{output_tokens},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{total_tokens}}}}}"#
        ),
    );
    if *fault == Some(FaultKind::DeepJson) {
        out.extend_from_slice(br#","nested":"#);
        out.resize(out.len() + DEPTH, b'[');
        out.resize(out.len() + DEPTH, b']');
    }
    let reward: &[u8] = match fault {
        Some(FaultKind::MissingReward) => b"",
        Some(FaultKind::NotANumber) => br#","reward":NaN"#,
        _ if verdict.correct => br#","reward":1.0"#,
        _ => br#","reward":0.0"#,
    };
    out.extend_from_slice(reward);
    if let Some(expected) = row.expected_text().filter(|_| !echo) {
        append(&mut out, format_args!(r#","expected_answer":{expected}"#));
    }
    match verdict.extracted {
        Some(number) => append(&mut out, format_args!(r#","extracted_answer":{number}"#)),
        None => out.extend_from_slice(br#","extracted_answer":null"#),
    }
    append(
        &mut out,
        format_args!(r#","accuracy":{},"turns":{turns}"#, verdict.correct),
    );
    let flags: &[u8] = match fault {
        Some(FaultKind::NoPersist) => br#","_ng_no_persist":true"#,
        Some(FaultKind::FailureClass) => br#","_ng_failure_class":"simulated_failure""#,
        Some(FaultKind::FailureTerminal) => {
            br#","_ng_failure_class":"simulated_failure","_ng_failure_terminal":true"#
        }
        _ => b"",
    };
    out.extend_from_slice(flags);
    out.push(b'}');
    out
}

/// What the model says: text that needs no escapes in JSON.
fn say(row: &Row, planned: &Planned, expected: Option<Number>) -> String {
    let draws = Draws::from_state(planned.variation);
    last_words(expected, planned.correct, || row.question(), draws)
}

/// How a model ends that was asked `question`, whose right answer is `right`, where it is known:
/// text that needs no escapes in JSON.
pub(super) fn last_words<'a>(
    right: Option<Number>,
    correct: bool,
    question: impl FnOnce() -> &'a str,
    mut draws: Draws,
) -> String {
    let mut said = String::with_capacity(160);
    said.push_str(OPENINGS.get(draws.below(OPENINGS.len())).unwrap_or(&""));
    match right {
        None => said.push_str("That is all there is to say."),
        Some(right) => {
            let answer = if correct {
                right
            } else {
                right.mistaken(question(), &mut draws)
            };
            said.push_str(ANSWER_MARK);
            said.push_str(&answer.to_string());
            said.push('.');
        }
    }
    said
}

/// Reads the answer in what a model said.
pub(super) fn verify(said: &str, expected: Number) -> Verdict {
    let extracted = extract_answer(said);
    Verdict {
        extracted,
        correct: extracted.is_some_and(|answer| answer.same_as(expected)),
    }
}

/// Appends formatted text.
pub(super) fn append(out: &mut Vec<u8>, text: std::fmt::Arguments) {
    // Writing to memory cannot fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::config::SimConfig;
    use super::super::oracle::{Key, RowDifficulty};
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
        (String::from_utf8(bytes.to_vec()).unwrap(), planned)
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
        let tasks: Vec<&str> = include_str!("../../tests/data/example_tasks.jsonl")
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
}
