//! A request's row, read no deeper than the simulation needs: [`Row`].

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::arithmetic::Number;
use super::draws::Draws;
use super::oracle::{Key, RowDifficulty};

/// A row, borrowed from the request's text.
#[derive(Debug, Default)]
pub struct Row<'a> {
    task: Option<&'a str>,
    rollout: Option<&'a str>,
    attempt: Option<&'a str>,
    parameters: Option<&'a str>,
    expected: Option<&'a str>,
    difficulty: Option<&'a str>,
    fields: usize,
    /// Holds fields that the answer brings itself, so that the row's own must go.
    collides: bool,
    text: &'a str,
}

/// Fields of the row that mean something here, and those that the answer writes itself.
#[derive(Deserialize)]
#[serde(field_identifier)]
enum Field {
    #[serde(rename = "_ng_task_index")]
    Task,
    #[serde(rename = "_ng_rollout_index")]
    Rollout,
    #[serde(rename = "_ng_attempt_index")]
    Attempt,
    #[serde(rename = "responses_create_params")]
    Parameters,
    #[serde(rename = "expected_answer")]
    Expected,
    #[serde(rename = "difficulty")]
    Difficulty,
    #[serde(
        rename = "response",
        alias = "reward",
        alias = "extracted_answer",
        alias = "accuracy",
        alias = "turns",
        alias = "_ng_no_persist",
        alias = "_ng_failure_class",
        alias = "_ng_failure_terminal"
    )]
    OfAnswer,
    #[serde(other)]
    Other,
}

impl<'a> Row<'a> {
    /// Reads a row.
    ///
    /// # Errors
    /// The text is not one JSON object.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        Ok(Self {
            text,
            ..serde_json::from_str(text)?
        })
    }

    /// Which request this is. Missing rollout and attempt count as 0; a task without index is
    /// known by a digest of its parameters, and an index that is no natural number by a digest of
    /// its text.
    pub fn key(&self) -> Key {
        Key {
            task: self.task.or(self.parameters).map_or(0, index),
            rollout: self.rollout.map_or(0, index),
            attempt: self.attempt.map_or(0, index),
        }
    }

    /// The row says which task it is.
    pub(super) fn is_numbered(&self) -> bool {
        self.task.is_some()
    }

    /// How hard the row says that it is.
    pub fn difficulty(&self) -> RowDifficulty {
        match self.difficulty {
            Some("\"easy\"") => RowDifficulty::Easy,
            Some("\"hard\"") => RowDifficulty::Hard,
            _ => RowDifficulty::Medium,
        }
    }

    /// The right answer, where it is a number, or a number in quotes.
    pub fn expected(&self) -> Option<Number> {
        Number::parse(self.expected?.trim_matches('"'))
    }

    /// The JSON text of the model's input.
    pub fn question(&self) -> &'a str {
        #[derive(Deserialize)]
        struct Parameters<'a> {
            #[serde(borrow)]
            input: &'a RawValue,
        }
        let parameters = self
            .parameters
            .and_then(|text| serde_json::from_str(text).ok());
        parameters.map_or("", |Parameters { input }| input.get())
    }

    /// The row's fields as JSON text without the braces, byte for byte. Fields that the answer
    /// brings itself are left out.
    pub fn fields(&self) -> Cow<'a, str> {
        if self.collides {
            return Cow::Owned(without_fields_of_answer(self.text));
        }
        let inner = self
            .text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'));
        Cow::Borrowed(inner.filter(|_| self.fields > 0).unwrap_or_default())
    }

    /// The right answer as the row writes it.
    pub fn expected_text(&self) -> Option<&'a str> {
        self.expected
    }
}

fn index(text: &str) -> u64 {
    let digest = || {
        let fold = |hash, byte: &u8| Draws::keyed(hash, &[u64::from(*byte)]).next_u64();
        text.as_bytes().iter().fold(0, fold)
    };
    text.parse().unwrap_or_else(|_| digest())
}

fn without_fields_of_answer(text: &str) -> String {
    serde_json::from_str::<Kept>(text)
        .map(|kept| kept.0)
        .unwrap_or_default()
}

impl<'de> Deserialize<'de> for Row<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(RowVisitor)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = Row<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a row, which is a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row<'de>, A::Error> {
        let mut row = Row::default();
        while let Some(field) = map.next_key()? {
            row.fields += 1;
            let slot = match field {
                Field::Task => &mut row.task,
                Field::Rollout => &mut row.rollout,
                Field::Attempt => &mut row.attempt,
                Field::Parameters => &mut row.parameters,
                Field::Expected => &mut row.expected,
                Field::Difficulty => &mut row.difficulty,
                Field::OfAnswer | Field::Other => {
                    row.collides |= matches!(field, Field::OfAnswer);
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *slot = Some(map.next_value::<&RawValue>()?.get());
        }
        Ok(row)
    }
}

/// The fields of a row without those of the answer, as JSON text without braces.
struct Kept(String);

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(KeptVisitor)
    }
}

struct KeptVisitor;

impl<'de> Visitor<'de> for KeptVisitor {
    type Value = Kept;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kept, A::Error> {
        use serde::de::{Error, IntoDeserializer, value};
        let mut kept = String::new();
        while let Some((key, raw)) = map.next_entry::<String, &RawValue>()? {
            let name: value::StrDeserializer<'_, value::Error> = key.as_str().into_deserializer();
            if let Ok(Field::OfAnswer) = Field::deserialize(name) {
                continue;
            }
            if !kept.is_empty() {
                kept.push(',');
            }
            kept.push_str(&serde_json::to_string(&key).map_err(A::Error::custom)?);
            kept.push(':');
            kept.push_str(raw.get());
        }
        Ok(Kept(kept))
    }
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
        assert_eq!(row.expected(), Some(Number::Int(2)));
    }

    #[test]
    fn only_a_number_is_an_expected_answer() {
        let expected = |text: &str| {
            Row::parse(&format!(r#"{{"expected_answer": {text}}}"#))
                .unwrap()
                .expected()
        };
        assert_eq!(expected("42"), Some(Number::Int(42)));
        assert_eq!(expected("-2.5"), Some(Number::Real(-2.5)));
        assert_eq!(expected("\"42\""), Some(Number::Int(42)));
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
