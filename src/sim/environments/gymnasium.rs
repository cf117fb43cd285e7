//! A server in the manner of Gymnasium: `/reset` and `/step`.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::super::answer::Verdict;
use super::super::call::Call;
use super::super::profile::Profile;
use super::super::row::Row;
use super::super::service::{Answer, Rejected, Service};
use super::episode::Episode;
use super::sessions::Sessions;
use super::turn::go_on;
use super::verdict::{judge, response_in, unreadable};

/// An episode that goes on for this many steps is truncated.
const MAX_STEPS: u64 = 64;

/// What it says at first, to every other task.
const HINT: &str = "Take the numbers one by one.";

/// A server in the manner of Gymnasium. An episode ends with an answer, or after 64 steps.
#[derive(Debug, Default)]
pub(in crate::sim) struct Gymnasium {
    sessions: Sessions<Session>,
}

#[derive(Debug)]
struct Session {
    episode: Episode,
    steps: u64,
}

impl Service for Gymnasium {
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected> {
        let row = || Row::parse(call.body).map_err(unreadable);
        match call.path {
            "/reset" => {
                let row = row()?;
                let session = Session {
                    episode: Episode::of(call, Some(&row)),
                    steps: 0,
                };
                let observation = (row.key().task % 2 == 1).then_some(HINT);
                let answer = json!({ "observation": observation, "info": { "steps": 0 } });
                Ok(Answer {
                    body: answer.to_string().into_bytes(),
                    cookie: Some(self.sessions.open(profile.seed, session)),
                })
            }
            "/step" => {
                let row = row()?;
                let verdict = judge(&row, response_in(call.body)?, profile)?;
                let episode = Episode::of(call, Some(&row));
                let steps = self.sessions.with(call, |session| {
                    session.episode.check(&episode)?;
                    session.steps += 1;
                    Ok(session.steps)
                })?;
                Ok(stepped(&verdict, steps).to_string().into_bytes().into())
            }
            _ => Err(Rejected::detail(StatusCode::NOT_FOUND, "Not Found")),
        }
    }
}

fn stepped(verdict: &Verdict, steps: u64) -> Value {
    let terminated = verdict.extracted.is_some();
    let truncated = !terminated && steps >= MAX_STEPS;
    let ended = terminated || truncated;
    json!({
        "observation": (!ended).then(|| go_on(steps)),
        "reward": f64::from(u8::from(terminated && verdict.correct)),
        "terminated": terminated,
        "truncated": truncated,
        "info": { "steps": steps },
    })
}
