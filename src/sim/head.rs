//! The head server: [`Head`] tells where the agents are, and how they fare.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request};
use serde_json::{Map, Value, json};

use super::counters::{AgentCounters, Counts};
use super::error::SimError;
use super::http::{Reply, alive, json as reply_json, json_of, not_found};

/// What an agent is to the head server.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    /// Host under which clients reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its counters.
    pub counters: Arc<AgentCounters>,
}

/// The head server of a simulation.
#[derive(Debug)]
pub(super) struct Head {
    global_config: Bytes,
    server_instances: Bytes,
    agents: BTreeMap<String, Listed>,
}

impl Head {
    /// The head server at `address`, under the host that clients know it by.
    ///
    /// # Errors
    /// The names cannot be written as YAML.
    pub(super) fn new(
        host: &str,
        address: SocketAddr,
        agents: BTreeMap<String, Listed>,
    ) -> Result<Self, SimError> {
        let mut servers = Map::new();
        servers.insert(
            "head_server".into(),
            json!({"host": host, "port": address.port()}),
        );
        for (name, Listed { host, port, .. }) in &agents {
            let agent = json!({"entrypoint": "app.py", "host": host, "port": port});
            servers.insert(
                name.clone(),
                json!({"responses_api_agents": {"sim_agent": agent}}),
            );
        }
        let yaml = serde_yaml_ng::to_string(&servers).map_err(|e| SimError::Head(e.to_string()))?;
        let instances: Vec<Value> = agents.iter().map(instance).collect();
        Ok(Self {
            global_config: Value::String(yaml).to_string().into(),
            server_instances: Value::Array(instances).to_string().into(),
            agents,
        })
    }

    /// Answers a request.
    pub(super) fn answer(&self, request: &Request<Incoming>) -> Reply {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/global_config_dict_yaml") => reply_json(self.global_config.clone()),
            (&Method::GET, "/server_instances") => reply_json(self.server_instances.clone()),
            (&Method::GET, "/stats") => json_of(&json!({ "agents": self.counts() })),
            (&Method::GET, "/") => alive(),
            _ => not_found(),
        }
    }

    /// A reading of every agent's counters, by name.
    pub(super) fn counts(&self) -> BTreeMap<String, Counts> {
        let read = |(name, agent): (&String, &Listed)| (name.clone(), agent.counters.read());
        self.agents.iter().map(read).collect()
    }

    /// The addresses of the agents, by name.
    pub(super) fn agent_urls(&self) -> BTreeMap<String, String> {
        let url = |(name, agent): (&String, &Listed)| (name.clone(), url(&agent.host, agent.port));
        self.agents.iter().map(url).collect()
    }
}

/// `http://host:port`, with brackets around an IPv6 address.
pub(super) fn url(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("http://[{host}]:{port}")
    } else {
        format!("http://{host}:{port}")
    }
}

fn instance((name, agent): (&String, &Listed)) -> Value {
    json!({
        "process_name": name,
        "name": "sim_agent",
        "server_type": "responses_api_agents",
        "host": agent.host,
        "port": agent.port,
        "url": url(&agent.host, agent.port),
        "pid": std::process::id(),
        "status": "success",
    })
}
