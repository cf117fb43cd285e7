//! [`name`]: names that MLflow takes, the same that NeMo Gym gives.

use std::sync::LazyLock;

use regex::Regex;

/// The longest name of a metric, a parameter or a tag, in characters.
const MAX_NAME: usize = 250;

/// Returns the name under which MLflow takes a metric, a parameter or a tag; none if nothing is left of it.
pub(super) fn name(key: &str) -> Option<String> {
    static REFUSED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[^/\w.\- :]").ok());
    let key = key.replace('@', "_at_");
    let key = REFUSED
        .as_ref()
        .map_or(key.clone().into(), |refused| refused.replace_all(&key, "_"));
    let key = normal(&key);
    let length = key.chars().count();
    let key = if length > MAX_NAME {
        // Names differ at their ends: agent and statistic.
        let kept = MAX_NAME - ELISION.len();
        let (head, tail) = (kept - kept / 2, kept / 2);
        let head: String = key.chars().take(head).collect();
        let tail: String = key.chars().skip(length - tail).collect();
        normal(&format!("{head}{ELISION}{tail}"))
    } else {
        key
    };
    (!key.is_empty()).then_some(key)
}

/// Stands for the middle of a name that is too long.
const ELISION: &str = "___";

/// Makes a name a path without empty, `.` and `..` parts, and without dots at its start.
fn normal(key: &str) -> String {
    let parts = key.split('/').filter(|part| !part.is_empty());
    let parts: Vec<String> = parts
        .map(|part| {
            if part.chars().all(|c| c == '.') {
                "_".repeat(part.len())
            } else {
                part.to_owned()
            }
        })
        .collect();
    let joined = parts.join("/");
    let rest = joined.trim_start_matches('.');
    format!("{}{rest}", "_".repeat(joined.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_nemo_gym_gives() {
        for (key, expected) in [
            ("a/pass@1", "a/pass_at_1"),
            ("a.b[0]", "a.b_0_"),
            ("//a//../b/", "a/__/b"),
            ("...x", "___x"),
            ("ä (µ) 50%", "ä _µ_ 50_"),
        ] {
            assert_eq!(name(key).unwrap(), expected);
        }
        assert_eq!(name("//"), None);
        let long = name(&format!("a{}z", "x".repeat(400))).unwrap();
        assert_eq!(long.chars().count(), MAX_NAME);
        assert!(long.starts_with("ax") && long.contains("x___x") && long.ends_with("xz"));
    }
}
