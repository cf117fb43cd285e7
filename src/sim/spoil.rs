//! What a fault does to a good answer of a server: [`spoil`].

use serde_json::{Map, Value, json};

use super::answer::{DEPTH, HUGE_BYTES};
use super::draws::digest;
use super::fault::FaultKind;
use super::filler::append_filler;

/// The answer, one JSON object, as the fault leaves it.
pub(super) fn spoil(kind: FaultKind, body: Vec<u8>) -> Vec<u8> {
    match kind {
        FaultKind::MissingReward => without_reward(&body).0,
        FaultKind::NotANumber => {
            let (body, reward) = without_reward(&body);
            let value: &[u8] = match reward {
                Some(("rewards", _)) => br#""rewards":[NaN]"#,
                _ => br#""reward":NaN"#,
            };
            with(body, value)
        }
        FaultKind::NoPersist => with(body, br#""_ng_no_persist":true"#),
        FaultKind::FailureClass => with(body, br#""_ng_failure_class":"simulated_failure""#),
        FaultKind::FailureTerminal => with(
            body,
            br#""_ng_failure_class":"simulated_failure","_ng_failure_terminal":true"#,
        ),
        FaultKind::InvalidUtf8 => with(body, b"\"note\":\"\xff\""),
        FaultKind::DeepJson => {
            let mut nested = br#""nested":"#.to_vec();
            nested.resize(nested.len() + DEPTH, b'[');
            nested.resize(nested.len() + DEPTH, b']');
            with(body, &nested)
        }
        FaultKind::HugeAnswer => {
            let mut filler = br#""filler":""#.to_vec();
            append_filler(&mut filler, HUGE_BYTES, digest(&body));
            filler.push(b'"');
            with(body, &filler)
        }
        _ => body,
    }
}

/// The object with one more member.
fn with(mut body: Vec<u8>, member: &[u8]) -> Vec<u8> {
    if body.pop().is_some_and(|last| last == b'}') {
        if body.last().is_some_and(|last| *last != b'{') {
            body.push(b',');
        }
        body.extend_from_slice(member);
        body.push(b'}');
    }
    body
}

/// The object without its reward or rewards, and those.
fn without_reward(body: &[u8]) -> (Vec<u8>, Option<(&'static str, Value)>) {
    let mut object: Map<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let mut take = |name: &'static str| Some((name, object.shift_remove(name)?));
    let reward = take("reward").or_else(|| take("rewards"));
    (json!(object).to_string().into_bytes(), reward)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoiled(kind: FaultKind, body: &str) -> Vec<u8> {
        spoil(kind, body.as_bytes().to_vec())
    }

    #[test]
    fn a_reward_is_gone_or_no_number() {
        for (kind, body, left) in [
            (
                FaultKind::MissingReward,
                r#"{"a":1,"reward":1.0}"#,
                r#"{"a":1}"#,
            ),
            (FaultKind::MissingReward, r#"{"rewards":[1.0]}"#, "{}"),
            (
                FaultKind::NotANumber,
                r#"{"a":1,"reward":1.0}"#,
                r#"{"a":1,"reward":NaN}"#,
            ),
            (
                FaultKind::NotANumber,
                r#"{"rewards":[1.0]}"#,
                r#"{"rewards":[NaN]}"#,
            ),
        ] {
            assert_eq!(spoiled(kind, body), left.as_bytes(), "{kind} {body}");
        }
    }

    #[test]
    fn the_rest_of_an_answer_stays() {
        let flagged = spoiled(FaultKind::NoPersist, r#"{"reward":1.0}"#);
        assert_eq!(flagged, br#"{"reward":1.0,"_ng_no_persist":true}"#);
        let huge = spoiled(FaultKind::HugeAnswer, r#"{"reward":1.0}"#);
        assert!(huge.len() > HUGE_BYTES);
        let value: Value = serde_json::from_slice(&huge).unwrap();
        assert_eq!(value["reward"], 1.0);
        let deep = spoiled(FaultKind::DeepJson, r#"{"reward":1.0}"#);
        assert!(deep.len() > 2 * DEPTH && deep.ends_with(b"]}"));
        assert!(std::str::from_utf8(&spoiled(FaultKind::InvalidUtf8, "{}")).is_err());
    }
}
