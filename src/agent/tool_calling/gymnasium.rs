use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::episode::Episode;
use super::full_form;
use super::items::{tool_output, user_message};
use crate::agent::Answer;
use crate::json::{self, Object};
use crate::model::ModelResponse;
use crate::request::RESPONSES_CREATE_PARAMS;
use crate::retry::{Failure, FailureClass};
use crate::turn::{Posted, TurnKind};

/// Field of a step by which a server that supports it knows a step that it was sent before.
const STEP_REQUEST_ID: &str = "_ng_step_request_id";

/// Calls of the model where nothing else is said, as in NeMo Gym.
const MAX_STEPS: u32 = 10;

#[derive(Debug, Default, Deserialize)]
struct ResetAnswer {
    #[serde(default)]
    observation: Option<String>,
}

/// What a server can do beyond the common, as its answer to `/reset` says.
#[derive(Debug, Clone, Copy, Default)]
struct Extras {
    supports_step_idempotency: bool,
    supports_explicit_close: bool,
}

/// An episode that came to its end.
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
    /// What `info` says of tools, if the episode goes on.
    #[serde(skip)]
    tool_outputs: Vec<ToolOutput>,
}

#[derive(Debug, Default, Deserialize)]
struct Info {
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

impl Episode<'_> {
    /// The loop of NeMo Gym's `gymnasium_agent`: the server says what the model sees next, and when
    /// the episode is over.
    pub(super) async fn play(mut self) -> Result<Answer, Failure> {
        let body = Bytes::from(self.row.to_owned());
        let reset = self.post("reset", TurnKind::Reset, body).await?;
        let extras = Extras::of(&reset);
        let played = self.steps(&reset, extras).await;
        // Whatever came of it, the server keeps the episode until it is closed.
        let closed = match extras.supports_explicit_close {
            true => self.close().await,
            false => Ok(()),
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
        let posted = self.post("step", TurnKind::Step, body).await?;
        let mut step: StepAnswer = posted.json()?;
        if let Some(info) = &step.info
            && !step.terminated
            && !step.truncated
        {
            let info: Info = serde_json::from_str(info.get()).map_err(|source| {
                let why = format!("its info can't be read ({source}){}", posted.quote());
                posted.refuse(FailureClass::Data, &why)
            })?;
            step.tool_outputs = info.tool_outputs;
        }
        Ok(step)
    }

    async fn close(&mut self) -> Result<(), Failure> {
        let body = Bytes::from_static(b"{}");
        let closed = self.post("close", TurnKind::Close, body).await?;
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
        let begun_with = full_form::items(begun_with);
        let params = json::splice(params.unwrap_or("{}"), &[("input", &begun_with)])
            .map_err(|source| self.bad_answer(&source.to_string()))?;
        let params = full_form::params(&params);
        let response = self.response_with(last, &full_form::items(self.output()))?;
        let response = full_form::response(&response);
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
            // What is no object has no place for it.
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
