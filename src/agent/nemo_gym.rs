use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::HeaderMap;

use super::{Agent, AgentError, Answer, Needs, Reply, RolloutRequest, Wording, judge};
use crate::call::Target;
use crate::gym::GymRules;
use crate::http::{Call, Holder, HttpClients, headers_that_matter, with_connect_time};
use crate::json::{Object, quote, unquote};
use crate::python::is_truthy;
use crate::request::{ATTEMPT_INDEX, ROLLOUT_ID, ROLLOUT_INDEX, TASK_ID, TASK_INDEX, TASK_INPUT};
use crate::retry::{Failure, FailureClass};

/// An agent server of NeMo Gym: `POST /run` with the row returns the verify response.
#[derive(Debug)]
pub struct NemoGymAgent {
    run: Target,
    rules: &'static GymRules,
}

impl NemoGymAgent {
    /// Creates the agent at `base`, which follows these rules; `headers` go with every request.
    ///
    /// # Errors
    /// The address can't be used.
    pub fn new(
        name: &str,
        base: &str,
        headers: HeaderMap,
        http: HttpClients,
        rules: &'static GymRules,
    ) -> Result<Self, AgentError> {
        let server = Target::new(base, headers, http);
        let server = server.map_err(|reason| AgentError::Address {
            agent: name.to_owned(),
            url: base.to_owned(),
            reason,
        })?;
        Ok(Self {
            run: server.at("run"),
            rules,
        })
    }

    async fn call(&self, request: RolloutRequest, call: &Call<'_>) -> Reply {
        let needs = if request.as_given {
            Needs::Nothing
        } else if self.rules.unscored {
            Needs::NoFlag
        } else {
            Needs::Reward
        };
        let mut body = request.body;
        let mut is_episode = false;
        if self.rules.routing {
            match episode_request(&body) {
                Ok(Some(episode)) => (body, is_episode) = (Bytes::from(episode), true),
                Ok(None) => {}
                Err(why) => return Reply::new(Err(call.failure(FailureClass::Data, &why))),
            }
        }
        let run = self.run.destination();
        let posted = run.post(run.headers(), &body, call);
        let response = match posted.await {
            Ok(response) => response,
            Err(failure) => {
                return Reply {
                    elapsed: call.began.elapsed(),
                    ..Reply::new(Err(failure))
                };
            }
        };
        let first_byte = call.began.elapsed();
        let status = response.status().as_u16();
        let headers = headers_that_matter(response.headers());
        let body = match status {
            200 => run.http().body(response, Holder::Lander, call).await,
            _ => Err(Box::pin(call.status_error(response)).await),
        };
        // The time after this is our own, and not the server's.
        let elapsed = call.began.elapsed();
        Reply {
            http_status: Some(status),
            headers,
            first_byte: Some(first_byte),
            elapsed,
            ..Reply::new(body.and_then(|body| {
                let body = if is_episode {
                    record(body, call)?
                } else {
                    body
                };
                judge_call(body, needs, call)
            }))
        }
    }
}

#[async_trait]
impl Agent for NemoGymAgent {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let call = self.run.call();
        let (reply, connect) = with_connect_time(self.call(request, &call)).await;
        Reply { connect, ..reply }
    }

    fn address(&self) -> &str {
        self.run.address().trim_end_matches("/run")
    }
}

/// Converts the answer to an episode into the record of a rollout.
fn record(body: Bytes, call: &Call<'_>) -> Result<Bytes, Failure> {
    match episode_record(&body) {
        Ok(Some(record)) => Ok(Bytes::from(record)),
        Ok(None) => Ok(body),
        Err(why) => Err(call.failure(FailureClass::Data, &why)),
    }
}

fn judge_call(body: Bytes, needs: Needs, call: &Call<'_>) -> Result<Answer, Failure> {
    judge(
        body,
        needs,
        &Wording {
            failure: &|class, why| call.failure(class, why),
            quote: &|body| call.quote(body),
            shown: &|text| call.secrets.shown(text),
        },
    )
}

/// The field of a record that holds the id of its task.
const RECORDED_TASK_ID: &str = "_ng_task_id";

/// Returns the request of the episode that a row stands for; none if the row is not from a taskset.
///
/// # Errors
/// The row has an id or a number of the attempt that servers do not take.
fn episode_request(row: &[u8]) -> Result<Option<String>, String> {
    // Most rows belong to no taskset and need no parsing.
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

/// Returns the identity and the content of the task of a taskset.
fn task<'a>(row: &'a Object<'_>) -> Option<(&'a str, &'a str)> {
    let task_id = row.get(TASK_ID)?;
    let taskset = Object::parse(task_id).ok()?;
    let taskset = unquote(taskset.get("taskset")?)?;
    (!taskset.is_empty()).then_some((task_id, row.get(TASK_INPUT)?))
}

/// Returns the row's own id, or its indices. The id becomes part of a path, so not every text is allowed.
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
            if given.starts_with('"') && begins_well && id.chars().all(is_allowed) {
                return Ok(id);
            }
            Err(format!(
                "{ROLLOUT_ID} must be a text of letters, digits, dots, dashes and underscores that begins with a \
                 letter or digit, and is {given}"
            ))
        }
    }
}

/// Returns the record of a rollout for the answer to an episode; none if the answer has another form and is
/// kept as it is.
///
/// # Errors
/// The answer contradicts itself.
fn episode_record(answer: &[u8]) -> Result<Option<String>, String> {
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
    use reqwest::header::HeaderValue;

    use std::time::Instant;

    use super::*;
    use crate::http::Secrets;

    fn class_of(body: &[u8]) -> Option<(FailureClass, bool)> {
        let call = Call {
            what: "POST http://a/run",
            began: Instant::now(),
            secrets: &Secrets::default(),
        };
        judge_call(Bytes::copy_from_slice(body), Needs::Reward, &call)
            .err()
            .map(|failure| (failure.class, failure.failure_terminal))
    }

    #[test]
    fn a_secret_that_is_repeated_is_not_quoted() {
        let mut headers = HeaderMap::new();
        let mut token = HeaderValue::from_static("Bearer hunter2hunter2");
        token.set_sensitive(true);
        headers.insert("authorization", token);
        let call = Call {
            what: "POST http://a/run",
            began: Instant::now(),
            secrets: &Secrets::of(&headers),
        };
        let body = Bytes::from_static(b"invalid key hunter2hunter2 (Bearer hunter2hunter2)");
        let failure = judge_call(body, Needs::Reward, &call).unwrap_err();
        assert!(!failure.message.contains("hunter2"), "{failure:?}");
        assert!(failure.message.contains("invalid key ****"), "{failure:?}");
    }

    #[test]
    fn answers_are_judged_by_the_contract() {
        assert_eq!(class_of(br#"{"reward": 1}"#), None);
        assert_eq!(class_of(b"<html>"), Some((FailureClass::Data, false)));
        assert_eq!(class_of(b"\xff{}"), Some((FailureClass::Data, false)));
        let deep = format!(
            r#"{{"reward": 1, "x": {}{}}}"#,
            "[".repeat(9999),
            "]".repeat(9999)
        );
        assert_eq!(class_of(deep.as_bytes()), Some((FailureClass::Data, false)));
        assert_eq!(
            class_of(br#"{"accuracy": 1}"#),
            Some((FailureClass::Data, false))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_no_persist": true}"#),
            Some((FailureClass::NotPersisted, false))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_failure_class": ""}"#),
            Some((FailureClass::AgentFlagged, false))
        );
        assert_eq!(
            class_of(br#"{"_ng_failure_class": "x", "_ng_failure_terminal": 1}"#),
            Some((FailureClass::AgentFlagged, true))
        );
        assert_eq!(
            class_of(br#"{"reward": 1, "_ng_failure_class": null}"#),
            None
        );
    }

    const ROW: &str =
        r#"{"task_id":{"taskset":"s"},"task_input":[1.0],"_ng_task_index":4,"_ng_rollout_index":2"#;

    #[test]
    fn a_row_of_a_taskset_is_the_request_of_an_episode() {
        let sent = |more: &str| episode_request(format!("{ROW}{more}}}").as_bytes());
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
            assert_eq!(episode_request(row.as_bytes()), Ok(None), "{row}");
        }
    }

    #[test]
    fn an_answer_is_the_result_or_the_failure_in_it() {
        let answered = |rest: &str| {
            episode_record(
                format!(r#"{{"episode_id":{{}},"task_id":{{"task":"t"}},{rest}}}"#).as_bytes(),
            )
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
        assert_eq!(episode_record(b"{\"reward\":1}"), Ok(None));
        for wrong in [
            r#""result":1"#,
            r#""failure":"x""#,
            r#""result":{"ng_perf":{}}"#,
        ] {
            assert!(answered(wrong).is_err(), "{wrong}");
        }
    }
}
