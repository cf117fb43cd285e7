use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::episode::Episode;
use super::items::{array, tool_output, user_message};
use crate::agent::Answer;
use crate::answer::AnswerFields;
use crate::failure::{Failure, FailureClass};
use crate::json::{self, Object};
use crate::model::ModelResponse;
use crate::request::RESPONSES_CREATE_PARAMS;
use crate::turn::{Posted, TurnKind};

/// Calls of the model where nothing else is said, as in NeMo Gym.
const MAX_STEPS: u32 = 10;

#[derive(Debug, Default, Deserialize)]
struct ResetAnswer {
    #[serde(default)]
    observation: Option<String>,
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

impl Episode<'_> {
    /// The loop of NeMo Gym's `gymnasium_agent`: the server says what the model sees next, and when
    /// the episode is over.
    pub(super) async fn play(mut self) -> Result<Answer, Failure> {
        let reset = self
            .post("reset", TurnKind::Reset, Bytes::from(self.row.to_owned()))
            .await?;
        let reset: ResetAnswer = read(&reset)?;
        self.items.extend(observation(reset.observation));
        self.first_output = self.items.len();
        let begun_with = array(&self.items);
        let most = self.agent.options.max_steps.unwrap_or(MAX_STEPS).max(1);
        let mut reward = 0.0;
        let (last, step, is_cut) = loop {
            let response = self.respond().await?;
            let body = self.with_field("response", &response.text)?;
            let step = self.post("step", TurnKind::Step, Bytes::from(body)).await?;
            let step: StepAnswer = read(&step)?;
            reward += step.reward;
            if step.terminated || step.truncated {
                break (response, step, false);
            }
            let info: Info = step
                .info
                .as_ref()
                .and_then(|info| serde_json::from_str(info.get()).ok())
                .unwrap_or_default();
            let outputs = info.tool_outputs.iter();
            self.items
                .extend(outputs.filter_map(|output| tool_output(&output.call_id, &output.output)));
            self.items.extend(observation(step.observation.clone()));
            if self.turn >= most {
                break (response, step, true);
            }
        };
        self.answer(&begun_with, &last, &step, reward, is_cut)
    }

    fn answer(
        &self,
        begun_with: &str,
        last: &ModelResponse,
        step: &StepAnswer,
        reward: f64,
        is_cut: bool,
    ) -> Result<Answer, Failure> {
        let row = Object::parse(self.row).ok();
        let params = row
            .as_ref()
            .and_then(|row| row.get(RESPONSES_CREATE_PARAMS));
        let params = json::splice(params.unwrap_or("{}"), &[("input", begun_with)])
            .map_err(|source| self.bad_answer(&source.to_string()))?;
        let response = self.whole_response(last)?;
        let info = step.info.as_ref().map_or("{}", |info| info.get());
        let truncated = step.truncated || is_cut;
        let text = format!(
            r#"{{"{RESPONSES_CREATE_PARAMS}":{params},"response":{response},"reward":{reward:?},"terminated":{},"truncated":{truncated},"info":{info}}}"#,
            step.terminated,
        );
        let fields =
            AnswerFields::parse(&text).map_err(|source| self.bad_answer(&source.to_string()))?;
        if json::is_too_deep(&text) {
            let most = json::MAX_DEPTH;
            return Err(self.bad_answer(&format!("the episode nests deeper than {most} levels")));
        }
        Ok(Answer {
            body: Bytes::from(text),
            fields,
        })
    }
}

fn observation(text: Option<String>) -> Option<Box<RawValue>> {
    text.filter(|text| !text.is_empty())
        .and_then(|text| user_message(&text))
}

fn read<'a, T: Deserialize<'a>>(posted: &'a Posted) -> Result<T, Failure> {
    let body = posted.ok()?;
    serde_json::from_slice(body).map_err(|source| {
        let why = format!("the answer can't be read ({source}){}", posted.quote());
        posted.refuse(FailureClass::Data, &why)
    })
}
