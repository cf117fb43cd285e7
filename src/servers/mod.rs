//! NeMo Gym's servers, as the configuration of its head server describes them.
//!
//! [`Servers`] holds what a collector needs of each: its kind, its address, and which others it refers to. It finds
//! the agent of a task source and the environment server of an agent, and checks that [`Route`]s lead to a server. It sends
//! nothing. The agents and the reader use it.

mod routes;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::config::value_at;

pub use routes::Route;

/// The keys that say which kind a server is.
const AGENTS: &str = "responses_api_agents";
const RESOURCES_SERVERS: &str = "resources_servers";
const ENVIRONMENT_SERVERS: &str = "environment_servers";

/// The fields in which servers refer to others.
const RESOURCES_SERVER: &str = "resources_server";
const MODEL_SERVER: &str = "model_server";
const AGENT_SERVER: &str = "agent_server";

/// NeMo Gym's servers by name, in the order of the configuration, and whatever else has a name there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Servers {
    instances: IndexMap<String, Instance>,
    /// NeMo Gym was started so that agents may work for resources servers that do not list their type.
    allow_unsupported_pairing: bool,
}

/// The value of a name in the configuration: a server or something else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Instance {
    kind: InstanceKind,
    /// The name of the implementation, which for an agent is its type.
    implementation: String,
    /// The server's address.
    address: Option<String>,
    /// The resources server that it refers to.
    resources_server: Option<String>,
    /// The model server that it refers to.
    model_server: Option<String>,
    /// The agents that an environment server refers to.
    agents: Vec<String>,
    /// The one of these agents to which results are attributed.
    own_agent: Option<String>,
    /// The agents that the server's datasets name, each once.
    pins: Vec<String>,
    /// The types of agents that a resources server accepts; none if it accepts all.
    allowed_agents: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum InstanceKind {
    Agent,
    Resources,
    Environment,
    /// Another server, or another mapping.
    Other,
    /// A value that is not a mapping.
    #[default]
    Plain,
}

impl Servers {
    /// Reads the configuration, a YAML mapping. References such as `${host}` are replaced if they have a value.
    ///
    /// # Errors
    /// The text is not a YAML mapping.
    pub fn parse(yaml: &str) -> Result<Self, String> {
        let config: serde_yaml_ng::Value =
            serde_yaml_ng::from_str(yaml).map_err(|source| source.to_string())?;
        let config = json(config);
        let names = config.as_object().ok_or("it is not a mapping")?;
        let instance = |name: &String| (name.clone(), Instance::read(&config, name));
        let allow = value_at(&config, &["allow_unsupported_pairing"]);
        Ok(Self {
            instances: names.keys().map(instance).collect(),
            allow_unsupported_pairing: allow == Some(Value::Bool(true)),
        })
    }

    /// Returns whether there are environment servers, which NeMo Gym 0.5 did not have.
    pub fn has_environment_servers(&self) -> bool {
        let mut instances = self.instances.values();
        instances.any(|instance| instance.kind == InstanceKind::Environment)
    }

    /// Returns the names of all agents.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        let agents = self.instances.iter();
        let agents = agents.filter(|(_, instance)| instance.kind == InstanceKind::Agent);
        agents.map(|(name, _)| name.as_str())
    }

    /// Returns the address of a server.
    pub fn address(&self, name: &str) -> Option<&str> {
        self.instances.get(name)?.address.as_deref()
    }

    /// Returns the name of a server's implementation.
    pub fn implementation(&self, name: &str) -> Option<&str> {
        Some(self.instances.get(name)?.implementation.as_str())
    }

    /// Returns the resources server that a server refers to.
    pub fn resources_server_of(&self, name: &str) -> Option<&str> {
        self.instances.get(name)?.resources_server.as_deref()
    }

    /// Returns the model server that a server refers to.
    pub fn model_server_of(&self, name: &str) -> Option<&str> {
        self.instances.get(name)?.model_server.as_deref()
    }

    /// Returns the agent to which results of an environment server are attributed, if there is one.
    pub fn agent_of_server(&self, name: &str) -> Option<&str> {
        self.instances.get(name)?.own_agent.as_deref()
    }

    /// Returns the environment server to which the rows of an agent are sent.
    ///
    /// # Errors
    /// None refers to the agent, or several do.
    pub fn server_of_agent(&self, agent: &str) -> Result<&str, String> {
        let instances = self.instances.iter();
        let servers = instances.filter(|(_, instance)| {
            instance.kind == InstanceKind::Environment
                && instance.agents.iter().any(|name| name == agent)
        });
        let mut servers: Vec<&str> = servers.map(|(name, _)| name.as_str()).collect();
        servers.sort_unstable();
        match servers.as_slice() {
            [server] => Ok(server),
            [] => Err(format!(
                "agent '{agent}' has no environment server, so that no row can be sent to it; NeMo Gym makes one for each \
                 agent unless error_on_agent_without_environment_server is set"
            )),
            several => Err(format!(
                "agent '{agent}' has several environment servers: {}; name one with environment_routing_mode=legacy and \
                 environment_server_name",
                several.join(", ")
            )),
        }
    }

    /// Returns whether a name is that of an environment server.
    pub fn is_environment_server(&self, name: &str) -> bool {
        self.is(name, InstanceKind::Environment)
    }

    fn is(&self, name: &str, kind: InstanceKind) -> bool {
        let instance = self.instances.get(name);
        instance.is_some_and(|instance| instance.kind == kind)
    }
}

impl Instance {
    fn read(config: &Value, name: &str) -> Self {
        let Some(Value::Object(block)) = config.get(name) else {
            return Self::default();
        };
        let kinds = [
            (AGENTS, InstanceKind::Agent),
            (RESOURCES_SERVERS, InstanceKind::Resources),
            (ENVIRONMENT_SERVERS, InstanceKind::Environment),
        ];
        let known = kinds.into_iter().find(|(key, _)| block.contains_key(*key));
        let other = || Some((block.keys().next()?.as_str(), InstanceKind::Other));
        let Some((key, kind)) = known.or_else(other) else {
            return Self {
                kind: InstanceKind::Other,
                ..Self::default()
            };
        };
        let implementation = block.get(key).and_then(Value::as_object);
        let implementation = implementation.and_then(|inner| inner.keys().next());
        let implementation = implementation.cloned().unwrap_or_default();
        let fields = ServerFields {
            config,
            place: [name, key, &implementation],
        };
        let references = match kind {
            InstanceKind::Environment => fields.agent_references(),
            _ => Vec::new(),
        };
        let named = references.iter().filter_map(|(_, name)| name.clone());
        let agents: Vec<String> = named.collect();
        let own_agent = match fields.value(AGENT_SERVER) {
            Some(Value::Object(agent)) if kind == InstanceKind::Environment => {
                text(agent.get("name"))
            }
            _ => match agents.as_slice() {
                [only] => Some(only.clone()),
                _ => None,
            },
        };
        Self {
            kind,
            address: fields.address(),
            resources_server: fields.name_in(RESOURCES_SERVER),
            model_server: fields.name_in(MODEL_SERVER),
            own_agent,
            agents,
            pins: fields.pins(),
            allowed_agents: fields.allowed_agents(),
            implementation,
        }
    }
}

/// The settings of a server.
struct ServerFields<'a> {
    config: &'a Value,
    /// The server's name, its kind, and the name of its implementation.
    place: [&'a str; 3],
}

impl ServerFields<'_> {
    fn value(&self, field: &str) -> Option<Value> {
        let [name, kind, implementation] = self.place;
        value_at(self.config, &[name, kind, implementation, field])
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let fields = self
            .place
            .iter()
            .try_fold(self.config, |value, step| value.get(*step));
        let fields = fields.and_then(Value::as_object);
        fields.into_iter().flat_map(Map::keys).map(String::as_str)
    }

    fn address(&self) -> Option<String> {
        let host = text(self.value("host").as_ref())?;
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        let host = if is_bare_ipv6 {
            format!("[{host}]")
        } else {
            host
        };
        let port = self.value("port")?;
        let port = port.as_u64().or_else(|| port.as_str()?.parse().ok())?;
        Some(format!("http://{host}:{}", u16::try_from(port).ok()?))
    }

    fn name_in(&self, field: &str) -> Option<String> {
        text(self.value(field)?.get("name"))
    }

    /// Returns the fields that refer to agents, and the names in them.
    fn agent_references(&self) -> Vec<(&str, Option<String>)> {
        let reference = |field| {
            let value = self.value(field)?;
            let is_agent = match value.as_object()?.get("type") {
                None | Some(Value::Null) => field == AGENT_SERVER,
                Some(kind) => kind == AGENTS,
            };
            is_agent.then(|| (field, text(value.get("name"))))
        };
        self.names().filter_map(reference).collect()
    }

    fn pins(&self) -> Vec<String> {
        let mut pins = Vec::new();
        if let Some(Value::Array(datasets)) = self.value("datasets") {
            for dataset in &datasets {
                match text(dataset.get("agent")) {
                    Some(pin) if !pins.contains(&pin) => pins.push(pin),
                    _ => {}
                }
            }
        }
        pins
    }

    /// Returns the types of agents that are allowed. A single type may be given without a list.
    fn allowed_agents(&self) -> Option<Vec<String>> {
        match self.value("allowed_agents")? {
            Value::String(one) if !one.is_empty() => Some(vec![one]),
            Value::Array(many) if !many.is_empty() => {
                let names = many.iter().map(|name| match name {
                    Value::String(name) => name.clone(),
                    other => other.to_string(),
                });
                Some(names.collect())
            }
            _ => None,
        }
    }
}

fn text(value: Option<&Value>) -> Option<String> {
    Some(value?.as_str()?.to_owned())
}

/// Converts YAML to JSON; keys become texts. Values that JSON can't hold, such as infinity, become null.
fn json(yaml: serde_yaml_ng::Value) -> Value {
    use serde_yaml_ng::Value as Yaml;
    match yaml {
        Yaml::Mapping(fields) => {
            let fields = fields.into_iter().filter_map(|(key, value)| {
                let key = match json(key) {
                    Value::String(key) => key,
                    key @ (Value::Number(_) | Value::Bool(_)) => key.to_string(),
                    _ => return None,
                };
                Some((key, json(value)))
            });
            Value::Object(fields.collect())
        }
        Yaml::Sequence(items) => items.into_iter().map(json).collect(),
        Yaml::Tagged(tagged) => json(tagged.value),
        other => serde_json::to_value(other).unwrap_or_default(),
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
        let servers = Servers::parse(yaml).unwrap();
        assert_eq!(servers.agents().collect::<Vec<_>>(), ["alpha"]);
        assert_eq!(servers.address("alpha"), Some("http://127.0.0.1:12001"));
        assert_eq!(servers.model_server_of("alpha"), Some("policy"));
        assert_eq!(servers.address("tools"), Some("http://[::1]:12002"));
        assert_eq!(servers.address("head_server"), None);
        assert!(!servers.has_environment_servers());
    }

    #[test]
    fn environment_servers_refer_to_agents_also_by_reference() {
        let yaml = "host: h\nport: 7\nagent: {type: responses_api_agents, name: user}\n\
            one:\n  environment_servers:\n    turns:\n      host: ${host}\n      port: ${port}\n      \
            agent_server: {name: assistant}\n      other: ${agent}\n      \
            resources_server: {type: resources_servers, name: rs}\n      broken: ${nowhere}\n\
            two:\n  environment_servers:\n    turns:\n      first: ${agent}\n";
        let servers = Servers::parse(yaml).unwrap();
        let one = &servers.instances["one"];
        assert_eq!(one.agents, ["assistant", "user"]);
        assert_eq!(one.address.as_deref(), Some("http://h:7"));
        assert_eq!(one.implementation, "turns");
        assert_eq!(servers.agent_of_server("one"), Some("assistant"));
        assert_eq!(servers.agent_of_server("two"), Some("user"));
        assert_eq!(servers.resources_server_of("one"), Some("rs"));
        assert_eq!(servers.server_of_agent("assistant"), Ok("one"));
        let several = servers.server_of_agent("user").unwrap_err();
        assert!(several.contains("one, two"), "{several}");
        let none = servers.server_of_agent("nobody").unwrap_err();
        assert!(none.contains("no environment server"), "{none}");
    }

    #[test]
    fn what_is_not_a_mapping_is_an_error() {
        for yaml in ["- 1", "a: [", "text"] {
            assert!(Servers::parse(yaml).is_err(), "{yaml}");
        }
    }
}
