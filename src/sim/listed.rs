//! What the head server lists: [`Listed`], an agent or a server of a [`Role`].

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::control::Control;
use super::head::url;
use crate::gym::GymRules;

/// The names of the servers that are no agents, and of the agent that stands for them.
pub(super) const MODEL: &str = "sim_model";
pub(super) const TOOLS: &str = "sim_tools";
pub(super) const GYMNASIUM: &str = "sim_gymnasium";
pub(super) const ENVIRONMENT: &str = "sim_environment";
pub(super) const TOOL_AGENT: &str = "sim_tool_agent";

/// Names that no agent of the settings can have.
pub(super) const RESERVED: [&str; 5] = [MODEL, TOOLS, GYMNASIUM, ENVIRONMENT, TOOL_AGENT];

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An agent.
    Agent,
    /// A model server.
    Model,
    /// A resources server of any kind.
    Resources,
}

/// What an agent or a server is to the head server.
#[derive(Debug)]
pub(super) struct Listed {
    /// What it is.
    pub role: Role,
    /// Host under which clients reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Itself and its port.
    pub control: Control,
}

impl Listed {
    /// Its address.
    pub(super) fn url(&self) -> String {
        url(&self.host, self.port)
    }

    fn kind(&self) -> &'static str {
        match self.role {
            Role::Agent => "responses_api_agents",
            Role::Model => "responses_api_models",
            Role::Resources => "resources_servers",
        }
    }

    /// The name of what serves it: all simulated agents are of one kind, each server of its own.
    fn implementation<'a>(&self, name: &'a str) -> &'a str {
        match self.role {
            Role::Agent => "sim_agent",
            _ => name,
        }
    }

    fn configuration(&self, name: &str) -> Value {
        let server = json!({"entrypoint": "app.py", "host": self.host, "port": self.port});
        json!({ self.kind(): { self.implementation(name): server } })
    }

    /// What the head server says of its process.
    pub(super) fn instance(&self, name: &str) -> Value {
        json!({
            "process_name": name,
            "name": self.implementation(name),
            "server_type": self.kind(),
            "host": self.host,
            "port": self.port,
            "url": self.url(),
            "pid": std::process::id(),
            "status": "success",
        })
    }
}

/// The configuration of all servers, by name.
///
/// It has one agent more than there are: `sim_tool_agent` joins the resources server and the model as
/// NeMo Gym's `simple_agent` does. No process stands behind it, so that its address is that of the
/// resources server, and only a client that runs such agents itself can use it.
///
/// An environment server is its agent under another name: it is sent the same rows, and answers the same.
pub(super) fn configuration(
    listed: &BTreeMap<String, Listed>,
    rules: &GymRules,
) -> Map<String, Value> {
    let mut servers = Map::new();
    for (name, server) in listed {
        servers.insert(name.clone(), server.configuration(name));
        if rules.servers && server.role == Role::Agent {
            let relay = json!({
                "entrypoint": "app.py",
                "host": server.host,
                "port": server.port,
                "agent_server": {"type": "responses_api_agents", "name": name},
            });
            let relay = json!({"environment_servers": {"legacy_agent": relay}});
            servers.insert(format!("{name}_environment_server"), relay);
        }
    }
    if let Some(tools) = listed.get(TOOLS) {
        let agent = json!({
            "entrypoint": "app.py",
            "host": tools.host,
            "port": tools.port,
            "resources_server": {"type": "resources_servers", "name": TOOLS},
            "model_server": {"type": "responses_api_models", "name": MODEL},
        });
        let agent = json!({"responses_api_agents": {"simple_agent": agent}});
        servers.insert(TOOL_AGENT.into(), agent);
    }
    servers
}
