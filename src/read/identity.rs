//! Decides which lines are the same task: [`Content`] digests a row, and [`Identity`] numbers tasks and rollouts.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use super::lines::Line;
use crate::json::Object;
use crate::python::{Key, Value};
use crate::request::{ATTEMPT_INDEX, ROLLOUT_INDEX, TASK_INDEX};

/// Task indices from here downwards represent values that are not 64-bit integers.
const STANDING_FOR_OTHERS: i64 = i64::MIN / 2;

/// The tasks seen so far.
#[derive(Default)]
pub(super) struct Identity {
    by_line: HashMap<LineKey, i64>,
    by_value: HashMap<Key, i64>,
    next_rollout: HashMap<i64, i64>,
}

impl Identity {
    /// Returns the task index of a line. Lines are numbered as they first appear.
    pub fn of_line(&mut self, key: LineKey) -> i64 {
        let next = self.by_line.len() as i64;
        *self.by_line.entry(key).or_insert(next)
    }

    /// Returns the index for the row's own value, given as JSON text; `None` for an array or object, which cannot be
    /// an index.
    ///
    /// Integers stay as they are; other values get a number that no row can have.
    pub fn of_value(&mut self, value: &str) -> Option<i64> {
        let given = Value::parse(value)?.into_key()?;
        if let Key::Int(whole) = given
            && let Ok(index) = i64::try_from(whole)
            && index > STANDING_FOR_OTHERS
        {
            return Some(index);
        }
        let next = STANDING_FOR_OTHERS - self.by_value.len() as i64;
        Some(*self.by_value.entry(given).or_insert(next))
    }

    /// Numbers `count` further rollouts of a task; returns the first number.
    pub fn take_rollouts(&mut self, task_index: i64, count: u32) -> i64 {
        let next = self.next_rollout.entry(task_index).or_insert(0);
        let first = *next;
        *next += i64::from(count);
        first
    }
}

/// The fields that number a task and are no part of its content.
const INDICES: [&str; 3] = [TASK_INDEX, ROLLOUT_INDEX, ATTEMPT_INDEX];

/// A row's content and its digest.
pub(super) struct Content {
    /// The row as JSON text without the fields that number it.
    pub text: String,
    /// The first 128 bits of the text's BLAKE3 hash.
    pub digest: [u8; 16],
    /// Whether the row has no index fields, so that `text` is the whole row.
    pub is_whole_row: bool,
}

impl Content {
    pub fn of(row: &Object<'_>) -> Self {
        let mut text = String::new();
        row.write_without(&INDICES, &mut text);
        Self {
            digest: digest(&text),
            is_whole_row: !INDICES.iter().any(|index| row.contains(index)),
            text,
        }
    }

    /// Returns the text of `row`, which now has `task_index`. Reuses the content's text if possible.
    pub fn numbered(self, row: &Object<'_>, task_index: i64) -> String {
        if !self.is_whole_row {
            return row.to_string();
        }
        let mut text = self.text;
        text.pop();
        let comma = if text.ends_with('{') { "" } else { "," };
        text.push_str(&format!("{comma}\"{TASK_INDEX}\":{task_index}}}"));
        text
    }
}

/// Returns the digest of a row's content, which is the same in all lines of a task.
pub fn task_digest(row: &Object<'_>) -> [u8; 16] {
    Content::of(row).digest
}

fn digest(text: &str) -> [u8; 16] {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// The identity of a line: its task's digest, and a hash of its text and of whether a line end follows.
///
/// The hash alone could collide among many millions of lines; it only tells apart the differently spelled lines of a
/// task.
pub(super) type LineKey = ([u8; 16], u64);

pub(super) fn line_key(line: &Line<'_>, task_digest: [u8; 16]) -> LineKey {
    let mut hasher = DefaultHasher::new();
    hasher.write(line.text);
    hasher.write_u8(u8::from(line.terminated));
    (task_digest, hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_as_they_first_appear() {
        let mut identity = Identity::default();
        let indices = [1, 2, 1, 3].map(|hash| identity.of_line(([0; 16], hash)));
        assert_eq!(indices, [0, 1, 0, 2]);
    }

    #[test]
    fn rollouts_go_on_where_the_task_left_off() {
        let mut identity = Identity::default();
        assert_eq!(identity.take_rollouts(7, 2), 0);
        assert_eq!(identity.take_rollouts(8, 1), 0);
        assert_eq!(identity.take_rollouts(7, 3), 2);
        assert_eq!(identity.take_rollouts(7, 1), 5);
    }

    #[test]
    fn values_that_python_holds_equal_are_one_task() {
        let mut identity = Identity::default();
        let mut index = |text: &str| identity.of_value(text).unwrap();
        for same in ["1", "1.0", "true", "1e0"] {
            assert_eq!(index(same), 1, "{same}");
        }
        for same in ["0", "-0", "-0.0", "false", "1e-999"] {
            assert_eq!(index(same), 0, "{same}");
        }
        assert_eq!(index("-5"), -5);
        let big = index("18446744073709551615");
        let groups = [
            vec![big, index("18446744073709551615")],
            vec![
                index("1e19"),
                index("10000000000000000000"),
                index("10000000000000000000.0"),
            ],
            vec![index("null")],
            vec![index("\"1\""), index(r#""\u0031""#)],
            vec![index("1.5"), index("15e-1")],
            vec![index("1e300"), index("1.0e300")],
            vec![index(&STANDING_FOR_OTHERS.to_string())],
            vec![index(&(STANDING_FOR_OTHERS - 1).to_string())],
        ];
        for (position, group) in groups.iter().enumerate() {
            assert!(
                group
                    .iter()
                    .all(|index| *index == group[0] && *index <= STANDING_FOR_OTHERS)
            );
            assert!(groups[..position].iter().all(|other| other[0] != group[0]));
        }
    }

    #[test]
    fn containers_cannot_be_an_index() {
        assert_eq!(Identity::default().of_value("[1]"), None);
        assert_eq!(Identity::default().of_value("{}"), None);
    }

    #[test]
    fn lines_are_the_same_by_their_text_and_line_end() {
        let key = |text: &str, terminated| {
            let line = Line {
                text: text.as_bytes(),
                number: 1,
                terminated,
            };
            line_key(&line, [7; 16])
        };
        assert_eq!(key("{}", true), key("{}", true));
        assert_ne!(key("{}", true), key("{}", false));
        assert_ne!(key("{}", true), key("{ }", true));
    }

    #[test]
    fn content_is_the_row_without_its_numbers() {
        let content = |text: &str| Content::of(&Object::parse(text).unwrap());
        let (plain, numbered) = (
            content(r#"{"a":1, "b":2}"#),
            content(r#"{"a":1,"_ng_task_index":3,"b":2}"#),
        );
        assert_eq!(plain.text, r#"{"a":1,"b":2}"#);
        assert_eq!(plain.digest, numbered.digest);
        assert!(plain.is_whole_row && !numbered.is_whole_row);
        assert_ne!(plain.digest, content(r#"{"a":1,"b":3}"#).digest);
        assert_eq!(
            content(r#"{"a":1}"#).numbered(&Object::default(), 5),
            r#"{"a":1,"_ng_task_index":5}"#
        );
        assert_eq!(
            plain.digest[..2],
            blake3::hash(plain.text.as_bytes()).as_bytes()[..2]
        );
    }
}
