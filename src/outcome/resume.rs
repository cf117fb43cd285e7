//! Reads the flags in answers of earlier attempts that a resume needs, under NeMo Gym's names.

use std::path::Path;

use crate::json::{Object, quote, unquote};
use crate::python::{self, is_truthy};

/// The class of an answer that its agent flagged as a failure.
pub const FAILURE_CLASS: &str = "_ng_failure_class";
const FAILURE_TERMINAL: &str = "_ng_failure_terminal";
/// The flag of a failure that left a deliverable to judge again, and of the row that asks for that.
pub const REUSE_DELIVERABLE: &str = "reuse_cached_deliverable";
const INVALID_JUDGE: &str = "invalid_judge_response";
const MIGRATED: &str = "_ng_migrated_invalid_judge_response";
const ELAPSED: &str = "elapsed_seconds";

/// The classes that older agents call terminal although another attempt can succeed.
const MENDABLE: [&str; 4] = [
    "timeout_exceeded",
    "reference_missing",
    "eval_missing",
    "transport_ineligible",
];
/// The class of rollouts that cannot be run at all.
const SKIPPED: &str = "skipped";

/// The files that agents leave next to their deliverables.
const NO_DELIVERABLES: [&str; 7] = [
    "finish_params.json",
    "history.json",
    "history.pkl",
    "inprogress_history.json",
    "metadata.json",
    "log.txt",
    "reference_files",
];

/// Returns whether a failure is terminal even for a resume that retries terminal timeouts.
pub fn is_terminal(class: Option<&str>, is_stamped: bool) -> bool {
    match class {
        Some(class) if MENDABLE.contains(&class) => false,
        Some(SKIPPED) => true,
        _ => is_stamped,
    }
}

/// Returns the seconds that an attempt took, as its answer reports them.
pub fn elapsed_seconds(answer: &Object<'_>) -> Option<f64> {
    let nested = || {
        let response = Object::parse(answer.get("response")?).ok()?;
        let metadata = Object::parse(response.get("metadata")?).ok()?;
        python::float(metadata.get(ELAPSED)?)
    };
    let is_positive = |seconds: &f64| *seconds > 0.0;
    let own = answer.get(ELAPSED).and_then(python::float);
    own.filter(is_positive)
        .or_else(|| nested().filter(is_positive))
}

/// Returns whether a failed attempt left a deliverable that the next one only has to get judged.
pub fn reuses_deliverable(answer: &Object<'_>) -> bool {
    answer.get(REUSE_DELIVERABLE).is_some_and(is_truthy)
}

/// Returns whether the judge returned no valid answer.
pub fn is_judged_invalidly(answer: &Object<'_>) -> bool {
    answer.get(INVALID_JUDGE).is_some_and(is_truthy)
}

/// Returns whether an answer that once counted as a rollout was turned into a failed attempt.
pub fn is_migrated(answer: &Object<'_>) -> bool {
    answer.get(MIGRATED).is_some_and(is_truthy)
}

/// Turns an answer whose judge returned no valid answer into a failed attempt, for a resume.
pub fn migrated(answer: &Object<'_>) -> String {
    let mut dropped = vec![FAILURE_TERMINAL];
    let has_deliverable = answer
        .get("deliverables_dir")
        .and_then(unquote)
        .is_some_and(|directory| has_deliverable(Path::new(&*directory)));
    if !has_deliverable {
        dropped.push(REUSE_DELIVERABLE);
    }
    let mut kept = String::new();
    answer.write_without(&dropped, &mut kept);
    let mut failure = Object::parse(&kept).unwrap_or_default();
    if !failure.get(FAILURE_CLASS).is_some_and(is_truthy) {
        failure.set(FAILURE_CLASS, quote("judge_invalid"));
    }
    if has_deliverable {
        failure.set(REUSE_DELIVERABLE, "true");
    }
    failure.set(MIGRATED, "true");
    failure.to_string()
}

fn has_deliverable(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names = entries.filter(|entry| entry.path().is_file());
    names.any(|entry| {
        !NO_DELIVERABLES
            .iter()
            .any(|name| entry.file_name() == *name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Object<'_> {
        Object::parse(text).unwrap()
    }

    #[test]
    fn timeouts_can_be_tried_again_and_what_is_skipped_cannot() {
        for (class, stamped, expected) in [
            (Some("timeout_exceeded"), true, false),
            (Some("eval_missing"), true, false),
            (Some("skipped"), false, true),
            (Some("agent_run_error"), true, true),
            (Some("agent_run_error"), false, false),
            (None, true, true),
        ] {
            assert_eq!(is_terminal(class, stamped), expected, "{class:?}");
        }
    }

    #[test]
    fn the_first_duration_that_is_a_number_above_zero_counts() {
        for (answer, expected) in [
            (r#"{"elapsed_seconds": 5}"#, Some(5.0)),
            (r#"{"elapsed_seconds": " 1_0.5e1 "}"#, Some(105.0)),
            (r#"{"elapsed_seconds": true}"#, Some(1.0)),
            (r#"{"elapsed_seconds": "inf"}"#, Some(f64::INFINITY)),
            (
                r#"{"elapsed_seconds": 0, "response": {"metadata": {"elapsed_seconds": "7"}}}"#,
                Some(7.0),
            ),
            (
                r#"{"elapsed_seconds": [], "response": {"metadata": {"elapsed_seconds": 7}}}"#,
                Some(7.0),
            ),
            (r#"{"elapsed_seconds": "_5"}"#, None),
            (r#"{"elapsed_seconds": "nan"}"#, None),
            (r#"{"elapsed_seconds": -1, "response": null}"#, None),
            (r#"{"response": {"metadata": null}}"#, None),
        ] {
            assert_eq!(elapsed_seconds(&of(answer)), expected, "{answer}");
        }
    }

    #[test]
    fn an_invalid_judgement_becomes_a_failure_that_is_not_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let answer = format!(
            r#"{{"reward":1.0,"invalid_judge_response":1,"_ng_failure_terminal":true,"reuse_cached_deliverable":1,"deliverables_dir":{}}}"#,
            quote(&folder.path().display().to_string())
        );
        assert!(is_judged_invalidly(&of(&answer)));
        let dropped = migrated(&of(&answer));
        assert!(
            dropped.ends_with(
                r#","_ng_failure_class":"judge_invalid","_ng_migrated_invalid_judge_response":true}"#
            ) && !dropped.contains("terminal")
                && !reuses_deliverable(&of(&dropped)),
            "{dropped}"
        );
        std::fs::write(folder.path().join("history.json"), "").unwrap();
        assert!(!reuses_deliverable(&of(&migrated(&of(&answer)))));
        std::fs::write(folder.path().join("report.pdf"), "").unwrap();
        let kept = migrated(&of(&answer));
        assert!(
            reuses_deliverable(&of(&kept)) && is_migrated(&of(&kept)),
            "{kept}"
        );
        let own = migrated(&of(r#"{"_ng_failure_class":"x"}"#));
        assert_eq!(
            own,
            r#"{"_ng_failure_class":"x","_ng_migrated_invalid_judge_response":true}"#
        );
    }
}
