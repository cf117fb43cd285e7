use std::collections::BTreeMap;
use std::time::Duration;

use serde_yaml_ng::Value;
use url::Url;

use super::AgentError;
use super::registry::http_clients;
use crate::config::Settings;
use crate::http::{HttpClients, describe};

/// Deadline for the head server, which answers from memory.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Keys under which the head server's configuration holds agents, and what stands before them since 0.7.
const AGENTS: &str = "responses_api_agents";
const ENVIRONMENT_SERVERS: &str = "environment_servers";

/// NeMo Gym's head server, as far as a collector needs it: the addresses of its agents.
#[derive(Debug)]
pub struct HeadServer {
    url: String,
    servers: BTreeMap<String, Server>,
}

/// A server, and the servers that it asks by what they are to it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Server {
    kind: String,
    address: String,
    references: BTreeMap<String, String>,
}

impl HeadServer {
    /// What the server of its tools is to an agent.
    pub(super) const RESOURCES_SERVER: &str = "resources_server";
    /// What the server of its model is to an agent.
    pub(super) const MODEL_SERVER: &str = "model_server";

    /// Address of the server that an agent asks, by what it is to it; none where it names none.
    ///
    /// # Errors
    /// It does not know the agent, or that server.
    pub(super) fn server_of(&self, agent: &str, what: &str) -> Result<Option<String>, AgentError> {
        self.addresses(std::iter::once(agent))?;
        let server = self.servers.get(agent);
        let name = server.and_then(|server| server.references.get(what));
        let Some(name) = name else { return Ok(None) };
        let addresses = self.addresses(std::iter::once(name.as_str()))?;
        Ok(addresses.into_values().next())
    }

    /// The head server that settings name, asked for its configuration.
    ///
    /// # Errors
    /// It can't be reached, or what it answers is not such a configuration.
    pub async fn of(settings: &Settings) -> Result<Option<Self>, AgentError> {
        match &settings.head_server {
            Some(url) => Self::ask(url.as_str(), &http_clients(settings)?)
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    /// Asks the head server at `url` for its configuration.
    ///
    /// # Errors
    /// It can't be reached, or what it answers is not such a configuration.
    pub async fn ask(url: &str, http: &HttpClients) -> Result<Self, AgentError> {
        let refuse = |reason: String| AgentError::HeadServer {
            url: url.to_owned(),
            reason,
        };
        let base = Url::parse(url).map_err(|source| refuse(source.to_string()))?;
        let address = format!("{}/global_config_dict_yaml", url.trim_end_matches('/'));
        let ask = async {
            let response = http
                .for_url(&base)
                .get(address)
                .send()
                .await?
                .error_for_status()?;
            response.text().await
        };
        let text = tokio::time::timeout(TIMEOUT, ask)
            .await
            .map_err(|_| refuse(format!("no answer within {TIMEOUT:?}")))?
            .map_err(|source| refuse(describe(&source)))?;
        let servers = servers(&text)
            .map_err(|reason| refuse(format!("its answer is not a configuration: {reason}")))?;
        Ok(Self {
            url: url.to_owned(),
            servers,
        })
    }

    /// It runs a version of NeMo Gym that has environment servers, which 0.5 did not.
    pub fn has_environment_servers(&self) -> bool {
        let mut servers = self.servers.values();
        servers.any(|server| server.kind == ENVIRONMENT_SERVERS)
    }

    /// Addresses of the agents that `names` names.
    ///
    /// # Errors
    /// One that it does not know.
    pub fn addresses<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, String>, AgentError> {
        let (known, unknown): (Vec<&str>, Vec<&str>) =
            names.partition(|name| self.servers.contains_key(*name));
        if !unknown.is_empty() {
            let list = |names: &[&str]| {
                names
                    .iter()
                    .map(|name| format!("'{name}'"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let servers = self.servers.iter();
            let agents = servers.filter(|(_, server)| server.kind == AGENTS);
            let agents: Vec<&str> = agents.map(|(name, _)| name.as_str()).collect();
            let known = if agents.is_empty() {
                "none".to_owned()
            } else {
                list(&agents)
            };
            return Err(AgentError::Unknown {
                url: self.url.clone(),
                unknown: list(&unknown),
                known,
            });
        }
        Ok(known
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.servers.get(name)?.address.clone())))
            .collect())
    }
}

/// All servers by name, from the head server's answer: a JSON string whose text is YAML.
fn servers(answer: &str) -> Result<BTreeMap<String, Server>, String> {
    let yaml: String = serde_json::from_str(answer).map_err(|source| source.to_string())?;
    let config: Value = serde_yaml_ng::from_str(&yaml).map_err(|source| source.to_string())?;
    let config = config.as_mapping().ok_or("it is not a mapping")?;
    let found = config.iter().filter_map(|(name, server)| {
        let (kind, inner) = first(server)?;
        let (_, settings) = first(inner)?;
        let host = settings.get("host")?.as_str()?;
        let address = format!("http://{}:{}", bracketed(host), port(settings)?);
        let reference = |what: &str| {
            let name = settings.get(what)?.get("name")?.as_str()?;
            Some((what.to_owned(), name.to_owned()))
        };
        let references = [HeadServer::RESOURCES_SERVER, HeadServer::MODEL_SERVER];
        let server = Server {
            kind: kind.as_str()?.to_owned(),
            address,
            references: references.into_iter().filter_map(reference).collect(),
        };
        Some((name.as_str()?.to_owned(), server))
    });
    Ok(found.collect())
}

fn first(value: &Value) -> Option<(&Value, &Value)> {
    value.as_mapping()?.iter().next()
}

fn port(settings: &Value) -> Option<u16> {
    let port = settings.get("port")?;
    let number = port.as_u64().or_else(|| port.as_str()?.parse().ok())?;
    u16::try_from(number).ok()
}

fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_through_the_first_key_twice() {
        let yaml = "policy_base_url: http://model\n\
            head_server:\n  host: 127.0.0.1\n  port: 11000\n\
            alpha:\n  responses_api_agents:\n    simple_agent:\n      host: 127.0.0.1\n      port: 12001\n      \
            model_server: {type: responses_api_models, name: policy}\n\
            tools:\n  resources_servers:\n    weather:\n      host: '::1'\n      port: '12002'\n      url: ${policy_base_url}\n";
        let servers = servers(&serde_json::to_string(yaml).unwrap()).unwrap();
        assert_eq!(servers["alpha"].kind, AGENTS);
        assert_eq!(servers["alpha"].address, "http://127.0.0.1:12001");
        assert_eq!(servers["alpha"].references["model_server"], "policy");
        assert_eq!(servers["tools"].address, "http://[::1]:12002");
        assert_eq!(servers.len(), 2);
    }

    #[test]
    fn what_is_not_a_configuration_is_an_error() {
        for answer in ["<html>", "{}", "\"- 1\"", "\"a: [\""] {
            assert!(servers(answer).is_err(), "{answer}");
        }
    }
}
