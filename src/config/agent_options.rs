//! [`AgentSettings`]: every option of one agent, and the choices for agents that rollstream runs itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::option_spec::{Identity, OptionSpec, Target, options};
use super::{Concurrency, Limit, ServerUrl, Span, VariableName};

/// The kinds of agents that rollstream runs itself.
const HERE: &[AgentKind] = &[AgentKind::Responses, AgentKind::MultiTurn];
const RESPONSES: &[AgentKind] = &[AgentKind::Responses];
const MULTI_TURN: &[AgentKind] = &[AgentKind::MultiTurn];

options! {
    /// The options of one agent. What is not set is as for all agents.
    pub struct AgentSettings {
        /// What kind of agent it is: one that runs elsewhere, or one that rollstream runs itself.
        kind: Option<AgentKind>, identity(Identity::Value);
        /// Address of an agent; repeatable
        ///
        /// It wins over what the head server says.
        url: Option<ServerUrl>, agent_flag("--agent-url NAME=URL"), only(&[AgentKind::NemoGym]);
        /// Calls in flight to one agent, or auto; repeatable
        ///
        /// The limit for all agents holds too.
        concurrency: Option<Concurrency>, agent_flag("--agent-concurrency NAME=N");
        /// Requests to one agent per second; repeatable
        #[serde(deserialize_with = "super::fields::optional_rate")]
        requests_per_second: Option<f64>, agent_flag("--agent-requests-per-second NAME=X");
        /// Tokens of one agent per minute; repeatable
        #[serde(deserialize_with = "super::fields::optional_rate")]
        tokens_per_minute: Option<f64>, agent_flag("--agent-tokens-per-minute NAME=X");
        /// The longest time for a rollout of this agent.
        rollout_timeout: Option<Limit>;
        /// As `infra_budget` for all.
        #[serde(deserialize_with = "super::fields::optional_count")]
        infra_budget: Option<u32>;
        /// As `rate_limit_budget` for all.
        #[serde(deserialize_with = "super::fields::optional_count")]
        rate_limit_budget: Option<u32>;
        /// As `data_budget` for all.
        #[serde(deserialize_with = "super::fields::optional_count")]
        data_budget: Option<u32>;
        /// As `max_attempts` for all.
        #[serde(deserialize_with = "super::fields::optional_count")]
        max_attempts: Option<u32>;
        /// The price of a million tokens of input.
        #[serde(deserialize_with = "super::fields::optional_price")]
        input_price: Option<f64>;
        /// The price of a million tokens of output.
        #[serde(deserialize_with = "super::fields::optional_price")]
        output_price: Option<f64>;
        /// The environment variable that holds the agent's bearer token.
        bearer_token_env: Option<VariableName>;
        /// Headers for the agent, over those for all: header name to the environment variable that holds the value.
        #[serde(deserialize_with = "super::fields::headers")]
        headers_env: BTreeMap<String, VariableName>;
        /// Model endpoint, OpenAI-style, with or without /v1: ask it the questions of the input; repeatable
        ///
        /// Of several servers of the same model, the least busy healthy one is asked.
        #[serde(deserialize_with = "super::fields::one_or_many_of")]
        model_url: Vec<ServerUrl>, model_flag("--model-url URL"), only(HERE);
        /// Name of the model, as its endpoint knows it
        model: Option<String>, model_flag("--model NAME"), only(HERE), identity(Identity::Value);
        /// The API of the model's servers.
        model_api: Option<ModelApi>, only(HERE), identity(Identity::Value);
        /// How often a call of the model is retried after a failure of network or server, within one attempt.
        model_retries: Option<u32>, only(HERE);
        /// The address of the resources server: tools, state, verifier.
        resources_url: Option<ServerUrl>, only(RESPONSES);
        /// The API of the resources server.
        resources: Option<Resources>, only(RESPONSES), identity(Identity::Value);
        /// Most calls of the model in a rollout of tool calls.
        #[serde(deserialize_with = "super::fields::optional_count")]
        max_steps: Option<u32>, only(RESPONSES), identity(Identity::Value);
        /// Most turns of a multi-turn rollout.
        max_turns: Option<u32>, only(MULTI_TURN), identity(Identity::Value);
        /// Most tokens of a conversation.
        #[serde(deserialize_with = "super::fields::optional_count")]
        max_seq_len: Option<u64>, only(MULTI_TURN), identity(Identity::Value);
        /// Most tokens of one generation; a row may ask for fewer.
        #[serde(deserialize_with = "super::fields::optional_count")]
        max_new_tokens: Option<u64>, only(MULTI_TURN), identity(Identity::Value);
        /// The tokenizer: `whitespace`, `bytes`, or a Hugging Face `tokenizer.json` or its directory.
        tokenizer: Option<String>, only(MULTI_TURN), identity(Identity::Value);
        /// Whether each sample goes at its own pace, or all of a batch take each turn together.
        driver: Option<Driver>, only(MULTI_TURN);
        /// Samples that take their turns together.
        #[serde(deserialize_with = "super::fields::optional_count")]
        batch_size: Option<usize>, only(MULTI_TURN);
        /// The rules by which a multi-turn rollout ends and is counted.
        rules: Option<Rules>, only(MULTI_TURN), identity(Identity::Value);
        /// Whether a failed rollout fails the others of its prompt.
        group: Option<GroupFailure>, only(MULTI_TURN);
        /// The longest time for a call of the model.
        generation_timeout: Option<Span>, only(HERE);
        /// The longest time for a step of an environment, or for a call of a tool.
        step_timeout: Option<Span>, only(HERE);
        /// The longest time for all rollouts of a prompt together.
        group_timeout: Option<Span>, only(MULTI_TURN);
        /// The environments by task name, not interpreted here; `_default` is for all other task names.
        environments: Map<String, Value>,
            check_flag("--check KIND", &["kind"], Target::Text,
                "Score its answers: exact-match, numeric, multiple-choice, regular-expression or json-schema; \
                 `rollstream help native` says which fields the rows need"),
            check_flag("--check-option NAME=VALUE", &[], Target::Named,
                "A setting of the check, such as tolerance=0.01 or expected_field=gold; repeatable"),
            check_flag("--judge-model NAME", &["model"], Target::Text,
                "Score its answers by this model, from 0 to 1, instead of a check"),
            check_flag("--judge-url URL", &["url"], Target::Text,
                "Endpoint of the judge [default: that of --model-url]"),
            check_flag("--judge-rubric FILE", &["rubric"], Target::File,
                "Text file that tells the judge how to grade [default: agreement with the expected answer]"),
            check_flag("--judge-token-env VAR", &["bearer_token_env"], Target::Text,
                "Environment variable that holds the bearer token of --judge-url"),
            only(MULTI_TURN), identity(Identity::Content);
        /// Headers for the environments and the resources server: header name to the environment variable that holds the
        /// value. The bearer token and the other headers of the agent are for its model alone.
        #[serde(deserialize_with = "super::fields::headers")]
        environment_headers_env: BTreeMap<String, VariableName>, only(HERE);
    }
}

impl AgentSettings {
    /// Returns whether rollstream runs this agent itself.
    pub fn runs_here(&self) -> bool {
        !matches!(self.kind, None | Some(AgentKind::NemoGym))
    }

    /// Refuses options that agents of its kind do not have.
    pub(crate) fn check_kind(&self) -> Result<(), String> {
        let kind = self.kind.unwrap_or_default();
        let values = serde_json::to_value(self).unwrap_or_default();
        let is_set = |option: &OptionSpec| values.get(option.key) != Some(&option.default);
        let is_wrong = |option: &&OptionSpec| {
            !option.kinds.is_empty() && !option.kinds.contains(&kind) && is_set(option)
        };
        let Some(OptionSpec { key, kinds, .. }) = Self::options().iter().find(is_wrong) else {
            return Ok(());
        };
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("\"{kind}\"")).collect();
        let kinds = kinds.join(" or ");
        Err(format!(
            "{key} is for agents of kind = {kinds}, and this one is of kind = \"{kind}\""
        ))
    }
}

/// The kind of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentKind {
    /// An agent server of NeMo Gym: `POST /run`.
    #[default]
    NemoGym,
    /// A model and a resources server; rollstream calls the tools.
    Responses,
    /// A model and environments, which take turns.
    MultiTurn,
}

/// Prints the name in files.
impl fmt::Display for AgentKind {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.serialize(formatter)
    }
}

/// The API of a model's servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelApi {
    /// `/v1/responses`
    Responses,
    /// `/v1/chat/completions`
    #[default]
    ChatCompletions,
    /// `/v1/completions` with token ids in and out, as vLLM and SGLang have it.
    Completions,
}

/// The API of a resources server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resources {
    /// `/seed_session`, a path per tool, `/verify`.
    #[default]
    Tools,
    /// `/reset` and `/step`.
    Gymnasium,
}

/// The pace of the samples of a multi-turn agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Each goes at its own pace.
    #[default]
    PerSample,
    /// All of a batch take each turn together.
    Lockstep,
}

/// The rules of a multi-turn rollout: those of NeMo RL now, and of its older forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// The current ones.
    #[default]
    PerSample,
    /// The current ones in which a batch takes each turn together.
    Lockstep,
    /// The older form in which each sample went at its own pace.
    PerSampleLegacy,
    /// The older form in which a batch took each turn together.
    LockstepLegacy,
}

/// The effect of a failed rollout on the others of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupFailure {
    /// Nothing.
    #[default]
    Each,
    /// They fail with it.
    All,
}
