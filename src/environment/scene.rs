//! Samples for the tests of environments.

use serde_json::{Value, json};

use super::{Sample, Step};
use crate::call::scripted::log;
use crate::call::{CallLog, CookieJar};
use crate::model::Message;

/// The parts of a sample in turn 2.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) log: CallLog,
    pub(super) row: Value,
    pub(super) messages: Vec<Message>,
    pub(super) metadata: Value,
    pub(super) cookies: CookieJar,
}

impl Scene {
    pub(super) fn new(rollout: i64) -> Self {
        let said = [
            ("user", "prompt".to_owned()),
            ("assistant", "an example".to_owned()),
            ("user", "go".to_owned()),
            ("assistant", format!("first of {rollout}")),
            ("environment", "no".to_owned()),
            ("assistant", format!("second of {rollout}")),
        ];
        Self {
            log: log(rollout),
            row: json!({"id": rollout, "x": 1.5, "response": "old",
                        "responses_create_params": {"model": "m"}}),
            messages: said.map(|(role, text)| Message::text(role, text)).into(),
            metadata: json!({"state": rollout}),
            cookies: CookieJar::default(),
        }
    }

    pub(super) fn sample(&mut self) -> Sample<'_> {
        Sample {
            log: &self.log,
            step: Step {
                turn: 2,
                task_name: "math",
                row: &self.row,
                messages: &self.messages,
                metadata: &self.metadata,
            },
            cookies: &mut self.cookies,
        }
    }
}
