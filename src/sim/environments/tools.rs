use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::agent::{Row, aggregate, begin_answer};
use super::super::plan::Profile;
use super::super::server::service::{Answer, Call, Rejected, Service};
use super::sessions::{Episode, Sessions};
use super::{unreadable, verify};

/// The tools, in the format of the `tools` in a request to a model.
const TOOLS: &[u8] = br#"[{"type":"function","name":"calculate","description":"Does one operation on two numbers.","parameters":{"type":"object","properties":{"operation":{"type":"string","enum":["add","subtract","multiply","divide"]},"a":{"type":"number"},"b":{"type":"number"}},"required":["operation","a","b"],"additionalProperties":false},"strict":true},{"type":"function","name":"remember","description":"Keeps a note for later.","parameters":{"type":"object","properties":{"note":{"type":"string"}},"required":["note"],"additionalProperties":false},"strict":true},{"type":"function","name":"recall","description":"Tells all notes.","parameters":{"type":"object","properties":{},"required":[],"additionalProperties":false},"strict":true}]"#;

/// A session keeps this many notes; older ones are forgotten.
const MAX_NOTES: usize = 100;

/// A resources server: `/seed_session`, tools, and `/verify`. A tool needs the cookie of a session.
#[derive(Debug, Default)]
pub(in crate::sim) struct Tools {
    sessions: Sessions<Session>,
}

#[derive(Debug, Default)]
struct Session {
    episode: Episode,
    calls: u64,
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct Calculation {
    operation: Operation,
    a: f64,
    b: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Service for Tools {
    fn get(&self, path: &str) -> Option<Bytes> {
        (path == "/tools").then_some(Bytes::from_static(TOOLS))
    }

    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        match call.path {
            "/seed_session" => {
                let row = Row::parse(call.body).map_err(unreadable)?;
                let session = Session {
                    episode: Episode::of(call, Some(&row)),
                    ..Session::default()
                };
                Ok(Answer {
                    body: b"{}".to_vec(),
                    cookie: Some(self.sessions.open(profile.seed, session)),
                })
            }
            "/verify" => {
                let row = Row::parse(call.body).map_err(unreadable)?;
                let episode = Episode::of(call, Some(&row));
                let calls = self.sessions.with(call, |session| {
                    session.episode.check(&episode)?;
                    Ok(session.calls)
                })?;
                verified(&row, calls, profile)
            }
            "/aggregate_metrics" => aggregate(call.body.as_bytes())
                .map_err(unreadable)
                .map(Answer::from),
            path => {
                let episode = Episode::of(call, None);
                let result = self.sessions.with(call, |session| {
                    session.episode.check(&episode)?;
                    session.use_tool(path.trim_start_matches('/'), call.body)
                })?;
                Ok(result.into())
            }
        }
    }
}

impl Session {
    /// Returns the tool's answer, which includes the number of calls of the session.
    fn use_tool(&mut self, name: &str, arguments: &str) -> Result<Value, Rejected> {
        let mut result = match name {
            "calculate" => {
                let calculation = serde_json::from_str(arguments).map_err(unreadable)?;
                json!({ "result": calculated(&calculation)? })
            }
            "remember" => {
                #[derive(Deserialize)]
                struct Note {
                    note: String,
                }
                let Note { note } = serde_json::from_str(arguments).map_err(unreadable)?;
                if self.notes.len() >= MAX_NOTES {
                    self.notes.remove(0);
                }
                self.notes.push(note);
                json!({ "notes": self.notes.len() })
            }
            "recall" => json!({ "notes": self.notes }),
            _ => {
                let why =
                    format!("there is no tool '{name}'; the tools are calculate, remember, recall");
                return Err(Rejected::detail(StatusCode::NOT_FOUND, why));
            }
        };
        self.calls += 1;
        result["call"] = json!(self.calls);
        Ok(result)
    }
}

fn calculated(calculation: &Calculation) -> Result<f64, Rejected> {
    let Calculation { operation, a, b } = calculation;
    let result = match operation {
        Operation::Add => a + b,
        Operation::Subtract => a - b,
        Operation::Multiply => a * b,
        Operation::Divide => a / b,
    };
    let wrong = || Rejected::detail(StatusCode::BAD_REQUEST, "the result is not a number");
    result.is_finite().then_some(result).ok_or_else(wrong)
}

/// Writes the verify response: the row, the response, and what the verifier adds.
fn verified(row: &Row, calls: u64, profile: &Profile) -> Result<Answer, Rejected> {
    let verdict = verify(row, profile)?;
    let response = row.response().unwrap_or_default();
    let mut out = begin_answer(row, profile);
    let answer = format!(
        r#""response":{response},"reward":{:?},"extracted_answer":{},"accuracy":{},"tool_calls":{calls}}}"#,
        verdict.reward(),
        verdict.extracted_json(),
        verdict.correct
    );
    out.extend_from_slice(answer.as_bytes());
    Ok(out.into())
}
