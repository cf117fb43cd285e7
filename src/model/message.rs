use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Role of what an environment says.
pub const OBSERVATION_ROLE: &str = "environment";

/// A message of a multi-turn log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `user`, `assistant`, `environment`, ...
    pub role: String,
    /// A text, or a list of parts.
    pub content: Value,
    /// Its tokens, where they are known exactly. Those of an observation that was cut are fewer than
    /// those of its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Log-probability of each token, where the model gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
    /// Number of its tokens.
    #[serde(default)]
    pub token_count: u64,
}

impl Message {
    /// A message of which nothing but its text is known.
    pub fn text(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Value::String(content.into()),
            ..Self::default()
        }
    }
}
