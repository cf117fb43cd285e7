//! Which rollout a record claims to be, and the order in which verdicts stand.

use crate::json::{quote, unquote};

/// What numbers a task, a rollout or a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Index {
    Whole(i128),
    Text(String),
}

impl Default for Index {
    fn default() -> Self {
        Self::Whole(0)
    }
}

/// What a record says of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Indices {
    pub task: Index,
    pub rollout: Index,
    pub stage: Option<Index>,
}

impl Index {
    /// Reads a JSON text; `None` for what is neither a whole number nor a text.
    pub(super) fn read(text: &str) -> Option<Self> {
        match text {
            "true" => Some(Self::Whole(1)),
            "false" => Some(Self::Whole(0)),
            _ => match unquote(text) {
                Some(text) => Some(Self::Text(text.into_owned())),
                None => text.parse().ok().map(Self::Whole),
            },
        }
    }

    /// As it stands in a file.
    pub(super) fn json(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => quote(text),
        }
    }

    /// As it stands within a text.
    pub(super) fn plain(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }

    /// Appends bytes that sort as indices do: numbers by value, then texts.
    fn write_key(&self, key: &mut Vec<u8>) {
        match self {
            Self::Whole(number) => {
                key.push(0);
                key.extend((number ^ i128::MIN).to_be_bytes());
            }
            Self::Text(text) => {
                key.push(1);
                for byte in text.bytes() {
                    key.push(byte);
                    // So that the end of a text sorts before all that goes on.
                    if byte == 0 {
                        key.push(1);
                    }
                }
                key.extend([0, 0]);
            }
        }
    }
}

/// Bytes that sort as verdicts do, by task, rollout, stage and place, and that no other record has.
pub(super) fn key(indices: &Indices, ordinal: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(64);
    indices.task.write_key(&mut key);
    indices.rollout.write_key(&mut key);
    match &indices.stage {
        Some(stage) => stage.write_key(&mut key),
        // NeMo Gym sorts a record without a stage by Python's name of nothing.
        None => Index::Text("None".to_owned()).write_key(&mut key),
    }
    key.extend(ordinal.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_numbers_by_value_and_before_texts() {
        let sorted = [
            "-9",
            "-1",
            "0",
            "9",
            "10",
            "170141183",
            r#""""#,
            r#""\u0000""#,
            r#""\u0000a""#,
            r#""\u0001""#,
            r#""1""#,
            r#""a""#,
            r#""ab""#,
            r#""é""#,
        ];
        let keys: Vec<Vec<u8>> = sorted
            .iter()
            .map(|text| {
                let task = Index::read(text).unwrap();
                key(
                    &Indices {
                        task,
                        ..Indices::default()
                    },
                    7,
                )
            })
            .collect();
        assert!(keys.is_sorted());
        assert_eq!(Index::read("1.5"), None);
        assert_eq!(Index::read("null"), None);
    }
}
