//! [`AgentSettings`]: every option of one agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fields::{headers, one_or_many_of, optional_count, optional_price, optional_rate};
use super::{
    AgentKind, Concurrency, Driver, GroupFailure, Limit, ModelApi, Resources, Rules, ServerUrl,
    Span, VariableName,
};

/// Settings of one agent; what is absent is as for all agents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentSettings {
    /// What kind of agent it is: one that runs elsewhere, or one that rollstream runs itself.
    pub kind: Option<AgentKind>,
    /// The agent's address; it wins over what the head server says.
    pub url: Option<ServerUrl>,
    /// Calls in flight to this agent, within the limit for all.
    pub concurrency: Option<Concurrency>,
    /// Requests that are sent to this agent in a second, at most.
    #[serde(deserialize_with = "optional_rate")]
    pub requests_per_second: Option<f64>,
    /// Tokens that this agent may use in a minute, at most.
    #[serde(deserialize_with = "optional_rate")]
    pub tokens_per_minute: Option<f64>,
    /// The longest time that a rollout of this agent may take; what holds for all if not set.
    pub rollout_timeout: Option<Limit>,
    /// As `infra_budget` for all.
    #[serde(deserialize_with = "optional_count")]
    pub infra_budget: Option<u32>,
    /// As `rate_limit_budget` for all.
    #[serde(deserialize_with = "optional_count")]
    pub rate_limit_budget: Option<u32>,
    /// As `data_budget` for all.
    #[serde(deserialize_with = "optional_count")]
    pub data_budget: Option<u32>,
    /// As `max_attempts` for all.
    #[serde(deserialize_with = "optional_count")]
    pub max_attempts: Option<u32>,
    /// What a million tokens of input cost.
    #[serde(deserialize_with = "optional_price")]
    pub input_price: Option<f64>,
    /// What a million tokens of output cost.
    #[serde(deserialize_with = "optional_price")]
    pub output_price: Option<f64>,
    /// The environment variable that holds this agent's bearer token.
    pub bearer_token_env: Option<VariableName>,
    /// Headers for this agent, over those for all: header name to the variable that holds the value.
    #[serde(deserialize_with = "headers")]
    pub headers_env: BTreeMap<String, VariableName>,
    /// The addresses of the model's servers, for an agent that rollstream runs itself.
    #[serde(deserialize_with = "one_or_many_of")]
    pub model_url: Vec<ServerUrl>,
    /// The model's name, as its servers know it.
    pub model: Option<String>,
    /// What the model's servers understand.
    pub model_api: Option<ModelApi>,
    /// How often a call of the model is repeated after a failure of network or server, within one attempt.
    pub model_retries: Option<u32>,
    /// The address of the resources server: tools, state, verifier.
    pub resources_url: Option<ServerUrl>,
    /// What the resources server understands.
    pub resources: Option<Resources>,
    /// Calls of the model in a rollout of tool calls, at most.
    #[serde(deserialize_with = "optional_count")]
    pub max_steps: Option<u32>,
    /// Turns of a multi-turn rollout, at most.
    pub max_turns: Option<u32>,
    /// Tokens of a conversation, at most.
    #[serde(deserialize_with = "optional_count")]
    pub max_seq_len: Option<u64>,
    /// Tokens of one generation, at most; a row may ask for fewer.
    #[serde(deserialize_with = "optional_count")]
    pub max_new_tokens: Option<u64>,
    /// What counts and makes tokens: `whitespace`, `bytes`, or a Hugging Face `tokenizer.json` or its directory.
    pub tokenizer: Option<String>,
    /// Whether each sample goes at its own pace, or all of a batch take each turn together.
    pub driver: Option<Driver>,
    /// Samples that take their turns together.
    #[serde(deserialize_with = "optional_count")]
    pub batch_size: Option<usize>,
    /// What decides when a multi-turn rollout ends, and what is counted.
    pub rules: Option<Rules>,
    /// Whether a failed rollout fails the others of its prompt.
    pub group: Option<GroupFailure>,
    /// The longest time of a call of the model.
    pub generation_timeout: Option<Span>,
    /// The longest time of a step of an environment, or of a call of a tool.
    pub step_timeout: Option<Span>,
    /// The longest time that the rollouts of a prompt may take together.
    pub group_timeout: Option<Span>,
    /// The environments by task name; what each is made of is not interpreted here.
    pub environments: Map<String, Value>,
    /// Headers for the environments and the resources server: header name to the variable that holds the value. The
    /// bearer token and the other headers of an agent that rollstream runs itself are for its model alone.
    #[serde(deserialize_with = "headers")]
    pub environment_headers_env: BTreeMap<String, VariableName>,
}

impl AgentSettings {
    /// rollstream runs this agent itself.
    pub fn runs_here(&self) -> bool {
        !matches!(self.kind, None | Some(AgentKind::NemoGym))
    }
}
