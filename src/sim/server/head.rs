//! The head server: [`Head`] lists the agents and the other servers, reports their counts and requests, and changes
//! them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, StatusCode};
use serde_json::{Map, Value, json};

use super::super::config::SimError;
use super::endpoint::{AgentChange, Endpoint};
use super::http::{
    Abrupt, Reply, alive, detail, json as reply_json, json_of, not_found, read_body, streamed,
};
use super::requests::{Counts, Requests};
use crate::gym::GymRules;

/// The names of the servers that are no agents, and of the agent that joins two of them.
pub(super) const MODEL: &str = "sim_model";
pub(super) const TOOLS: &str = "sim_tools";
pub(super) const GYMNASIUM: &str = "sim_gymnasium";
pub(super) const ENVIRONMENT: &str = "sim_environment";
const TOOL_AGENT: &str = "sim_tool_agent";

/// Names that no configured agent can have.
pub(crate) const RESERVED_NAMES: [&str; 5] = [MODEL, TOOLS, GYMNASIUM, ENVIRONMENT, TOOL_AGENT];

/// Records of requests that are written at a time.
const PAGE: usize = 1000;

/// The kind of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// An agent.
    Agent,
    /// A model server.
    Model,
    /// A resources server of any kind.
    Resources,
}

/// An agent or a server in the list of the head server.
#[derive(Debug)]
pub(super) struct Listed {
    /// Its kind.
    pub role: Role,
    /// The host under which clients reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its address.
    pub url: String,
    /// Its settings and requests.
    pub endpoint: Arc<Endpoint>,
}

impl Listed {
    /// Returns where the server is, in the format of NeMo Gym's configuration.
    fn place(&self) -> Value {
        json!({"entrypoint": "app.py", "host": self.host, "port": self.port})
    }

    /// Returns the server's kind in NeMo Gym's terms, and the name of its implementation: all agents have the same.
    fn kind<'a>(&self, name: &'a str) -> (&'static str, &'a str) {
        match self.role {
            Role::Agent => ("responses_api_agents", "sim_agent"),
            Role::Model => ("responses_api_models", name),
            Role::Resources => ("resources_servers", name),
        }
    }

    fn configuration(&self, name: &str) -> Value {
        let (kind, implementation) = self.kind(name);
        json!({ kind: { implementation: self.place() } })
    }

    /// Returns the server's entry in `/server_instances`.
    fn instance(&self, name: &str) -> Value {
        let (kind, implementation) = self.kind(name);
        json!({
            "process_name": name,
            "name": implementation,
            "server_type": kind,
            "host": self.host,
            "port": self.port,
            "url": self.url,
            "pid": std::process::id(),
            "status": "success",
        })
    }
}

/// Returns the configuration of all servers, by name.
///
/// It has one agent that does not exist: `sim_tool_agent` joins the resources server and the model as
/// NeMo Gym's `simple_agent` does. Its address is that of the resources server, and only a client that runs such agents
/// itself can use it.
///
/// An environment server is its agent under another name: it takes the same rows and gives the same answers.
fn configuration(listed: &BTreeMap<String, Listed>, rules: &GymRules) -> Map<String, Value> {
    let mut servers = Map::new();
    for (name, server) in listed {
        servers.insert(name.clone(), server.configuration(name));
        if rules.servers && server.role == Role::Agent {
            let mut relay = server.place();
            relay["agent_server"] = json!({"type": "responses_api_agents", "name": name});
            let relay = json!({"environment_servers": {"legacy_agent": relay}});
            servers.insert(format!("{name}_environment_server"), relay);
        }
    }
    if let Some(tools) = listed.get(TOOLS) {
        let mut agent = tools.place();
        agent["resources_server"] = json!({"type": "resources_servers", "name": TOOLS});
        agent["model_server"] = json!({"type": "responses_api_models", "name": MODEL});
        let agent = json!({"responses_api_agents": {"simple_agent": agent}});
        servers.insert(TOOL_AGENT.into(), agent);
    }
    servers
}

#[derive(Debug)]
pub(super) struct Head {
    global_config: Bytes,
    server_instances: Bytes,
    listed: BTreeMap<String, Listed>,
}

impl Head {
    /// Creates the head server at `address`, which clients know as `host`.
    pub(super) fn new(
        host: &str,
        address: SocketAddr,
        listed: BTreeMap<String, Listed>,
        rules: &GymRules,
    ) -> Result<Self, SimError> {
        let mut servers = Map::new();
        servers.insert(
            "head_server".into(),
            json!({"host": host, "port": address.port()}),
        );
        servers.append(&mut configuration(&listed, rules));
        let yaml = serde_yaml_ng::to_string(&servers)?;
        let instances = listed.iter().map(|(name, server)| server.instance(name));
        Ok(Self {
            global_config: Value::String(yaml).to_string().into(),
            server_instances: Value::Array(instances.collect()).to_string().into(),
            listed,
        })
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Reply, Abrupt> {
        let (head, body) = request.into_parts();
        Ok(match (&head.method, head.uri.path()) {
            (&Method::GET, "/global_config_dict_yaml") => reply_json(self.global_config.clone()),
            (&Method::GET, "/server_instances") => reply_json(self.server_instances.clone()),
            (&Method::GET, "/stats") => json_of(&json!({
                "agents": self.counts(true),
                "servers": self.counts(false),
            })),
            (&Method::GET, "/" | "/livez" | "/readyz" | "/healthz" | "/health") => alive(),
            (method, path) => match path.strip_prefix("/sim/") {
                Some(path) => self.answer_of_agent(method, path, body).await,
                None => not_found(),
            },
        })
    }

    /// Answers a request below `/sim/`.
    async fn answer_of_agent(&self, method: &Method, path: &str, body: Incoming) -> Reply {
        let mut segments = path.split('/').map(decoded);
        let endpoint = match self.endpoint(&segments.next().unwrap_or_default()) {
            Ok(endpoint) => endpoint,
            Err(error) => return detail(StatusCode::NOT_FOUND, error),
        };
        let rest: Vec<String> = segments.collect();
        match (method, rest.as_slice()) {
            (&Method::GET, []) => json_of(&endpoint.state()),
            (&Method::POST, []) => changed(endpoint, body).await,
            (&Method::GET, [what]) if what == "requests" => {
                requests(Arc::clone(endpoint.requests()))
            }
            _ => not_found(),
        }
    }

    /// Returns the agent or server of this name.
    pub(super) fn endpoint(&self, name: &str) -> Result<&Endpoint, SimError> {
        let listed = self.listed.get(name).map(|listed| &*listed.endpoint);
        listed.ok_or_else(|| {
            let known: Vec<&str> = self.listed.keys().map(String::as_str).collect();
            SimError::UnknownAgent {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    /// Returns the counts of all agents, or of all other servers, by name.
    pub(super) fn counts(&self, of_agents: bool) -> BTreeMap<String, Counts> {
        let listed = self.listed.iter();
        listed
            .filter(|(_, listed)| (listed.role == Role::Agent) == of_agents)
            .map(|(name, listed)| (name.clone(), listed.endpoint.requests().counts()))
            .collect()
    }

    /// Returns the addresses of the agents, by name.
    pub(super) fn agent_urls(&self) -> BTreeMap<String, String> {
        let agents = self.listed.iter();
        agents
            .filter(|(_, listed)| listed.role == Role::Agent)
            .map(|(name, listed)| (name.clone(), listed.url.clone()))
            .collect()
    }

    /// Returns the address of an agent or server; empty if there is none of this name.
    pub(super) fn url(&self, name: &str) -> &str {
        self.listed.get(name).map_or("", |listed| &listed.url)
    }
}

/// Returns `http://host:port`, with brackets around an IPv6 address.
pub(super) fn url(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("http://[{host}]:{port}")
    } else {
        format!("http://{host}:{port}")
    }
}

/// Changes an agent or server, and answers with its new state.
async fn changed(endpoint: &Endpoint, body: Incoming) -> Reply {
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let refused = |error: String| detail(StatusCode::UNPROCESSABLE_ENTITY, error);
    // A list could be read as a struct, but not as a map.
    let object = serde_json::from_slice::<Map<String, Value>>(&body);
    let change = object.and_then(|object| serde_json::from_value(Value::Object(object)));
    let change: AgentChange = match change {
        Ok(change) => change,
        Err(error) => return refused(format!("the body is not a change of an agent: {error}")),
    };
    match endpoint.change(&change).await {
        Ok(()) => json_of(&endpoint.state()),
        Err(error @ (SimError::Bind { .. } | SimError::Stopped(_))) => {
            detail(StatusCode::SERVICE_UNAVAILABLE, error)
        }
        Err(error) => refused(error.to_string()),
    }
}

/// Streams the records of all requests until now, one line of JSON each.
fn requests(requests: Arc<Requests>) -> Reply {
    let end = requests.next();
    let pages = stream::unfold(0, move |from| {
        let page = requests.page(from, end, PAGE);
        let next = page.last().map(|record| {
            let mut lines = Vec::new();
            for record in &page {
                // Writing a record to memory cannot fail.
                let _ = serde_json::to_writer(&mut lines, record);
                lines.push(b'\n');
            }
            (Ok(Frame::data(Bytes::from(lines))), record.number + 1)
        });
        std::future::ready(next)
    });
    streamed("application/x-ndjson", StreamBody::new(pages))
}

/// Decodes the percent signs in a segment of a path.
fn decoded(segment: &str) -> String {
    // `+` and `&` have a meaning in a form only.
    let value = segment.replace('+', "%2B").replace('&', "%26");
    let form = format!("segment={value}");
    let decoded = url::form_urlencoded::parse(form.as_bytes()).next();
    decoded.map_or_else(String::new, |(_, value)| value.into_owned())
}
