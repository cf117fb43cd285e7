//! A rollout's row, cut down to what is measured.

use super::error::RowProblem;
use super::keys::{ROLLOUT, TASK};
use crate::gym::GymRules;
use crate::json::{Object, ObjectError};
use crate::request::{AGENT_REF, ENVIRONMENT_SERVER, agent_ref};

/// What a row must have of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseRule {
    /// There must be one.
    Required,
    /// If there is one, it must be an object.
    Optional,
    /// Whatever there is.
    Any,
    /// It does not count, nor do the fields that tell how the answer came about; the usage in it does.
    /// So an aggregation sees the rows.
    Stripped,
}

/// Fields that hold most of an answer's bytes.
const HEAVY: [&str; 4] = [
    "responses_create_params",
    "ng_agent_observations",
    "ng_model_call_capture",
    "ng_trajectory",
];

/// The row without what no metric reads: of the response, the usage is left; of the heavy fields,
/// those that are numbers, unless they are stripped.
///
/// # Errors
/// The response is not what the rule wants.
pub(super) fn reduce(
    row: &Object<'_>,
    rule: ResponseRule,
    rules: &GymRules,
) -> Result<String, RowProblem> {
    let response = row.get("response");
    let object = response.and_then(|response| Object::parse(response).ok());
    let is_there = response.is_some();
    if object.is_none()
        && (rule == ResponseRule::Required || rule == ResponseRule::Optional && is_there)
    {
        return Err(RowProblem::NoResponse);
    }
    let usage = object.as_ref().and_then(|response| response.get("usage"));
    Ok(match rule {
        ResponseRule::Stripped => stripped(row, object.as_ref(), rules),
        ResponseRule::Required | ResponseRule::Optional | ResponseRule::Any => kept(row, usage),
    })
}

fn kept(row: &Object<'_>, usage: Option<&str>) -> String {
    let mut reduced = Fields::default();
    for (name, quoted, value) in row.iter() {
        if name == "response" {
            reduced.add(quoted, &with_usage(usage));
        } else if !HEAVY.contains(&name) || is_small(value) {
            reduced.add(quoted, value);
        }
    }
    reduced.finish()
}

fn stripped(row: &Object<'_>, response: Option<&Object<'_>>, rules: &GymRules) -> String {
    let mut reduced = Fields::default();
    for (name, quoted, value) in row.iter() {
        if name != "response" && !HEAVY.contains(&name) {
            reduced.add(quoted, value);
        }
    }
    let field = |name: &str| {
        let value = response.and_then(|response| response.get(name));
        value.filter(|value| *value != "null")
    };
    let mut shown = Fields::default();
    if let Some(usage) = field("usage").filter(|usage| rules.servers || has_fields(usage)) {
        shown.add("\"usage\"", usage);
    }
    if let Some(details) = field("incomplete_details").filter(|_| rules.servers) {
        shown.add("\"incomplete_details\"", details);
    }
    if !shown.0.is_empty() {
        reduced.add("\"response\"", &shown.finish());
    }
    reduced.finish()
}

/// An answer as NeMo Gym shows it to the server of its agent: stamped, and without what an aggregation
/// does not read. `task_index` is JSON text.
///
/// # Errors
/// The answer is not a JSON object.
pub fn verify_response(
    answer: &str,
    task_index: &str,
    rollout_index: i64,
    agent: &str,
    rules: &GymRules,
) -> Result<String, ObjectError> {
    let mut row = Object::parse(answer)?;
    row.set(TASK, task_index);
    row.set(ROLLOUT, rollout_index.to_string());
    // A rollout of an environment server may have no agent.
    if !row.contains(AGENT_REF) && !row.contains(ENVIRONMENT_SERVER) {
        row.set(AGENT_REF, agent_ref(agent));
    }
    let response = row.get("response").map(Object::parse);
    let response = response.and_then(Result::ok);
    Ok(stripped(&row, response.as_ref(), rules))
}

#[derive(Default)]
struct Fields(String);

impl Fields {
    fn add(&mut self, quoted: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(quoted);
        self.0.push(':');
        self.0.push_str(value);
    }

    fn finish(self) -> String {
        match self.0.is_empty() {
            true => "{}".to_owned(),
            false => self.0 + "}",
        }
    }
}

fn with_usage(usage: Option<&str>) -> String {
    usage.map_or_else(|| "{}".to_owned(), |usage| format!("{{\"usage\":{usage}}}"))
}

fn has_fields(usage: &str) -> bool {
    Object::parse(usage).is_ok_and(|usage| usage.names().next().is_some())
}

fn is_small(value: &str) -> bool {
    !value.starts_with(['{', '[', '"'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gym::{GYM_05, GYM_07};

    fn reduced(row: &str, rule: ResponseRule) -> Result<String, RowProblem> {
        reduce(&Object::parse(row).unwrap(), rule, &GYM_05)
    }

    const ROW: &str = r#"{"a": 1, "response": {"output": [1], "usage": {"t": 2}}, "ng_trajectory": 3,
        "responses_create_params": {}, "kept": "x"}"#;

    #[test]
    fn what_no_metric_reads_is_left_out() {
        assert_eq!(
            reduced(ROW, ResponseRule::Required).unwrap(),
            r#"{"a":1,"response":{"usage":{"t": 2}},"ng_trajectory":3,"kept":"x"}"#
        );
        assert_eq!(
            reduced(ROW, ResponseRule::Stripped).unwrap(),
            r#"{"a":1,"kept":"x","response":{"usage":{"t": 2}}}"#
        );
    }

    #[test]
    fn a_usage_without_fields_is_none() {
        for usage in ["null", "{}", "[]"] {
            let row = format!(r#"{{"response": {{"usage": {usage}}}}}"#);
            assert_eq!(reduced(&row, ResponseRule::Stripped).unwrap(), "{}");
        }
    }

    #[test]
    fn a_server_is_shown_answers_with_their_stamps() {
        let answer = r#"{"_ng_task_index": 7, "a": 1.50, "response": {"usage": {"t": 2}}}"#;
        assert_eq!(
            verify_response(answer, "0", 3, "x", &GYM_05).unwrap(),
            r#"{"_ng_task_index":0,"a":1.50,"_ng_rollout_index":3,"agent_ref":{"name":"x"},"response":{"usage":{"t": 2}}}"#
        );
        let answer = r#"{"agent_ref": {"name": "x", "more": 1}, "response": null}"#;
        assert_eq!(
            verify_response(answer, r#""t""#, 0, "x", &GYM_05).unwrap(),
            r#"{"agent_ref":{"name": "x", "more": 1},"_ng_task_index":"t","_ng_rollout_index":0}"#
        );
        assert!(verify_response("[]", "0", 0, "x", &GYM_05).is_err());
    }

    #[test]
    fn an_environment_server_is_shown_how_an_answer_ended_and_no_agent_that_there_is_not() {
        let answer = r#"{"_ng_environment_server": "e", "response": {"usage": {}, "incomplete_details": {"reason": "x"}}}"#;
        assert_eq!(
            verify_response(answer, "0", 3, "e", &GYM_07).unwrap(),
            r#"{"_ng_environment_server":"e","_ng_task_index":0,"_ng_rollout_index":3,"response":{"usage":{},"incomplete_details":{"reason": "x"}}}"#
        );
    }

    #[test]
    fn a_response_must_be_what_the_rule_wants() {
        use ResponseRule::{Optional, Required, Stripped};
        for (row, required, optional) in [
            ("{}", false, true),
            (r#"{"response": null}"#, false, false),
            (r#"{"response": {}}"#, true, true),
        ] {
            assert_eq!(reduced(row, Required).is_ok(), required, "{row}");
            assert_eq!(reduced(row, Optional).is_ok(), optional, "{row}");
            assert!(reduced(row, Stripped).is_ok(), "{row}");
        }
    }
}
