//! Answers, flagged or not, as outcomes of attempts.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;

use super::super::error::{ImportError, RowProblem};
use super::super::keys::{ROLLOUT, RowKey, TASK, TaskKeys};
use super::ledger::Collection;
use super::reading::CollectionRules;
use super::rows::Line;
use crate::call::RolloutKey;
use crate::json::{Object, ObjectError, unquote};
use crate::outcome::{self, AnswerFields, Outcome, Times, Verdict, resume};
use crate::request::ATTEMPT_INDEX;
use crate::retry::{Failure, FailureClass};

/// What came of a line of rollouts.
pub(super) enum Answer {
    First(Box<Outcome>),
    /// An earlier line has its key.
    Again,
    /// Its judge gave no valid answer: it is a failed attempt.
    Failed(Flagged),
    /// No answer: a blank line, or one that is among the failures already.
    Nothing,
}

/// A line of the file of rollouts.
pub(super) fn answer(
    line: &Line<'_>,
    keys: &mut TaskKeys,
    collection: &mut Collection,
    rules: &CollectionRules,
) -> Result<Answer, ImportError> {
    if rules.gym.blank_rollouts && line.text.trim_ascii().is_empty() {
        return Ok(Answer::Nothing);
    }
    let row = line.row()?;
    if rules.retry_invalid_judge_responses && resume::is_judged_invalidly(&row) {
        return match collection.migrated.contains(&migration(&row)) {
            true => Ok(Answer::Nothing),
            false => {
                let text = resume::migrated(&row);
                let line = Line {
                    text: &text,
                    ..*line
                };
                flagged(&line, keys, collection, rules).map(Answer::Failed)
            }
        };
    }
    let key = keys.key(&row).map_err(|problem| line.problem(problem))?;
    let Some(rollout) = collection.planned.get_mut(&key) else {
        return Err(ImportError::UnknownKey {
            path: line.file.to_owned(),
            line: line.number,
            key: key.to_string(),
        });
    };
    collection.answers += 1;
    if std::mem::replace(&mut rollout.is_done, true) {
        return Ok(Answer::Again);
    }
    let stamped = row.get(ATTEMPT_INDEX).and_then(|text| text.parse().ok());
    let attempt = stamped.unwrap_or(rollout.failures.count);
    let verdict = Verdict::Ok(outcome::Answer {
        body: Bytes::copy_from_slice(line.text.as_bytes()),
        fields: fields(line)?,
    });
    if rules.gym.servers {
        collection.note_server(key, &row);
    }
    let outcome = made(key, attempt, collection.agent_of(key), verdict);
    Ok(Answer::First(Box::new(outcome)))
}

/// What came of a line of failures.
pub(super) enum Flagged {
    Attempt(Box<Outcome>),
    /// A failure of a rollout that nobody asked for.
    Foreign,
    /// No failure of any rollout: a blank line, or a row without a key.
    Nothing,
}

/// A line of the file of failures.
pub(super) fn flagged(
    line: &Line<'_>,
    keys: &mut TaskKeys,
    collection: &mut Collection,
    rules: &CollectionRules,
) -> Result<Flagged, ImportError> {
    if line.text.trim_ascii().is_empty() {
        return Ok(Flagged::Nothing);
    }
    let row = match Object::parse(line.text) {
        Ok(row) => row,
        Err(ObjectError::NotAnObject(_)) => return Ok(Flagged::Nothing),
        Err(ObjectError::Syntax(source)) => return Err(line.malformed(source)),
    };
    if !row.contains(TASK) || !row.contains(ROLLOUT) {
        return Ok(Flagged::Nothing);
    }
    // What is of another type than the keys of the inputs is not one of them.
    let Ok(key) = keys.key(&row) else {
        return Ok(Flagged::Nothing);
    };
    if resume::is_migrated(&row) {
        collection.migrated.insert(migration(&row));
    }
    let fields = fields(line)?;
    let class = fields.failure_class.as_deref();
    let terminal = match rules.retry_terminal_timeouts {
        true => resume::is_terminal(class, fields.failure_terminal),
        false => fields.failure_terminal,
    };
    let Some(attempt) = collection.fail(key, terminal) else {
        return Ok(Flagged::Foreign);
    };
    let mut error = match &fields.failure_class {
        Some(class) => format!("the agent reported a failure (_ng_failure_class: {class:?})"),
        None => "the agent reported a failure".to_owned(),
    };
    for part in ["_ng_failure_type", "_ng_failure_message"] {
        if let Some(text) = row.get(part).and_then(unquote) {
            error.push_str(": ");
            error.push_str(&text);
        }
    }
    let status = row.get("_ng_failure_http_status");
    let failure = Failure {
        failure_terminal: fields.failure_terminal,
        answer: Some(Bytes::copy_from_slice(line.text.as_bytes())),
        ..Failure::new(FailureClass::AgentFlagged, error)
    };
    let verdict = Verdict::Failed { failure, terminal };
    let outcome = Outcome {
        http_status: status.and_then(|status| status.parse().ok()),
        ..made(key, attempt, collection.agent_of(key), verdict)
    };
    Ok(Flagged::Attempt(Box::new(outcome)))
}

/// What tells apart the answers that became failures: stage, task, rollout and attempt.
fn migration(row: &Object<'_>) -> [String; 4] {
    ["stage_index", TASK, ROLLOUT, ATTEMPT_INDEX].map(|name| match row.get(name) {
        None | Some("null") => "0".to_owned(),
        Some(value) => value.to_owned(),
    })
}

fn fields(line: &Line<'_>) -> Result<AnswerFields, ImportError> {
    AnswerFields::parse(line.text).map_err(|_| line.problem(RowProblem::NotAnObject))
}

fn made(key: RowKey, attempt: u32, agent_name: &str, verdict: Verdict) -> Outcome {
    let key = RolloutKey::new(key.task_index, key.rollout_index, attempt);
    Outcome {
        times: Times {
            server: Some(Duration::ZERO),
            ..Times::default()
        },
        // The files do not say when. By this instant an export knows an answer that was imported.
        ..Outcome::new(key, agent_name, UNIX_EPOCH, verdict)
    }
}
