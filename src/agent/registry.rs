use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use tokio::time::timeout;

use super::native::{self, Native};
use super::{Agent, AgentError, HeadServer, NemoGymAgent, Reply, RolloutRequest};
use crate::config::{
    AgentKind, AgentSettings, Concurrency, MemoryPlan, ServerUrl, Settings, Span, VariableName,
};
use crate::gym::GymRules;
use crate::http::{HttpClients, HttpSettings};
use crate::retry::{Budgets, Failure, FailureClass};

/// The environment variable with the bearer token for all agents, unless settings name another.
const BEARER_TOKEN: &str = "ROLLSTREAM_BEARER_TOKEN";

/// The environment variable with the key of OpenAI's API.
const OPENAI_KEY: &str = "OPENAI_API_KEY";

/// The agents of a sweep, by name.
#[derive(Debug, Default, Clone)]
pub struct Agents {
    members: HashMap<String, Member>,
}

/// An agent of a sweep and its limits.
#[derive(Debug, Clone)]
pub struct Member {
    /// The agent.
    pub agent: Arc<dyn Agent>,
    /// The agent's limits.
    pub limits: AgentLimits,
}

/// The limits of one agent, which apply on top of those of the sweep.
#[derive(Debug, Clone)]
pub struct AgentLimits {
    /// The most calls in flight.
    pub concurrency: Option<Concurrency>,
    /// The most requests per second.
    pub requests_per_second: Option<f64>,
    /// The most tokens per minute.
    pub tokens_per_minute: Option<f64>,
    /// The longest time of a rollout.
    pub rollout_timeout: Option<Duration>,
    /// The number of attempts at a rollout that may fail, by cause.
    pub budgets: Budgets,
}

impl Member {
    /// Sends one rollout and waits for its reply, for at most the agent's rollout timeout.
    pub async fn run(&self, request: RolloutRequest) -> Reply {
        let reply = self.agent.run(request);
        let Some(limit) = self.limits.rollout_timeout else {
            return reply.await;
        };
        timeout(limit, reply).await.unwrap_or_else(|_| {
            let address = self.agent.address();
            let span = humantime::format_duration(limit);
            let why = format!("{address}: no answer within {span} (--rollout-timeout)");
            Reply {
                elapsed: limit,
                ..Reply::new(Err(Failure::new(FailureClass::Timeout, why)))
            }
        })
    }
}

impl AgentLimits {
    /// Returns the limits that `settings` set for an agent, or else for all agents.
    pub fn of(name: &str, settings: &Settings) -> Self {
        let own = settings.agents.get(name);
        let auto = (settings.concurrency == Concurrency::Auto).then_some(Concurrency::Auto);
        let timeout = own.and_then(|own| own.rollout_timeout);
        let requests = own.and_then(|own| own.requests_per_second);
        let tokens = own.and_then(|own| own.tokens_per_minute);
        Self {
            concurrency: own.and_then(|own| own.concurrency).or(auto),
            requests_per_second: requests.or(settings.requests_per_second),
            tokens_per_minute: tokens.or(settings.tokens_per_minute),
            rollout_timeout: timeout.unwrap_or(settings.rollout_timeout).duration(),
            budgets: settings.budgets(name),
        }
    }
}

impl Agents {
    /// Sets up the agents in `names` from `settings`: their own addresses take
    /// precedence over the head server's.
    ///
    /// # Errors
    /// One has no address, the head server does not know it, or its secret is missing.
    pub async fn connect(names: &[String], settings: &Settings) -> Result<Self, AgentError> {
        let own = |name: &String| settings.agents.get(name).cloned().unwrap_or_default();
        let head = if names.iter().any(|name| native::needs_head(&own(name))) {
            HeadServer::of(settings).await
        } else {
            Ok(None)
        };
        let is_new = || matches!(&head, Ok(Some(head)) if head.has_environment_servers());
        let rules = settings.gym.rules(is_new);
        Self::connect_by(names, settings, rules, head)
    }

    /// Sets up agents with a head server that was asked before. Its failure only matters if an agent needs it.
    /// By rules with routing, a name may also be that of an environment server.
    ///
    /// # Errors
    /// The same as for [`Self::connect`].
    pub fn connect_by(
        names: &[String],
        settings: &Settings,
        rules: &'static GymRules,
        head: Result<Option<HeadServer>, AgentError>,
    ) -> Result<Self, AgentError> {
        let http = http_clients(settings)?;
        let none = AgentSettings::default();
        let own = |name: &String| settings.agents.get(name).unwrap_or(&none);
        let needs_head = names.iter().any(|name| native::needs_head(own(name)));
        let head = if needs_head { head? } else { None };
        let is_elsewhere =
            |name: &&String| own(name).kind.unwrap_or_default() == AgentKind::NemoGym;
        let (elsewhere, here): (Vec<_>, Vec<_>) = names.iter().partition(is_elsewhere);
        for name in names {
            // A setting that agents of this kind do not have is an error, and never ignored.
            own(name)
                .check_kind()
                .map_err(|reason| AgentError::Native {
                    agent: name.clone(),
                    reason,
                })?;
        }
        let mut members = HashMap::new();
        let mut add = |name: &str, agent: Arc<dyn Agent>| {
            let limits = AgentLimits::of(name, settings);
            members.insert(name.to_owned(), Member { agent, limits });
        };
        for (name, url) in addresses(&elsewhere, settings, rules, head.as_ref())? {
            let headers = headers(&name, own(&name), settings)?;
            let agent = NemoGymAgent::new(&name, &url, headers, http.clone(), rules)?;
            add(&name, Arc::new(agent));
        }
        for name in here {
            let native = Native {
                name,
                own: own(name),
                settings,
                http: &http,
                head: head.as_ref(),
            };
            add(name, native.connect()?);
        }
        Ok(Self { members })
    }

    /// Returns an agent by its name.
    pub fn get(&self, name: &str) -> Option<&Member> {
        self.members.get(name)
    }

    /// Adds an agent, or replaces the one of that name.
    pub fn insert(&mut self, name: impl Into<String>, member: Member) {
        self.members.insert(name.into(), member);
    }

    /// Returns the address of each agent, without secrets.
    pub fn addresses(&self) -> BTreeMap<String, String> {
        self.members
            .iter()
            .map(|(name, member)| (name.clone(), member.agent.address().to_owned()))
            .collect()
    }
}

pub(super) fn http_clients(settings: &Settings) -> Result<HttpClients, AgentError> {
    let clients = HttpClients::new(&HttpSettings {
        connections: settings.concurrency.most(),
        first_byte_timeout: settings.first_byte_timeout.map(Span::duration),
        connect_timeout: settings.connect_timeout.duration(),
        read_timeout: settings.read_timeout.duration(),
        max_body: settings.max_body.get(),
        body_memory: MemoryPlan::of(settings).answers,
    })?;
    Ok(clients)
}

fn addresses(
    names: &[&String],
    settings: &Settings,
    rules: &GymRules,
    head: Option<&HeadServer>,
) -> Result<BTreeMap<String, String>, AgentError> {
    let own = |name: &str| {
        let agent = settings.agents.get(name)?;
        Some(agent.url.as_ref()?.to_string())
    };
    let mut found: BTreeMap<String, String> = names
        .iter()
        .filter_map(|name| Some(((*name).clone(), own(name)?)))
        .collect();
    let rest: Vec<&str> = names
        .iter()
        .map(|name| name.as_str())
        .filter(|name| !found.contains_key(*name))
        .collect();
    match head {
        _ if rest.is_empty() => {}
        Some(head) if rules.routing => {
            let server = settings.server_of_all();
            found.extend(head.environment_addresses(rest.into_iter(), server)?);
        }
        Some(head) => found.extend(head.addresses(rest.into_iter())?),
        None => {
            let agents = quoted(&rest);
            return Err(AgentError::NoAddress { agents });
        }
    }
    Ok(found)
}

/// Formats names for people to read: each in quotes, separated by commas.
pub(super) fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    names.join(", ")
}

/// Returns the headers for the environments of an agent that rollstream runs itself.
pub(super) fn environment_headers(
    name: &str,
    own: &AgentSettings,
) -> Result<HeaderMap, AgentError> {
    let mut headers = HeaderMap::new();
    add_headers(&mut headers, own.environment_headers_env.iter(), name)?;
    Ok(headers)
}

/// Returns the headers of an agent, after those for all agents. Values come from the environment, never from
/// settings, so that no file or process list holds them.
pub(super) fn headers(
    name: &str,
    own: &AgentSettings,
    settings: &Settings,
) -> Result<HeaderMap, AgentError> {
    let mut headers = HeaderMap::new();
    let variable = own.bearer_token_env.as_ref();
    let variable = variable.or(settings.bearer_token_env.as_ref());
    let variable = match variable.map(|variable| &**variable) {
        None if std::env::var_os(BEARER_TOKEN).is_some() => Some(BEARER_TOKEN),
        None => key_of(&own.model_url),
        named => named,
    };
    add_bearer_token(&mut headers, variable, name)?;
    let own = settings.headers_env.iter().chain(&own.headers_env);
    add_headers(&mut headers, own, name)?;
    Ok(headers)
}

/// Adds the bearer token that an environment variable holds, if one is named.
pub(super) fn add_bearer_token(
    headers: &mut HeaderMap,
    variable: Option<&str>,
    name: &str,
) -> Result<(), AgentError> {
    let Some(variable) = variable else {
        return Ok(());
    };
    let purpose = format!("the bearer token of agent '{name}'");
    let token = secret(variable, &purpose)?;
    let value = header_value(&format!("Bearer {token}"), variable, &purpose)?;
    headers.insert(AUTHORIZATION, value);
    Ok(())
}

/// Returns the variable with the key of these model servers, if it is set: OpenAI's key is for OpenAI alone.
pub(super) fn key_of(urls: &[ServerUrl]) -> Option<&'static str> {
    let is_openai = |url: &ServerUrl| {
        let rest = url.as_str().strip_prefix("https://api.openai.com");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_meant = !urls.is_empty() && urls.iter().all(is_openai);
    (is_meant && std::env::var_os(OPENAI_KEY).is_some()).then_some(OPENAI_KEY)
}

fn add_headers<'a>(
    headers: &mut HeaderMap,
    variables: impl Iterator<Item = (&'a String, &'a VariableName)>,
    name: &str,
) -> Result<(), AgentError> {
    for (header, variable) in variables {
        let purpose = format!("header '{header}' of agent '{name}'");
        let value = header_value(&secret(variable, &purpose)?, variable, &purpose)?;
        let header = HeaderName::try_from(header.as_str())
            .map_err(|_| unusable(variable, &purpose, "names a header with an invalid name"))?;
        headers.insert(header, value);
    }
    Ok(())
}

fn secret(variable: &str, purpose: &str) -> Result<String, AgentError> {
    std::env::var(variable).map_err(|_| unusable(variable, purpose, "is not set"))
}

fn header_value(value: &str, variable: &str, purpose: &str) -> Result<HeaderValue, AgentError> {
    let mut value = HeaderValue::try_from(value).map_err(|_| {
        unusable(
            variable,
            purpose,
            "holds characters that a header can't carry",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn unusable(variable: &str, purpose: &str, reason: &'static str) -> AgentError {
    AgentError::Secret {
        variable: variable.to_owned(),
        purpose: purpose.to_owned(),
        reason,
    }
}
