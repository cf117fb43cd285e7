//! Environments, which answer a model: an [`Environment`] takes a step with each sample of a batch.
//!
//! [`StepServer`] is asked once for a whole batch. [`EpisodeServer`] knows one episode at a time.
//! The checks in `checks` send nothing: they are for datasets without an environment server. `Judge` asks a model to score
//! answers. [`environment`] sets any up from its settings; the multi-turn agent uses them.

mod checks;
mod judge;
mod nemo_gym;
#[cfg(test)]
mod scene;
mod step_server;

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::header::HeaderMap;
use serde::{Deserialize, de};
use serde_json::Value;

use self::checks::Checked;
use self::judge::{Judge, JudgeSettings};
use crate::call::{CallLog, CookieJar, Target};
use crate::config::{Resources, ServerUrl, similar};
use crate::http::HttpClients;
use crate::model::{Endpoints, Message, ModelError, ModelRetries, OBSERVATION_ROLE};
use crate::retry::Failure;

pub use nemo_gym::EpisodeServer;
pub use step_server::StepServer;

/// Answers a model: observes, scores, and says when an episode ends.
#[async_trait]
pub trait Environment: Debug + Send + Sync {
    /// Begins an episode. The cookies that the environment sets go with every step of this sample.
    ///
    /// # Errors
    /// The environment could not be asked.
    async fn begin(&self, row: &Value, log: &CallLog) -> Result<Begun, Failure> {
        let _ = (row, log);
        Ok(Begun::default())
    }

    /// Checks that the environment can score the answers to a task. Sends nothing. `metadata` is the row's
    /// `extra_env_info`.
    ///
    /// # Errors
    /// The row lacks what the environment needs. The text says what, and what to do.
    fn check_task(&self, metadata: &Value, row: &Value) -> Result<(), String> {
        let _ = (metadata, row);
        Ok(())
    }

    /// Takes one step with every sample of a batch. The results are in the order of the samples.
    ///
    /// # Errors
    /// The environment could not be asked, or its answer does not fit the batch.
    async fn step(&self, samples: &mut [Sample<'_>]) -> Stepped;

    /// Returns the address for people to read, without secrets.
    fn address(&self) -> String;
}

/// The outcome of a step: a result or a failure for each sample, in their order; or the failure of the whole step.
pub type Stepped = Result<Vec<Result<StepResult, Failure>>, Failure>;

/// The beginning of an episode.
#[derive(Debug, Default)]
pub struct Begun {
    /// The cookies that the environment set.
    pub cookies: CookieJar,
    /// The environment's observation before the first turn.
    pub observation: Option<Message>,
}

/// A sample in a step.
#[derive(Debug)]
pub struct Sample<'a> {
    /// The log of its calls. A call for a whole batch is noted with its first sample; others have a row of their own
    /// with the same times.
    pub log: &'a CallLog,
    /// The data to send.
    pub step: Step<'a>,
    /// The cookies that the environment set before.
    pub cookies: &'a mut CookieJar,
}

/// The data of a sample that an environment gets.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Number of the turn, from 1.
    pub turn: u32,
    /// Name of the task's kind.
    pub task_name: &'a str,
    /// The row of the rollout.
    pub row: &'a Value,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The metadata of the step before, or the prompt's `extra_env_info`.
    pub metadata: &'a Value,
}

/// The answer of an environment for a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResult {
    /// The observation that the model sees next.
    pub observation: Message,
    /// The metadata to send with the next step; null keeps the last metadata.
    pub metadata: Value,
    /// Texts that end the next generation; none keeps the last ones.
    pub next_stop_strings: Option<Vec<String>>,
    /// The reward of this step.
    pub reward: f64,
    /// Whether the episode is over.
    pub terminated: bool,
    /// Whether the episode was cut short.
    pub truncated: bool,
    /// The part of the answer that the environment judged.
    pub answer: Option<String>,
}

impl StepResult {
    /// Creates a step that ends the episode with this reward, and shows the model nothing.
    pub fn last(reward: f64) -> Self {
        Self {
            observation: Message::text(OBSERVATION_ROLE, ""),
            metadata: Value::Null,
            next_stop_strings: None,
            reward,
            terminated: true,
            truncated: false,
            answer: None,
        }
    }
}

/// The kinds of environments that are servers.
const SERVERS: [&str; 3] = ["step", "resources", "gymnasium"];

/// The kind of environment that asks a model to score.
const JUDGE: &str = "judge";

/// The settings of a server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerSettings {
    #[serde(rename = "kind")]
    _kind: de::IgnoredAny,
    url: ServerUrl,
}

/// The reason why an environment can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The settings of the environment are wrong.
    #[error("the environment of task_name '{name}': {source}")]
    Settings {
        /// The task name.
        name: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// The address of the environment can't be used.
    #[error("the address '{url}' of the environment of task_name '{name}' can't be used: {reason}")]
    Address {
        /// The task name.
        name: String,
        /// The address as given.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The judge's model can't be asked.
    #[error("the judge of task_name '{name}': {source}")]
    Judge {
        /// The task name.
        name: String,
        /// What is wrong.
        source: ModelError,
    },
}

/// What environments share with the agent that uses them.
#[derive(Debug)]
pub struct Shared<'a> {
    /// Headers that go with every request.
    pub headers: &'a HeaderMap,
    /// The connections.
    pub http: &'a HttpClients,
    /// The agent's model, which judges where no other is named.
    pub model: &'a Arc<Endpoints>,
    /// Retries of a judge's calls; the deadline is that of every request.
    pub retries: ModelRetries,
}

/// Sets up the environment of the tasks named `name` from its settings: `kind`, and the settings of that kind. Nothing is
/// sent.
///
/// # Errors
/// There is no such kind, a setting is wrong, or an address can't be used.
pub fn environment(
    name: &str,
    settings: &Value,
    shared: &Shared<'_>,
) -> Result<Arc<dyn Environment>, EnvironmentError> {
    let wrong = |source| EnvironmentError::Settings {
        name: name.to_owned(),
        source,
    };
    let kinds = || {
        let names = SERVERS.into_iter().chain([JUDGE]).chain(checks::kinds());
        let mut names: Vec<String> = names.map(|kind| format!("'{kind}'")).collect();
        let last = names.pop().unwrap_or_default();
        format!("{} or {last}", names.join(", "))
    };
    let Some(kind) = settings.get("kind").and_then(Value::as_str) else {
        let why = format!("an environment needs a kind: {}", kinds());
        return Err(wrong(de::Error::custom(why)));
    };
    if let Some(check) = Checked::read(kind, settings) {
        return Ok(Arc::new(check.map_err(wrong)?));
    }
    if kind == JUDGE {
        let settings = JudgeSettings::deserialize(settings).map_err(wrong)?;
        let judge = Judge::new(settings, shared).map_err(|source| EnvironmentError::Judge {
            name: name.to_owned(),
            source,
        })?;
        return Ok(Arc::new(judge));
    }
    if !SERVERS.contains(&kind) {
        let names = checks::kinds().chain([JUDGE]).chain(SERVERS);
        let hint = match similar(kind, names) {
            Some(name) => format!("did you mean '{name}'?"),
            None => format!("use {}", kinds()),
        };
        let why = format!("there is no check or environment of kind '{kind}'; {hint}");
        return Err(wrong(de::Error::custom(why)));
    }
    let ServerSettings { url, .. } = ServerSettings::deserialize(settings).map_err(wrong)?;
    let step_deadline = shared.retries.deadline;
    let target = Target::new(url.as_str(), shared.headers.clone(), shared.http.clone());
    let target = target.map_err(|reason| EnvironmentError::Address {
        name: name.to_owned(),
        url: url.to_string(),
        reason,
    })?;
    Ok(match kind {
        "step" => Arc::new(StepServer::new(name, &target, step_deadline)),
        "resources" => Arc::new(EpisodeServer::new(
            Resources::Tools,
            name,
            target,
            step_deadline,
        )),
        _ => Arc::new(EpisodeServer::new(
            Resources::Gymnasium,
            name,
            target,
            step_deadline,
        )),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::scripted::http;

    fn set_up(settings: &Value) -> Result<Arc<dyn Environment>, EnvironmentError> {
        let (headers, http) = (HeaderMap::new(), http());
        let model = Endpoints::new("m", &["http://m:1/v1".to_owned()], &headers, &http).unwrap();
        let shared = Shared {
            headers: &headers,
            http: &http,
            model: &model,
            retries: ModelRetries::default(),
        };
        environment("math", settings, &shared)
    }

    #[test]
    fn each_kind_is_set_up() {
        let url = "http://e:1/a";
        for (settings, address) in [
            (json!({"kind": "step", "url": url}), "http://e:1/a/step"),
            (json!({"kind": "resources", "url": url}), url),
            (json!({"url": url, "kind": "gymnasium"}), url),
            (json!({"kind": "exact-match"}), "exact-match (built in)"),
            (
                json!({"kind": "numeric", "tolerance": 0.5}),
                "numeric (built in)",
            ),
            (json!({"kind": "json-schema"}), "json-schema (built in)"),
            (json!({"kind": "judge"}), "http://m:1/v1/chat/completions"),
            (
                json!({"kind": "judge", "url": "http://j:1", "model": "j"}),
                "http://j:1/v1/chat/completions",
            ),
        ] {
            assert_eq!(set_up(&settings).unwrap().address(), address);
        }
    }

    #[test]
    fn what_is_wrong_with_settings_is_said() {
        for (settings, expected) in [
            (
                json!({"kind": "steps"}),
                "no check or environment of kind 'steps'; did you mean 'step'?",
            ),
            (json!({"url": "http://e"}), "needs a kind"),
            (json!({"kind": "step"}), "missing field `url`"),
            (
                json!({"kind": "step", "url": "http://e", "path": "x"}),
                "`path`",
            ),
            (json!({"kind": "step", "url": "e:1"}), "http://host:port"),
            (json!({"kind": "numeric", "tolerance": -1.0}), "`tolerance`"),
            (json!({"kind": "numeric", "url": "http://e"}), "`url`"),
        ] {
            let error = set_up(&settings).unwrap_err().to_string();
            assert!(
                error.contains("task_name 'math'") && error.contains(expected),
                "{error}"
            );
        }
    }
}
