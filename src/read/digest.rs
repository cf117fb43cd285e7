//! The identities of lines and of tasks, by their content.

use super::lines::Line;
use crate::json::Object;
use crate::request::{ATTEMPT_INDEX, ROLLOUT_INDEX, TASK_INDEX};

/// The identity of a line: its text with its line end, all kinds of which are the same.
pub(super) fn line_digest(line: &Line<'_>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(line.text);
    if line.terminated {
        hasher.update(b"\n");
    }
    half(&hasher)
}

/// The identity of a task's content: its fields as they are written, without those that number it.
pub(super) fn task_digest(row: &Object<'_>) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    let content = row
        .iter()
        .filter(|(name, _, _)| ![TASK_INDEX, ROLLOUT_INDEX, ATTEMPT_INDEX].contains(name));
    for (position, (_, quoted, value)) in content.enumerate() {
        hasher.update(if position == 0 { b"{" } else { b"," });
        hasher.update(quoted.as_bytes());
        hasher.update(b":");
        hasher.update(value.as_bytes());
    }
    hasher.update(b"}");
    half(&hasher)
}

/// 128 bits are kept of a hash: with a billion tasks, two share one with a chance below 1e-20.
fn half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    hasher.finalize_xof().fill(&mut half);
    half
}
