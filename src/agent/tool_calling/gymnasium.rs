use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::episode::ToolRollout;
use super::items::{array, tool_output, user_message};
use crate::agent::Answer;
use crate::call::{CallKind, Posted};
use crate::json::{self, Object, splice, unquote};
use crate::model::ModelResponse;
use crate::request::RESPONSES_CREATE_PARAMS;
use crate::retry::{Failure, FailureClass};

/// The field by which a server that supports it recognizes a step that was sent before.
const STEP_REQUEST_ID: &str = "_ng_step_request_id";

/// The default of `max_steps`, as in NeMo Gym.
const MAX_STEPS: u32 = 10;

#[derive(Debug, Default, Deserialize)]
struct ResetAnswer {
    #[serde(default)]
    observation: Option<String>,
}

/// The optional features of a server, as its answer to `/reset` declares them.
#[derive(Debug, Clone, Copy, Default)]
struct Extras {
    supports_step_idempotency: bool,
    supports_explicit_close: bool,
}

/// An episode that has ended.
#[derive(Debug)]
struct Played {
    last: ModelResponse,
    step: StepAnswer,
    reward: f64,
    truncated: bool,
}

#[derive(Debug, Default, Deserialize)]
struct StepAnswer {
    #[serde(default)]
    observation: Option<String>,
    #[serde(default)]
    reward: f64,
    #[serde(default)]
    terminated: bool,
    #[serde(default)]
    truncated: bool,
    #[serde(default)]
    info: Option<Box<RawValue>>,
    /// The outputs of tools in `info`, unless the episode is over.
    #[serde(skip)]
    tool_outputs: Vec<ToolOutput>,
}

#[derive(Debug, Default, Deserialize)]
struct StepInfo {
    #[serde(default)]
    tool_outputs: Vec<ToolOutput>,
}

#[derive(Debug, Deserialize)]
struct ToolOutput {
    call_id: String,
    output: String,
}

impl Extras {
    fn of(reset: &Posted) -> Self {
        if !reset.status.is_success() {
            return Self::default();
        }
        let body: Value = serde_json::from_slice(&reset.body).unwrap_or_default();
        let has = |name: &str| body.pointer(name) == Some(&Value::Bool(true));
        Self {
            supports_step_idempotency: has("/info/supports_step_idempotency"),
            supports_explicit_close: has("/info/supports_explicit_close"),
        }
    }
}

impl ToolRollout<'_> {
    /// Runs the loop of NeMo Gym's `gymnasium_agent`: the server says what the model sees next, and when
    /// the episode is over.
    pub(super) async fn play(mut self) -> Result<Answer, Failure> {
        let body = Bytes::from(self.row.to_owned());
        let reset = self.post("reset", CallKind::Reset, body).await?;
        let extras = Extras::of(&reset);
        let played = self.steps(&reset, extras).await;
        // In any case, the server keeps the episode until it is closed.
        let closed = if extras.supports_explicit_close {
            self.close().await
        } else {
            Ok(())
        };
        self.answer(&played?, closed.err().as_ref())
    }

    async fn steps(&mut self, reset: &Posted, extras: Extras) -> Result<Played, Failure> {
        let reset: ResetAnswer = reset.json()?;
        self.items.extend(observation(reset.observation));
        self.first_output = self.items.len();
        let most = self.agent.options.max_steps.unwrap_or(MAX_STEPS).max(1);
        let mut reward = 0.0;
        loop {
            let last = self.respond().await?;
            let step = self.step(&last, extras).await?;
            reward += step.reward;
            let is_over = step.terminated || step.truncated;
            if !is_over {
                let outputs = step.tool_outputs.iter();
                let outputs = outputs.filter_map(|said| tool_output(&said.call_id, &said.output));
                self.items.extend(outputs);
                self.items.extend(observation(step.observation.clone()));
            }
            if is_over || self.turn >= most {
                return Ok(Played {
                    truncated: step.truncated || !is_over,
                    last,
                    step,
                    reward,
                });
            }
        }
    }

    async fn step(&mut self, said: &ModelResponse, extras: Extras) -> Result<StepAnswer, Failure> {
        let mut fields = vec![("response", said.text.as_str())];
        let id;
        if extras.supports_step_idempotency {
            id = format!("\"{:032x}\"", fastrand::u128(..));
            fields.push((STEP_REQUEST_ID, &id));
        }
        let body = Bytes::from(self.with_fields(&fields)?);
        let posted = self.post("step", CallKind::Step, body).await?;
        let mut step: StepAnswer = posted.json()?;
        if let Some(info) = &step.info
            && !step.terminated
            && !step.truncated
        {
            let info: StepInfo = serde_json::from_str(info.get()).map_err(|source| {
                let why = format!("its info can't be read ({source}){}", posted.quote());
                posted.refuse(FailureClass::Data, &why)
            })?;
            step.tool_outputs = info.tool_outputs;
        }
        Ok(step)
    }

    async fn close(&mut self) -> Result<(), Failure> {
        let body = Bytes::from_static(b"{}");
        let closed = self.post("close", CallKind::Close, body).await?;
        closed.ok().map(drop)
    }

    fn answer(&self, played: &Played, unclosed: Option<&Failure>) -> Result<Answer, Failure> {
        let Played {
            last,
            step,
            reward,
            truncated,
        } = played;
        let row = Object::parse(self.row).ok();
        let params = row
            .as_ref()
            .and_then(|row| row.get(RESPONSES_CREATE_PARAMS));
        let begun_with = self.items.get(..self.first_output).unwrap_or_default();
        let begun_with = full_items(begun_with);
        let params = json::splice(params.unwrap_or("{}"), &[("input", &begun_with)])
            .map_err(|source| self.bad_answer(&source.to_string()))?;
        let params = padded(&params, PARAMS);
        let response = self.response_with(last, &full_items(self.output()))?;
        let response = padded(&response, RESPONSE);
        let mut info = step
            .info
            .as_ref()
            .map_or("{}", |info| info.get())
            .to_owned();
        if let Some(failure) = unclosed {
            let warning = json!({
                "operation": "close",
                "error_type": failure.class.name(),
                "message": failure.message,
            });
            // Only an object has room for the warning.
            info =
                json::splice(&info, &[("cleanup_warning", &warning.to_string())]).unwrap_or(info);
        }
        let text = format!(
            r#"{{"{RESPONSES_CREATE_PARAMS}":{params},"response":{response},"reward":{reward:?},"terminated":{},"truncated":{truncated},"info":{info}}}"#,
            step.terminated,
        );
        let is_too_deep = json::is_too_deep(&text);
        let answer = Answer::parse(text).map_err(|source| self.bad_answer(&source.to_string()))?;
        if is_too_deep {
            let most = json::MAX_DEPTH;
            return Err(self.bad_answer(&format!("the episode nests deeper than {most} levels")));
        }
        Ok(answer)
    }
}

fn observation(text: Option<String>) -> Option<Box<RawValue>> {
    text.filter(|text| !text.is_empty())
        .and_then(|text| user_message(&text))
}

/// The fields of a request's parameters, with their defaults.
const PARAMS: &str = r#"{"background":null,"include":null,"instructions":null,"max_output_tokens":null,
    "max_tool_calls":null,"metadata":null,"model":null,"parallel_tool_calls":true,"previous_response_id":null,
    "prompt":null,"reasoning":null,"service_tier":null,"store":null,"temperature":null,"text":null,
    "tool_choice":"auto","tools":[],"top_logprobs":null,"top_p":null,"truncation":null,"user":null,"stream":null}"#;

/// The fields of a response, with their defaults.
const RESPONSE: &str = r#"{"error":null,"incomplete_details":null,"instructions":null,"metadata":null,
    "temperature":null,"top_p":null,"background":null,"conversation":null,"max_output_tokens":null,
    "max_tool_calls":null,"previous_response_id":null,"prompt":null,"prompt_cache_key":null,"reasoning":null,
    "safety_identifier":null,"service_tier":null,"status":null,"text":null,"top_logprobs":null,"truncation":null,
    "user":null}"#;

/// Returns the text of an array of items with all their fields.
fn full_items(items: &[Box<RawValue>]) -> String {
    array(items.iter().map(|item| full_item(item.get())))
}

fn full_item(text: &str) -> String {
    let object = Object::parse(text).ok();
    let kind = object.as_ref().and_then(|object| object.get("type"));
    let Some(kind) = kind else {
        return padded(text, r#"{"type":"message"}"#);
    };
    match unquote(kind).as_deref() {
        Some("function_call" | "function_call_output") => {
            padded(text, r#"{"id":null,"status":null}"#)
        }
        Some("reasoning") => padded(text, r#"{"encrypted_content":null,"content":null}"#),
        Some("message") => {
            let content = object.as_ref().and_then(|object| object.get("content"));
            let parts: Option<Vec<&RawValue>> =
                content.and_then(|content| serde_json::from_str(content).ok());
            let Some(parts) = parts else {
                return text.to_owned();
            };
            let parts = array(parts.into_iter().map(|part| full_part(part.get())));
            splice(text, &[("content", &parts)]).unwrap_or_else(|_| text.to_owned())
        }
        _ => text.to_owned(),
    }
}

fn full_part(text: &str) -> String {
    #[derive(Deserialize)]
    struct TypedPart<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
    }
    match serde_json::from_str(text) {
        Ok(TypedPart {
            kind: "output_text",
        }) => padded(text, r#"{"logprobs":null}"#),
        _ => text.to_owned(),
    }
}

/// Adds the fields of `defaults` that an object lacks. Any other value stays as it is.
fn padded(text: &str, defaults: &str) -> String {
    let (Ok(object), Ok(defaults)) = (Object::parse(text), Object::parse(defaults)) else {
        return text.to_owned();
    };
    let missing = defaults.iter().filter(|(name, ..)| !object.contains(name));
    let missing: Vec<(&str, &str)> = missing.map(|(name, _, value)| (name, value)).collect();
    splice(text, &missing).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_lacks_is_null_or_its_default() {
        let text = padded(
            r#"{"input": [],  "temperature": 0.50, "tools": null}"#,
            PARAMS,
        );
        assert!(
            text.starts_with(
                r#"{"input": [],  "temperature": 0.50, "tools": null,"background":null,"#
            ),
            "{text}"
        );
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_object().unwrap().len(), 23);
        assert_eq!(
            (&value["parallel_tool_calls"], &value["tool_choice"]),
            (&true.into(), &"auto".into())
        );
        assert_eq!(padded("[]", PARAMS), "[]");
        assert!(
            padded(r#"{"error": {"code": 1}}"#, RESPONSE)
                .contains(r#"{"error": {"code": 1},"incomplete_details":null"#)
        );
    }

    #[test]
    fn items_are_padded_by_their_type() {
        for (item, expected) in [
            (
                r#"{"role":"user"}"#,
                r#"[{"role":"user","type":"message"}]"#,
            ),
            (
                r#"{"type":"function_call","id":"x"}"#,
                r#"[{"type":"function_call","id":"x","status":null}]"#,
            ),
            (
                r#"{"type":"reasoning","content":[1.0]}"#,
                r#"[{"type":"reasoning","content":[1.0],"encrypted_content":null}]"#,
            ),
            (
                r#"{"type":"message","content":[{"type":"output_text"},{"type":"refusal"}]}"#,
                r#"[{"type":"message","content":[{"type":"output_text","logprobs":null},{"type":"refusal"}]}]"#,
            ),
            (
                r#"{"type":"message","content":"hi"}"#,
                r#"[{"type":"message","content":"hi"}]"#,
            ),
            (r#"{"type":"future"}"#, r#"[{"type":"future"}]"#),
        ] {
            let item = RawValue::from_string(item.to_owned()).unwrap();
            assert_eq!(full_items(&[item]), expected);
        }
    }
}
