//! Sets up the agents that rollstream runs itself, from settings.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::head_server::ServerOf;
use super::multi_turn::{Environments, Limits, MultiTurnAgent, MultiTurnOptions};
use super::registry::{add_bearer_token, environment_headers, headers, key_of};
use super::{Agent, AgentError, HeadServer, ToolCallingAgent, ToolCallingOptions};
use crate::call::Target;
use crate::config::{AgentKind, AgentSettings, ModelApi, ServerUrl, Settings, Span, VariableName};
use crate::environment::{self, Environment, EnvironmentError, Shared};
use crate::http::HttpClients;
use crate::model::{
    CHAT_COMPLETIONS, COMPLETIONS, ChatPolicy, CompletionsPolicy, Endpoints, ModelClient,
    ModelRetries, Policy, Responder, ResponsesModel, tokenizer,
};
use crate::servers::Servers;
use serde::Deserialize;
use serde_json::Value;

/// The default of `max_turns`.
const MAX_TURNS: u32 = 10;

/// The default of `max_seq_len`: no model reads more.
const MAX_SEQ_LEN: u64 = u64::MAX;

/// The settings of one agent that rollstream runs itself, and the inputs for its setup.
pub(super) struct Native<'a> {
    pub(super) name: &'a str,
    pub(super) own: &'a AgentSettings,
    pub(super) settings: &'a Settings,
    pub(super) http: &'a HttpClients,
    pub(super) head: Option<&'a HeadServer>,
}

/// Returns whether the head server is needed to find servers of this agent.
pub(super) fn needs_head(own: &AgentSettings) -> bool {
    match own.kind.unwrap_or_default() {
        AgentKind::NemoGym => own.url.is_none(),
        AgentKind::Responses => own.model_url.is_empty() || own.resources_url.is_none(),
        AgentKind::MultiTurn => false,
    }
}

impl Native<'_> {
    /// Sets up the agent. Sends nothing.
    pub(super) fn connect(&self) -> Result<Arc<dyn Agent>, AgentError> {
        match self.own.kind.unwrap_or_default() {
            AgentKind::MultiTurn => self.multi_turn(),
            _ => self.tool_calling(),
        }
    }

    fn tool_calling(&self) -> Result<Arc<dyn Agent>, AgentError> {
        let of_head = |server: ServerOf| match self.head {
            Some(head) => head.referred(self.name, server),
            None => Ok(None),
        };
        let mut models: Vec<String> = self.own.model_url.iter().map(ToString::to_string).collect();
        // The model servers of NeMo Gym understand Responses.
        let mut api = self.own.model_api.unwrap_or_default();
        if models.is_empty() {
            models.extend(of_head(Servers::model_server_of)?);
            api = self.own.model_api.unwrap_or(ModelApi::Responses);
        }
        let resources = match &self.own.resources_url {
            Some(url) => Some(url.to_string()),
            None => of_head(Servers::resources_server_of)?,
        };
        let resources = resources.ok_or_else(|| self.refuse(
            "nothing says where its resources server is: set resources_url, or --head-server where it has a \
             resources_server",
        ))?;
        let endpoints = self.endpoints(&models)?;
        let (name, retries) = (self.model_name(), self.retries());
        let model: Arc<dyn Responder> = match api {
            ModelApi::Responses => Arc::new(ResponsesModel::new(endpoints, name, retries)),
            ModelApi::ChatCompletions => {
                Arc::new(ResponsesModel::over_chat(endpoints, name, retries))
            }
            ModelApi::Completions => {
                return Err(self.refuse(
                    "model_api = 'completions' knows no tools; use 'responses' or 'chat-completions'",
                ));
            }
        };
        let target = Target::new(
            &resources,
            environment_headers(self.name, self.own)?,
            self.http.clone(),
        );
        let target = target.map_err(|reason| AgentError::Address {
            agent: self.name.to_owned(),
            url: resources.clone(),
            reason,
        })?;
        let options = ToolCallingOptions {
            protocol: self.own.resources.unwrap_or_default(),
            max_steps: self.own.max_steps,
            step_timeout: self.own.step_timeout.map(Span::duration),
        };
        Ok(Arc::new(ToolCallingAgent::new(model, target, options)))
    }

    fn multi_turn(&self) -> Result<Arc<dyn Agent>, AgentError> {
        let own = self.own;
        let models: Vec<String> = own.model_url.iter().map(ToString::to_string).collect();
        let endpoints = self.endpoints(&models)?;
        let client = |path| {
            ModelClient::new(
                Arc::clone(&endpoints),
                path,
                self.model_name(),
                self.retries(),
            )
        };
        let api = own.model_api.unwrap_or_default();
        let policy: Arc<dyn Policy> = match api {
            ModelApi::ChatCompletions => Arc::new(ChatPolicy(client(CHAT_COMPLETIONS))),
            ModelApi::Completions => Arc::new(CompletionsPolicy(client(COMPLETIONS))),
            ModelApi::Responses => {
                return Err(self.refuse(
                    "model_api = 'responses' is for kind = 'responses'; use 'chat-completions' or 'completions'",
                ));
            }
        };
        let spec = own.tokenizer.as_deref().unwrap_or("whitespace");
        if api == ModelApi::Completions && spec == "whitespace" {
            return Err(self.refuse(
                "model_api = 'completions' sends token ids, and the whitespace tokenizer has none; set tokenizer to \
                 'bytes', or to the model's tokenizer.json",
            ));
        }
        let tokenizer = tokenizer(spec).map_err(|error| self.refuse(&error.to_string()))?;
        let mut environments = Vec::new();
        for (task_name, settings) in &own.environments {
            let environment = self.environment(task_name, settings, &endpoints)?;
            environments.push((task_name.clone(), environment));
        }
        if environments.is_empty() {
            return Err(self.refuse(&format!(
                "it has no environments, so nothing scores its answers; give --check KIND or --judge-model NAME, or add \
                 [agents.{}.environments.TASK_NAME]",
                self.name
            )));
        }
        Ok(Arc::new(MultiTurnAgent::new(MultiTurnOptions {
            policy,
            environments: Environments::new(environments),
            tokenizer,
            rules: own.rules.unwrap_or_default(),
            limits: Limits {
                max_turns: own.max_turns.unwrap_or(MAX_TURNS),
                max_seq_len: own.max_seq_len.unwrap_or(MAX_SEQ_LEN),
            },
            max_new_tokens: own.max_new_tokens,
            driver: own.driver.unwrap_or_default(),
            batch_size: own.batch_size.and_then(NonZeroUsize::new),
            group: own.group.unwrap_or_default(),
            group_timeout: own.group_timeout.map(Span::duration),
        })))
    }

    fn environment(
        &self,
        task_name: &str,
        settings: &Value,
        model: &Arc<Endpoints>,
    ) -> Result<Arc<dyn Environment>, AgentError> {
        let wrong = |source| {
            let name = task_name.to_owned();
            self.refuse(&EnvironmentError::Settings { name, source }.to_string())
        };
        let mut settings = settings.clone();
        let fields = settings.as_object_mut();
        let variable = fields.and_then(|fields| fields.shift_remove("bearer_token_env"));
        let variable = variable.map(VariableName::deserialize).transpose();
        let variable = variable.map_err(wrong)?;
        let url = settings.get("url").map(ServerUrl::deserialize).transpose();
        let url = url.map_err(wrong)?;
        let variable = match &variable {
            Some(variable) => Some(&**variable),
            None => key_of(url.as_slice()),
        };
        let mut headers = environment_headers(self.name, self.own)?;
        add_bearer_token(&mut headers, variable, self.name)?;
        let shared = Shared {
            headers: &headers,
            http: self.http,
            model,
            retries: ModelRetries {
                deadline: self.own.step_timeout.map(Span::duration),
                ..self.retries()
            },
        };
        environment::environment(task_name, &settings, &shared)
            .map_err(|error| self.refuse(&error.to_string()))
    }

    fn endpoints(&self, addresses: &[String]) -> Result<Arc<Endpoints>, AgentError> {
        if addresses.is_empty() {
            return Err(
                self.refuse("nothing says where its model is: set model_url (--model-url URL)")
            );
        }
        let headers = headers(self.name, self.own, self.settings)?;
        Endpoints::new(self.model_name(), addresses, &headers, self.http)
            .map_err(|error| self.refuse(&error.to_string()))
    }

    fn model_name(&self) -> &str {
        self.own.model.as_deref().unwrap_or_default()
    }

    fn retries(&self) -> ModelRetries {
        let own = self.own.model_retries;
        let default = ModelRetries::default();
        ModelRetries {
            retries: own.unwrap_or(default.retries),
            backoff: self.settings.backoff(),
            deadline: self.own.generation_timeout.map(Span::duration),
        }
    }

    fn refuse(&self, reason: &str) -> AgentError {
        AgentError::Native {
            agent: self.name.to_owned(),
            reason: reason.to_owned(),
        }
    }
}
