use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::items::{ToolCall, Wish, array, heard, raw, tool_output, user_message};
use super::{ToolCallingAgent, arguments};
use crate::agent::{Answer, Needs, Wording, judge};
use crate::call::{CallKind, CallLog, CallSpec, CookieJar, Post, Posted};
use crate::json::{self, Object};
use crate::model::{ModelResponse, ResponseRequest};
use crate::request::RESPONSES_CREATE_PARAMS;
use crate::retry::{Failure, FailureClass};

/// Answers in a row with neither a message nor a call, after which a rollout fails: such a model will not stop.
const IDLE_ANSWERS: u32 = 8;

/// A rollout in progress.
pub(super) struct ToolRollout<'a> {
    pub(super) agent: &'a ToolCallingAgent,
    pub(super) row: &'a str,
    pub(super) log: &'a CallLog,
    params: Map<String, Value>,
    /// The conversation: the items of the task, then from `first_output` on those of the rollout.
    pub(super) items: Vec<Box<RawValue>>,
    pub(super) first_output: usize,
    usage: UsageSum,
    pub(super) cookies: CookieJar,
    model_cookies: CookieJar,
    pub(super) turn: u32,
}

impl<'a> ToolRollout<'a> {
    /// Creates a rollout of `row`.
    ///
    /// # Errors
    /// The row has no conversation to begin with.
    pub(super) fn new(
        agent: &'a ToolCallingAgent,
        row: &'a str,
        log: &'a CallLog,
    ) -> Result<Self, Failure> {
        let refuse = |why: String| {
            Failure::new(
                FailureClass::Data,
                format!("the row can't be run by an agent of kind 'responses': {why}"),
            )
        };
        let row_fields = Object::parse(row).map_err(|source| refuse(source.to_string()))?;
        let params = row_fields.get(RESPONSES_CREATE_PARAMS);
        let params =
            params.ok_or_else(|| refuse(format!("{RESPONSES_CREATE_PARAMS} is missing")))?;
        let mut params: Map<String, Value> = serde_json::from_str(params)
            .map_err(|source| refuse(format!("{RESPONSES_CREATE_PARAMS}: {source}")))?;
        let items: Vec<Box<RawValue>> = match params.shift_remove("input") {
            Some(Value::String(text)) => user_message(&text).into_iter().collect(),
            Some(Value::Array(items)) => items.iter().filter_map(raw).collect(),
            Some(other) => {
                let why = format!("input is {}, and neither a text nor a list", kind(&other));
                return Err(refuse(why));
            }
            None => return Err(refuse("input is missing".to_owned())),
        };
        Ok(Self {
            agent,
            row,
            log,
            params,
            first_output: items.len(),
            items,
            usage: UsageSum::default(),
            cookies: CookieJar::default(),
            model_cookies: CookieJar::default(),
            turn: 0,
        })
    }

    /// Runs the loop of NeMo Gym's `simple_agent`.
    pub(super) async fn call_tools(mut self) -> Result<Answer, Failure> {
        self.post(
            "seed_session",
            CallKind::SeedSession,
            Bytes::from(self.row.to_owned()),
        )
        .await?
        .ok()?;
        let mut idle = 0;
        let last = loop {
            let response = self.respond().await?;
            if response.is_incomplete {
                break response;
            }
            match Wish::of(&response.output).map_err(|why| self.bad_answer(&why))? {
                Wish::Done => break response,
                Wish::Calls(calls) => {
                    idle = 0;
                    for call in calls {
                        self.call_tool(&call).await?;
                    }
                }
                Wish::Nothing => idle += 1,
            }
            if self
                .agent
                .options
                .max_steps
                .is_some_and(|most| self.turn >= most)
            {
                break response;
            }
            if idle >= IDLE_ANSWERS {
                let why = format!("{idle} answers in a row had neither a message nor a call");
                return Err(self.bad_answer(&why));
            }
        };
        let body = self.with_fields(&[("response", &self.whole_response(&last)?)])?;
        let verified = self
            .post("verify", CallKind::Verify, Bytes::from(body))
            .await?;
        verified.ok()?;
        judge(
            verified.body.clone(),
            Needs::Reward,
            &Wording {
                failure: &|class, why| verified.refuse(class, why),
                quote: &|_| verified.quote(),
                shown: &|text| verified.shown(text),
            },
        )
    }

    /// Asks the model, and adds its items to the conversation.
    pub(super) async fn respond(&mut self) -> Result<ModelResponse, Failure> {
        self.turn += 1;
        let request = ResponseRequest {
            turn: self.turn,
            params: &self.params,
            input: &self.items,
        };
        let response = self
            .agent
            .model
            .respond(request, &mut self.model_cookies, self.log);
        let response = response.await?;
        self.usage.add(response.usage.as_ref());
        self.items
            .extend(response.output.iter().map(|item| heard(item)));
        Ok(response)
    }

    /// Sends a request to the resources server.
    pub(super) async fn post(
        &mut self,
        path: &str,
        kind: CallKind,
        body: Bytes,
    ) -> Result<Posted, Failure> {
        let limit = self.agent.options.step_timeout;
        let post = Post {
            call: CallSpec::new(self.turn, kind, Arc::from(path)),
            body,
            cookies: Some(&mut self.cookies),
            deadline: limit.map(|limit| (limit, "step_timeout")),
        };
        self.agent.resources.at(path).post(post, self.log).await
    }

    /// Returns the row with added fields.
    pub(super) fn with_fields(&self, fields: &[(&str, &str)]) -> Result<String, Failure> {
        json::splice(self.row, fields).map_err(|source| {
            let why = format!("the row is not an object: {source}");
            Failure::new(FailureClass::Data, why)
        })
    }

    /// Returns the model's last answer with the output of all turns and the sum of their usage.
    pub(super) fn whole_response(&self, last: &ModelResponse) -> Result<String, Failure> {
        let output = array(self.output().iter().map(|item| item.get()));
        self.response_with(last, &output)
    }

    /// Returns the items of the rollout so far, without those of the task.
    pub(super) fn output(&self) -> &[Box<RawValue>] {
        self.items.get(self.first_output..).unwrap_or_default()
    }

    /// Returns the model's last answer with this output and the sum of all usage.
    pub(super) fn response_with(
        &self,
        last: &ModelResponse,
        output: &str,
    ) -> Result<String, Failure> {
        let fields = [("output", output), ("usage", &self.usage.text())];
        json::splice(&last.text, &fields).map_err(|source| self.bad_answer(&source.to_string()))
    }

    /// Returns a failure that the model's answer caused.
    pub(super) fn bad_answer(&self, why: &str) -> Failure {
        let model = self.agent.model.address();
        Failure {
            http_status: Some(200),
            ..Failure::new(
                FailureClass::Data,
                format!("{model}: turn {}: {why}", self.turn),
            )
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::Object(_) => "an object",
        Value::String(_) | Value::Array(_) => "a text or a list",
    }
}

impl ToolRollout<'_> {
    /// Calls a tool and adds its output to the conversation. Whatever status the tool answers with,
    /// the model sees its text, because the model must correct a wrong call.
    ///
    /// # Errors
    /// The tool returned no complete answer, or one that is not text. That says nothing about the model.
    pub(super) async fn call_tool(&mut self, call: &ToolCall) -> Result<(), Failure> {
        let output = match arguments::body(&call.arguments) {
            Ok(body) => {
                let answer = self
                    .post(&call.name, CallKind::Tool, Bytes::from(body))
                    .await?;
                match std::str::from_utf8(&answer.body) {
                    Ok(text) => text.to_owned(),
                    Err(source) => {
                        let why =
                            format!("the output of tool '{}' is not UTF-8: {source}", call.name);
                        return Err(answer.refuse(FailureClass::Data, &why));
                    }
                }
            }
            Err(output) => output,
        };
        self.items.extend(tool_output(&call.call_id, &output));
        Ok(())
    }
}

/// Counts that are summed over the turns.
const SUMMED: [&str; 3] = ["input_tokens", "output_tokens", "total_tokens"];

/// Summed counts within details. One null makes the sum null for good.
const DETAILS: [(&str, &str); 2] = [
    ("input_tokens_details", "cached_tokens"),
    ("output_tokens_details", "reasoning_tokens"),
];

/// The usage of a whole episode, summed over its turns. Fields that are not counts of tokens are the
/// first turn's, as in NeMo Gym.
#[derive(Debug, Default)]
pub(super) struct UsageSum(Option<Map<String, Value>>);

impl UsageSum {
    /// Adds a turn; one without usage adds nothing.
    pub(super) fn add(&mut self, turn: Option<&Map<String, Value>>) {
        let Some(turn) = turn else { return };
        let Some(sum) = &mut self.0 else {
            self.0 = Some(turn.clone());
            return;
        };
        for name in SUMMED {
            if let Some(more) = turn.get(name) {
                add(sum.entry(name).or_insert(Value::Null), more, false);
            }
        }
        for (details, name) in DETAILS {
            let more = turn.get(details).and_then(|details| details.get(name));
            let Some(more) = more else { continue };
            if let Some(details) = sum.get_mut(details).and_then(Value::as_object_mut) {
                add(details.entry(name).or_insert(Value::Null), more, true);
            }
        }
    }

    /// Returns the sum as JSON text.
    pub(super) fn text(&self) -> String {
        match &self.0 {
            Some(sum) => serde_json::to_string(sum).unwrap_or_default(),
            None => "null".to_owned(),
        }
    }
}

fn add(sum: &mut Value, more: &Value, null_stays: bool) {
    *sum = match (sum.as_i64(), more.as_i64()) {
        (Some(sum), Some(more)) => sum.saturating_add(more).into(),
        (None, _) | (_, None) if null_stays => Value::Null,
        (None, Some(more)) => more.into(),
        (Some(sum), None) => sum.into(),
        (None, None) => Value::Null,
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_are_summed_and_what_is_unknown_once_stays_unknown() {
        let mut usage = UsageSum::default();
        assert_eq!(usage.text(), "null");
        let turn = |input: u64, cached: Value| {
            let turn = json!({
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 1},
                "total_tokens": input + 2,
                "cost": input,
            });
            turn.as_object().unwrap().clone()
        };
        usage.add(Some(&turn(10, json!(3))));
        usage.add(None);
        usage.add(Some(&turn(20, json!(4))));
        let sum = |cached: &str| {
            format!(
                r#"{{"input_tokens":30,"input_tokens_details":{{"cached_tokens":{cached}}},"output_tokens":4,"output_tokens_details":{{"reasoning_tokens":2}},"total_tokens":34,"cost":10}}"#
            )
        };
        assert_eq!(usage.text(), sum("7"));
        usage.add(Some(&turn(0, Value::Null)));
        usage.add(Some(&turn(0, json!(5))));
        let text: Value = serde_json::from_str(&usage.text()).unwrap();
        assert_eq!(text["input_tokens_details"]["cached_tokens"], Value::Null);
        assert_eq!(text["input_tokens"], 30);
    }
}
