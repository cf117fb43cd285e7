//! Rows of tasksets, as environment servers take and answer them: the request of an episode, and the record of a
//! rollout that is made of the answer.

use crate::json::{Object, quote, unquote};
use crate::python::is_truthy;
use crate::request::{ATTEMPT_INDEX, ROLLOUT_ID, ROLLOUT_INDEX, TASK_ID, TASK_INDEX, TASK_INPUT};

/// What the record of a rollout is given.
const RECORDED_TASK_ID: &str = "_ng_task_id";

/// The request of the episode that a row stands for; none where the row is not of a taskset.
///
/// # Errors
/// The row has an id or a number of the attempt that servers do not take.
pub(super) fn request(row: &[u8]) -> Result<Option<String>, String> {
    // Most rows are of no taskset and need no parsing.
    if memchr::memmem::find(row, TASK_INPUT.as_bytes()).is_none() {
        return Ok(None);
    }
    let Some(row) = std::str::from_utf8(row)
        .ok()
        .and_then(|row| Object::parse(row).ok())
    else {
        return Ok(None);
    };
    let Some((task_id, task_input)) = task(&row) else {
        return Ok(None);
    };
    let attempt = row.get(ATTEMPT_INDEX).unwrap_or("0");
    if attempt.parse::<u64>().is_err() {
        return Err(format!("the attempt of an episode cannot be {attempt}"));
    }
    let rollout_id = rollout_id(&row)?;
    Ok(Some(format!(
        "{{\"episode_id\":{{\"rollout_id\":{},\"attempt\":{attempt}}},\"task\":{{\"task_id\":{task_id},\
         \"task_input\":{task_input}}}}}",
        quote(&rollout_id)
    )))
}

/// Identity and content of the task of a taskset.
fn task<'a>(row: &'a Object<'_>) -> Option<(&'a str, &'a str)> {
    let task_id = row.get(TASK_ID)?;
    let taskset = Object::parse(task_id).ok()?;
    let taskset = unquote(taskset.get("taskset")?)?;
    (!taskset.is_empty()).then_some((task_id, row.get(TASK_INPUT)?))
}

/// The id that the row brings, or its numbers. It stands in paths, so that not every text is one.
fn rollout_id(row: &Object<'_>) -> Result<String, String> {
    let text = |name: &str| {
        let value = row.get(name).unwrap_or("null");
        unquote(value).map_or_else(|| value.to_owned(), |text| text.into_owned())
    };
    match row.get(ROLLOUT_ID) {
        None | Some("null") => Ok(format!("{}-{}", text(TASK_INDEX), text(ROLLOUT_INDEX))),
        Some(given) => {
            let id = text(ROLLOUT_ID);
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let begins_well = id.starts_with(|first: char| first.is_ascii_alphanumeric());
            match given.starts_with('"') && begins_well && id.chars().all(is_allowed) {
                true => Ok(id),
                false => Err(format!(
                    "{ROLLOUT_ID} must be a text of letters, digits, dots, dashes and underscores that begins with a \
                     letter or digit, and is {given}"
                )),
            }
        }
    }
}

/// The record of a rollout that the answer to an episode stands for; none where the answer is another one, which is
/// taken as it is.
///
/// # Errors
/// The answer contradicts itself.
pub(super) fn record(answer: &[u8]) -> Result<Option<String>, String> {
    let answer = std::str::from_utf8(answer).ok();
    let Some(answer) = answer.and_then(|answer| Object::parse(answer).ok()) else {
        return Ok(None);
    };
    let is_object = |name: &str| answer.get(name).is_some_and(|value| value.starts_with('{'));
    let (result, failure) = (answer.get("result"), answer.get("failure"));
    if !is_object("episode_id") || !is_object(TASK_ID) || result.or(failure).is_none() {
        return Ok(None);
    }
    let task_id = answer.get(TASK_ID).unwrap_or("null");
    if let Some(failure) = failure.filter(|failure| *failure != "null") {
        let failure = Object::parse(failure)
            .map_err(|_| "the failure of the episode is not an object".to_owned())?;
        return Ok(Some(failed(task_id, &failure)));
    }
    let result = result.map(Object::parse);
    let Some(Ok(mut result)) = result else {
        return Err("the result of the episode is not an object".to_owned());
    };
    let is_reserved = |name: &&str| {
        name.starts_with("_ng_")
            || ["ng_trajectory", "ng_model_call_capture", "ng_perf"].contains(name)
    };
    let reserved: Vec<&str> = result.names().filter(is_reserved).collect();
    if !reserved.is_empty() {
        return Err(format!(
            "the result of the episode has keys that are reserved for the collector: {}",
            reserved.join(", ")
        ));
    }
    result.set(RECORDED_TASK_ID, task_id);
    Ok(Some(result.to_string()))
}

fn failed(task_id: &str, failure: &Object<'_>) -> String {
    let mut record = Object::default();
    let is_terminal = failure.get("terminal").is_some_and(is_truthy);
    record.set(RECORDED_TASK_ID, task_id);
    record.set("_ng_failure_class", "\"environment_server_failed\"");
    record.set("_ng_failure_terminal", is_terminal.to_string());
    let reason = failure.get("failure_reason").unwrap_or("null");
    record.set("_ng_failure_message", reason);
    for (name, value) in [
        ("_ng_failure_stage", failure.get("stage")),
        (
            "_ng_failure_partial_response",
            failure.get("partial_response"),
        ),
    ] {
        if let Some(value) = value.filter(|value| *value != "null") {
            record.set(name, value);
        }
    }
    record.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str =
        r#"{"task_id":{"taskset":"s"},"task_input":[1.0],"_ng_task_index":4,"_ng_rollout_index":2"#;

    #[test]
    fn a_row_of_a_taskset_is_the_request_of_an_episode() {
        let sent = |more: &str| request(format!("{ROW}{more}}}").as_bytes());
        let episode = |id: &str| {
            format!(
                r#"{{"episode_id":{id},"task":{{"task_id":{{"taskset":"s"}},"task_input":[1.0]}}}}"#
            )
        };
        let first = episode(r#"{"rollout_id":"4-2","attempt":0}"#);
        assert_eq!(sent(""), Ok(Some(first)));
        let third = episode(r#"{"rollout_id":"r.1","attempt":3}"#);
        let given = r#","_ng_attempt_index":3,"_ng_rollout_id":"r.1""#;
        assert_eq!(sent(given), Ok(Some(third)));
        assert!(sent(r#","_ng_attempt_index":-1"#).is_err());
        assert!(sent(r#","_ng_rollout_id":"../x""#).is_err());
        assert!(sent(r#","_ng_rollout_id":7"#).is_err());
    }

    #[test]
    fn other_rows_are_sent_as_they_are() {
        for row in [
            r#"{"a":1}"#,
            r#"{"task_id":{"taskset":"s"},"a":"task_input"}"#,
            r#"{"task_id":{"taskset":""},"task_input":1}"#,
            r#"{"task_id":"t","task_input":1}"#,
        ] {
            assert_eq!(request(row.as_bytes()), Ok(None), "{row}");
        }
    }

    #[test]
    fn an_answer_is_the_result_or_the_failure_in_it() {
        let answered = |rest: &str| {
            record(format!(r#"{{"episode_id":{{}},"task_id":{{"task":"t"}},{rest}}}"#).as_bytes())
        };
        assert_eq!(
            answered(r#""failure":null,"result":{"reward":1.50,"x":[1]}"#),
            Ok(Some(
                r#"{"reward":1.50,"x":[1],"_ng_task_id":{"task":"t"}}"#.to_owned()
            ))
        );
        assert_eq!(
            answered(r#""failure":{"failure_reason":"no","terminal":true,"stage":"seed"}"#),
            Ok(Some(
                r#"{"_ng_task_id":{"task":"t"},"_ng_failure_class":"environment_server_failed","_ng_failure_terminal":true,"_ng_failure_message":"no","_ng_failure_stage":"seed"}"#
                    .to_owned()
            ))
        );
        assert_eq!(answered(r#""reward":1"#), Ok(None));
        assert_eq!(record(b"{\"reward\":1}"), Ok(None));
        for wrong in [
            r#""result":1"#,
            r#""failure":"x""#,
            r#""result":{"ng_perf":{}}"#,
        ] {
            assert!(answered(wrong).is_err(), "{wrong}");
        }
    }
}
