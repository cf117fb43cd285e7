use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use super::checks::{Check, CheckError};
use super::{Checked, Environment, GymnasiumServer, ResourcesServer, StepServer};
use crate::call::Target;
use crate::config::ServerUrl;
use crate::http::HttpClients;

/// Kinds of environments that are servers, and those of checks.
const KINDS: &str = "'step', 'resources', 'gymnasium', 'exact-match', 'numeric', 'multiple-choice', \
                     'regular-expression' or 'json-schema'";

/// An environment as the configuration spells it: `kind`, and the settings of that kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EnvironmentSettings {
    /// A server of batched steps.
    Step {
        /// Its address, without `/step`.
        url: ServerUrl,
    },
    /// A resources server of NeMo Gym, that scores.
    Resources {
        /// Its address.
        url: ServerUrl,
    },
    /// A Gymnasium-style server.
    Gymnasium {
        /// Its address.
        url: ServerUrl,
    },
    /// A check that is built in.
    #[serde(untagged)]
    Check(Check),
}

/// What servers have for settings.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Server {
    Step { url: ServerUrl },
    Resources { url: ServerUrl },
    Gymnasium { url: ServerUrl },
}

impl<'de> Deserialize<'de> for EnvironmentSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = Map::deserialize(deserializer)?;
        let kind = settings.get("kind").and_then(Value::as_str);
        let is_server = match kind {
            Some("step" | "resources" | "gymnasium") => true,
            Some(
                "exact-match" | "numeric" | "multiple-choice" | "regular-expression"
                | "json-schema",
            ) => false,
            Some(kind) => {
                let why = format!("there is no environment of kind '{kind}'; use {KINDS}");
                return Err(de::Error::custom(why));
            }
            None => {
                let why = format!("an environment needs a kind: {KINDS}");
                return Err(de::Error::custom(why));
            }
        };
        let settings = Value::Object(settings);
        if !is_server {
            let check = serde_json::from_value(settings).map_err(de::Error::custom)?;
            return Ok(Self::Check(check));
        }
        let server = serde_json::from_value(settings).map_err(de::Error::custom)?;
        Ok(match server {
            Server::Step { url } => Self::Step { url },
            Server::Resources { url } => Self::Resources { url },
            Server::Gymnasium { url } => Self::Gymnasium { url },
        })
    }
}

/// Why an environment can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// Its settings are wrong.
    #[error("the environment of task_name '{name}': {source}")]
    Settings {
        /// The task name.
        name: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Its address is none.
    #[error("the address '{url}' of the environment of task_name '{name}' can't be used: {reason}")]
    Address {
        /// The task name.
        name: String,
        /// What was given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// Its check can't judge anything.
    #[error("the environment of task_name '{name}': {source}")]
    Check {
        /// The task name.
        name: String,
        /// What is wrong.
        source: CheckError,
    },
}

impl EnvironmentSettings {
    /// Reads the settings of the environment of a task name.
    ///
    /// # Errors
    /// There is no such kind, or a setting that it does not have.
    pub fn parse(name: &str, settings: &Value) -> Result<Self, EnvironmentError> {
        Self::deserialize(settings).map_err(|source| EnvironmentError::Settings {
            name: name.to_owned(),
            source,
        })
    }
}

/// Sets up the environment of tasks of kind `name`; nothing is sent. `headers` go with every request,
/// and `step_deadline` is the longest time of each.
///
/// # Errors
/// An address can't be used, or a check can't judge anything.
pub fn environment(
    name: &str,
    settings: &EnvironmentSettings,
    headers: &HeaderMap,
    http: &HttpClients,
    step_deadline: Option<Duration>,
) -> Result<Arc<dyn Environment>, EnvironmentError> {
    let target = |url: &ServerUrl| {
        let target = Target::new(url.as_str(), headers.clone(), http.clone());
        target.map_err(|reason| EnvironmentError::Address {
            name: name.to_owned(),
            url: url.to_string(),
            reason,
        })
    };
    Ok(match settings {
        EnvironmentSettings::Step { url } => {
            Arc::new(StepServer::new(name, &target(url)?, step_deadline))
        }
        EnvironmentSettings::Resources { url } => {
            Arc::new(ResourcesServer::new(name, target(url)?, step_deadline))
        }
        EnvironmentSettings::Gymnasium { url } => {
            Arc::new(GymnasiumServer::new(name, target(url)?, step_deadline))
        }
        EnvironmentSettings::Check(check) => {
            let kind = kind(check);
            let check = check.clone().prepare();
            let check = check.map_err(|source| EnvironmentError::Check {
                name: name.to_owned(),
                source,
            })?;
            Arc::new(Checked::new(kind, check))
        }
    })
}

fn kind(check: &Check) -> &'static str {
    match check {
        Check::ExactMatch(_) => "exact-match",
        Check::Numeric(_) => "numeric",
        Check::MultipleChoice(_) => "multiple-choice",
        Check::RegularExpression(_) => "regular-expression",
        Check::JsonSchema(_) => "json-schema",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::scripted::http;

    fn set_up(settings: &Value) -> Result<Arc<dyn Environment>, EnvironmentError> {
        let settings = EnvironmentSettings::parse("math", settings)?;
        // What is written is read again as the same.
        let again = serde_json::to_value(&settings).unwrap();
        assert_eq!(
            EnvironmentSettings::parse("math", &again).unwrap(),
            settings
        );
        environment("math", &settings, &HeaderMap::new(), &http(), None)
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
        ] {
            assert_eq!(set_up(&settings).unwrap().address(), address);
        }
    }

    #[test]
    fn what_is_wrong_with_settings_is_said() {
        for (settings, expected) in [
            (
                json!({"kind": "steps"}),
                "no environment of kind 'steps'; use 'step'",
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
