//! The head server: [`Head`] tells where the agents and the other servers are, and how they
//! fare, and lets them be changed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, StatusCode};
use serde_json::{Map, Value, json};

use super::control::{AgentChange, Control};
use super::counters::{AgentCounters, Counts};
use super::error::SimError;
use super::http::{
    Reply, alive, detail, json as reply_json, json_of, not_found, read_body, streamed,
};
use super::listed::{Listed, Role, configuration};
use crate::gym::GymRules;

/// Records of requests that are written at a time.
const PAGE: usize = 1000;

/// The head server of a simulation.
#[derive(Debug)]
pub(super) struct Head {
    global_config: Bytes,
    server_instances: Bytes,
    listed: BTreeMap<String, Listed>,
}

impl Head {
    /// The head server at `address`, under the host that clients know it by.
    ///
    /// # Errors
    /// The names cannot be written as YAML.
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
        let yaml = serde_yaml_ng::to_string(&servers).map_err(|e| SimError::Head(e.to_string()))?;
        let instances = listed.iter().map(|(name, server)| server.instance(name));
        let instances: Vec<Value> = instances.collect();
        Ok(Self {
            global_config: Value::String(yaml).to_string().into(),
            server_instances: Value::Array(instances).to_string().into(),
            listed,
        })
    }

    /// Answers a request.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        match (&head.method, head.uri.path()) {
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
        }
    }

    /// Answers a request below `/sim/`.
    async fn answer_of_agent(&self, method: &Method, path: &str, body: Incoming) -> Reply {
        let mut segments = path.split('/').map(decoded);
        let control = match self.control(&segments.next().unwrap_or_default()) {
            Ok(control) => control,
            Err(error) => return detail(StatusCode::NOT_FOUND, error),
        };
        let rest: Vec<String> = segments.collect();
        match (method, rest.as_slice()) {
            (&Method::GET, []) => json_of(&control.state()),
            (&Method::POST, []) => changed(control, body).await,
            (&Method::GET, [what]) if what == "requests" => {
                requests(Arc::clone(control.station().counters()))
            }
            _ => not_found(),
        }
    }

    /// The agent or server of this name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn control(&self, name: &str) -> Result<&Control, SimError> {
        let listed = self.listed.get(name).map(|listed| &listed.control);
        listed.ok_or_else(|| {
            let known: Vec<&str> = self.listed.keys().map(String::as_str).collect();
            SimError::UnknownAgent {
                name: name.to_owned(),
                known: known.join(", "),
            }
        })
    }

    /// A reading of the counters of all agents, or of all servers that are none, by name.
    pub(super) fn counts(&self, of_agents: bool) -> BTreeMap<String, Counts> {
        let read = |(name, listed): (&String, &Listed)| {
            let counters = listed.control.station().counters();
            (name.clone(), counters.read())
        };
        self.listed
            .iter()
            .filter(|(_, listed)| (listed.role == Role::Agent) == of_agents)
            .map(read)
            .collect()
    }

    /// The addresses of the agents, by name.
    pub(super) fn agent_urls(&self) -> BTreeMap<String, String> {
        let agents = self.listed.iter();
        agents
            .filter(|(_, listed)| listed.role == Role::Agent)
            .map(|(name, listed)| (name.clone(), listed.url()))
            .collect()
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

/// Changes an agent; answers with what it has become.
async fn changed(control: &Control, body: Incoming) -> Reply {
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => return error.reply(),
    };
    let refused = |error: String| detail(StatusCode::UNPROCESSABLE_ENTITY, error);
    // By way of an object: a struct could also be read from a list.
    let object = serde_json::from_slice::<Map<String, Value>>(&body);
    let change = object.and_then(|object| serde_json::from_value(Value::Object(object)));
    let change: AgentChange = match change {
        Ok(change) => change,
        Err(error) => return refused(format!("the body is no change of an agent: {error}")),
    };
    match control.change(&change).await {
        Ok(()) => json_of(&control.state()),
        Err(error @ (SimError::Bind { .. } | SimError::Stopped(_))) => {
            detail(StatusCode::SERVICE_UNAVAILABLE, error)
        }
        Err(error) => refused(error.to_string()),
    }
}

/// The records of all requests until now, one line of JSON each.
fn requests(counters: Arc<AgentCounters>) -> Reply {
    let end = counters.log().next();
    let pages = stream::unfold(0, move |from| {
        let page = counters.log().page(from, end, PAGE);
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

/// A segment of a path without its percent signs.
fn decoded(segment: &str) -> String {
    // The same as in a form, but for the characters that mean something there.
    let value = segment.replace('+', "%2B").replace('&', "%26");
    let form = format!("segment={value}");
    let decoded = url::form_urlencoded::parse(form.as_bytes()).next();
    decoded.map_or_else(String::new, |(_, value)| value.into_owned())
}
