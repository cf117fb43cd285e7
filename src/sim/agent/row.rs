//! The row of a request, read no deeper than the simulation needs: [`Row`].

use std::borrow::Cow;

use indexmap::IndexMap;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::draws::Draws;
use super::super::plan::{Key, RowDifficulty};
use super::super::verifier::number;

/// Fields that an answer writes itself.
const ANSWER_FIELDS: [&str; 8] = [
    "response",
    "reward",
    "extracted_answer",
    "accuracy",
    "turns",
    "_ng_no_persist",
    "_ng_failure_class",
    "_ng_failure_terminal",
];

const TASK_INDEX: &str = "_ng_task_index";

/// A row, borrowed from the text of the request.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    text: &'a str,
    fields: IndexMap<String, &'a RawValue>,
}

impl<'a> Row<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        let fields = serde_json::from_str(text)?;
        Ok(Self { text, fields })
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.fields.get(name).map(|value| value.get())
    }

    /// Names the request. A missing rollout or attempt counts as 0. A task without index is
    /// identified by a hash of its parameters, and an index that is not a natural number by a hash of its text.
    pub(crate) fn key(&self) -> Key {
        let task = self.get(TASK_INDEX);
        let task = task.or_else(|| self.get("responses_create_params"));
        // A trainer that follows NeMo RL numbers rows so.
        let rollout = self.get("_ng_rollout_index");
        let rollout = rollout.or_else(|| self.get("_rowidx"));
        Key {
            task: task.map_or(0, index),
            rollout: rollout.map_or(0, index),
            attempt: self.get("_ng_attempt_index").map_or(0, index),
        }
    }

    /// Whether the row has a task index.
    pub(crate) fn is_numbered(&self) -> bool {
        self.fields.contains_key(TASK_INDEX)
    }

    /// Returns how hard the row says that it is.
    pub(crate) fn difficulty(&self) -> RowDifficulty {
        match self.get("difficulty") {
            Some("\"easy\"") => RowDifficulty::Easy,
            Some("\"hard\"") => RowDifficulty::Hard,
            _ => RowDifficulty::Medium,
        }
    }

    /// Returns the right answer, if it is a number, or a number in quotes.
    pub(crate) fn expected(&self) -> Option<f64> {
        number(self.expected_text()?.trim_matches('"'))
    }

    /// Returns the right answer as the row writes it.
    pub(crate) fn expected_text(&self) -> Option<&'a str> {
        self.get("expected_answer")
    }

    /// Returns the JSON text of the response that a row may have.
    pub(crate) fn response(&self) -> Option<&'a str> {
        self.get("response")
    }

    /// Returns the row's fields as JSON text without the braces, byte for byte. If some of them are fields that the
    /// answer writes itself, those are left out.
    pub(crate) fn fields(&self) -> Cow<'a, str> {
        let is_of_answer = |name: &&String| ANSWER_FIELDS.contains(&name.as_str());
        if self.fields.keys().any(|name| is_of_answer(&name)) {
            let kept = self.fields.iter().filter(|(name, _)| !is_of_answer(name));
            let kept = kept.map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
            return Cow::Owned(kept.collect::<Vec<_>>().join(","));
        }
        if self.fields.is_empty() {
            return Cow::Borrowed("");
        }
        let inner = self.text.strip_prefix('{');
        Cow::Borrowed(inner.and_then(|text| text.strip_suffix('}')).unwrap_or(""))
    }
}

fn index(text: &str) -> u64 {
    let hash = || {
        let fold = |hash, byte: &u8| Draws::keyed(hash, &[u64::from(*byte)]).next_u64();
        text.as_bytes().iter().fold(0, fold)
    };
    text.parse().unwrap_or_else(|_| hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_known_by_its_indices() {
        let key = |text: &str| Row::parse(text).unwrap().key();
        let full = r#"{"_ng_task_index": 3, "_ng_rollout_index": 2, "_ng_attempt_index": 1}"#;
        assert_eq!(
            key(full),
            Key {
                task: 3,
                rollout: 2,
                attempt: 1
            }
        );
        assert_eq!(
            key("{}"),
            Key {
                task: 0,
                rollout: 0,
                attempt: 0
            }
        );
        let text = |index: &str| key(&format!(r#"{{"_ng_task_index": {index}}}"#)).task;
        assert_ne!(text("\"x\""), text("\"y\""));
        assert_ne!(text("-1"), text("1"));
        let prompt = |input: &str| {
            key(&format!(
                r#"{{"responses_create_params": {{"input": "{input}"}}}}"#
            ))
        };
        assert_ne!(prompt("a").task, prompt("b").task);
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let row = Row::parse(r#"{"expected_answer": 1, "expected_answer": 2}"#).unwrap();
        assert_eq!(row.expected(), Some(2.0));
    }

    #[test]
    fn only_a_number_is_an_expected_answer() {
        let expected = |text: &str| {
            Row::parse(&format!(r#"{{"expected_answer": {text}}}"#))
                .unwrap()
                .expected()
        };
        assert_eq!(expected("42"), Some(42.0));
        assert_eq!(expected("-2.5"), Some(-2.5));
        assert_eq!(expected("\"42\""), Some(42.0));
        for text in ["\"forty-two\"", "null", "true", "[42]", "1e999", "\"\""] {
            assert_eq!(expected(text), None, "{text}");
        }
    }

    #[test]
    fn the_fields_are_the_rows_own_bytes() {
        let text =
            "{\"b\": 1.0, \"a\":12345678901234567890123,\"b\" :\"\\u00e9 \u{e9}\", \"c\":{ }}";
        assert_eq!(
            format!(
                "{{{}}}",
                Row::parse(&format!(" {text}\n")).unwrap().fields()
            ),
            text
        );
        assert_eq!(Row::parse("{ }").unwrap().fields(), "");
    }

    #[test]
    fn fields_of_the_answer_are_left_out() {
        let row =
            Row::parse(r#"{"reward": 9, "a": 1.50, "response": {"x": []}, "q\"": [ 1 ]}"#).unwrap();
        assert_eq!(row.fields(), r#""a":1.50,"q\"":[ 1 ]"#);
        assert_eq!(Row::parse(r#"{"turns": 1}"#).unwrap().fields(), "");
    }

    #[test]
    fn what_is_not_one_object_is_an_error() {
        for text in ["", "[]", "3", "{", "{}{}", "{\"a\": nope}"] {
            assert!(Row::parse(text).is_err(), "{text}");
        }
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(Row::parse(&deep).is_ok());
    }
}
