//! The identities of lines and of tasks, by their content.

use std::hash::{DefaultHasher, Hasher};

use super::lines::Line;
use crate::json::Object;
use crate::request::{ATTEMPT_INDEX, ROLLOUT_INDEX, TASK_INDEX};

/// The fields that number a task and are no part of its content.
const INDICES: [&str; 3] = [TASK_INDEX, ROLLOUT_INDEX, ATTEMPT_INDEX];

/// A row's content, and the digest of that.
pub(super) struct Content {
    /// The row as JSON text without the fields that number it.
    pub text: String,
    /// The first 128 bits of the text's BLAKE3 hash.
    pub digest: [u8; 16],
    /// Whether the row has none of the fields that number it, so that the text is all of it.
    pub is_whole_row: bool,
}

impl Content {
    pub fn of(row: &Object<'_>) -> Self {
        let mut text = String::new();
        row.write_without(&INDICES, &mut text);
        let hash = blake3::hash(text.as_bytes());
        Self {
            digest: hash.as_bytes().first_chunk().copied().unwrap_or_default(),
            is_whole_row: !INDICES.iter().any(|index| row.contains(index)),
            text,
        }
    }

    /// The text of `row`, which has been given `task_index` since: without writing it a second time if it can be
    /// helped.
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

/// What makes a line the same as another: its task's digest, and a hash of its text with its line end, all kinds of
/// which are the same.
///
/// The hash alone would confuse two of many millions of lines; it only has to tell apart those few that are spelled
/// differently and come to the same task.
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
