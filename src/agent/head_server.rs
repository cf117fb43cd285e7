use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::AgentError;
use super::registry::{http_clients, quoted};
use crate::config::Settings;
use crate::http::{HttpClients, describe};
use crate::servers::Servers;

/// Deadline for the head server, which answers from memory.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Finds the server of a kind that another refers to.
pub(super) type ServerOf = for<'a> fn(&'a Servers, &str) -> Option<&'a str>;

/// NeMo Gym's head server, with the configuration of the servers that it returned.
#[derive(Debug)]
pub struct HeadServer {
    url: String,
    servers: Arc<Servers>,
}

impl HeadServer {
    /// Returns the servers that it knows.
    pub fn servers(&self) -> &Arc<Servers> {
        &self.servers
    }

    /// Returns the address of the server that `server` finds for an agent; none if the agent refers to none.
    ///
    /// # Errors
    /// The head server does not know the agent, or that server.
    pub(super) fn referred(
        &self,
        agent: &str,
        server: ServerOf,
    ) -> Result<Option<String>, AgentError> {
        self.addresses(std::iter::once(agent))?;
        let Some(name) = server(&self.servers, agent) else {
            return Ok(None);
        };
        let addresses = self.addresses(std::iter::once(name))?;
        Ok(addresses.into_values().next())
    }

    /// Asks the head server that settings name, if any, for its configuration.
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
            servers: Arc::new(servers),
        })
    }

    /// Returns whether NeMo Gym runs environment servers there, which 0.5 did not have.
    pub fn has_environment_servers(&self) -> bool {
        self.servers.has_environment_servers()
    }

    /// Returns the addresses of the environment servers that get the rows of the agents in `names`, or that `names`
    /// contains. `server`, if given, gets all other rows. An older NeMo Gym has no environment servers: then
    /// the addresses are those of the agents.
    ///
    /// # Errors
    /// The head server does not know an agent, or not exactly one environment server refers to it.
    pub fn environment_addresses<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        server: Option<&str>,
    ) -> Result<BTreeMap<String, String>, AgentError> {
        if !self.has_environment_servers() {
            return self.addresses(names);
        }
        let mut found = BTreeMap::new();
        for name in names {
            let server = self.environment_server(name, server)?;
            let addresses = self.addresses(std::iter::once(server))?;
            found.extend(
                addresses
                    .into_values()
                    .map(|address| (name.to_owned(), address)),
            );
        }
        Ok(found)
    }

    /// Returns the environment server of this name or else `server`; without `server`, the one for the rows of the
    /// agent of this name.
    ///
    /// # Errors
    /// An agent that no single environment server refers to.
    pub fn environment_server<'a>(
        &'a self,
        name: &'a str,
        server: Option<&'a str>,
    ) -> Result<&'a str, AgentError> {
        match server {
            _ if self.servers.is_environment_server(name) => Ok(name),
            Some(server) => Ok(server),
            None => self
                .servers
                .server_of_agent(name)
                .map_err(AgentError::Route),
        }
    }

    /// Returns the addresses of the servers in `names`.
    ///
    /// # Errors
    /// The head server does not know one of them.
    pub fn addresses<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<BTreeMap<String, String>, AgentError> {
        let (known, unknown): (Vec<&str>, Vec<&str>) =
            names.partition(|name| self.servers.address(name).is_some());
        if !unknown.is_empty() {
            let mut agents: Vec<&str> = self.servers.agents().collect();
            agents.sort_unstable();
            let known = if agents.is_empty() {
                "none".to_owned()
            } else {
                quoted(&agents)
            };
            return Err(AgentError::Unknown {
                url: self.url.clone(),
                unknown: quoted(&unknown),
                known,
            });
        }
        Ok(known
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.servers.address(name)?.to_owned())))
            .collect())
    }
}

/// Reads the servers from the head server's answer, a JSON string whose text is YAML.
fn servers(answer: &str) -> Result<Servers, String> {
    let yaml: String = serde_json::from_str(answer).map_err(|source| source.to_string())?;
    Servers::parse(&yaml)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_the_environment_server_of_their_agent() {
        let server = |port: u16| format!("{{host: h, port: {port}}}");
        let environment = |port: u16, agent: &str| {
            format!(
                "{{environment_servers: {{e: {{host: h, port: {port}, agent_server: {{name: {agent}}}}}}}}}"
            )
        };
        let agent = |name: &str, port| {
            format!(
                "{name}: {{responses_api_agents: {{s: {}}}}}\n",
                server(port)
            )
        };
        let agents = agent("a", 1) + &agent("b", 2);
        let head = |yaml: &str| HeadServer {
            url: "http://head".to_owned(),
            servers: Arc::new(Servers::parse(yaml).unwrap()),
        };
        let ask = |yaml: &str, name, server| {
            let found = head(yaml).environment_addresses(std::iter::once(name), server);
            found
                .map(|mut found| found.remove(name))
                .map_err(|error| error.to_string())
        };
        let at = |port: u16| Ok(Some(format!("http://h:{port}")));
        assert_eq!(ask(&agents, "a", None), at(1));
        let with = format!(
            "{agents}x: {}\ny: {}\n",
            environment(3, "a"),
            environment(4, "b")
        );
        assert_eq!(ask(&with, "a", None), at(3));
        assert_eq!(ask(&with, "y", None), at(4));
        assert_eq!(ask(&with, "a", Some("y")), at(4));
        assert!(
            ask(&with, "c", None)
                .unwrap_err()
                .contains("no environment server")
        );
    }

    #[test]
    fn what_is_not_a_configuration_is_an_error() {
        for answer in ["<html>", "{}", "\"- 1\"", "\"a: [\""] {
            assert!(servers(answer).is_err(), "{answer}");
        }
    }
}
