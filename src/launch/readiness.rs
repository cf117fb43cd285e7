//! [`Readiness`]: waits for NeMo Gym's head server and the servers behind it; [`Head`] is the head server once they are ready.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_yaml_ng::Value;
use url::Url;

use super::LaunchError;
use super::supervisor::Stat;
use crate::config::{ServerUrl, Settings};
use crate::http::{HttpClients, HttpSettings};

/// A server on this machine answers such a question from memory.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between questions. NeMo Gym writes each of them into its log, and looks at its servers every 3 s itself.
const PAUSE: Duration = Duration::from_millis(500);

/// NeMo Gym's defaults for the time that its servers, and then the endpoints of models, have to get ready.
const SPIN_UP: f64 = 600.0;
const ENDPOINTS: f64 = 600.0;

/// NeMo Gym reports itself what is late: this much later, it hangs.
const SLACK: Duration = Duration::from_secs(5);

/// The key under which servers are marked as those of a configuration.
pub(super) const FINGERPRINT: &str = "servers_fingerprint";

/// NeMo Gym's own address of the head server.
const HEAD_SERVER: &str = "http://127.0.0.1:11000";

/// Returns the address of the head server.
pub(super) fn address(settings: &Settings) -> Result<ServerUrl, LaunchError> {
    match &settings.head_server {
        Some(url) => Ok(url.clone()),
        None => HEAD_SERVER.parse().map_err(LaunchError::Address),
    }
}

/// Returns host and port for the head server: those of its address, or another port if that one is taken.
pub(super) fn free_place(url: &ServerUrl) -> Result<(String, u16), LaunchError> {
    let wrong = || LaunchError::Address(format!("{url} is not http://HOST:PORT"));
    let parsed = url::Url::parse(url.as_str()).map_err(|_| wrong())?;
    let host = parsed.host_str().ok_or_else(wrong)?;
    let port = parsed.port_or_known_default().ok_or_else(wrong)?;
    let bare = host.trim_matches(['[', ']']);
    match TcpListener::bind((bare, port)) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let free = TcpListener::bind((bare, 0)).and_then(|listener| listener.local_addr());
            let free = free.map_err(|source| LaunchError::NoPort { source })?;
            Ok((host.to_owned(), free.port()))
        }
        _ => Ok((host.to_owned(), port)),
    }
}

/// A server as the head server lists it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Instance {
    /// The name in the configuration.
    #[serde(rename = "process_name")]
    pub(super) name: String,
    /// The process that the server runs in, or the shell around it.
    pid: Option<i32>,
    url: Option<String>,
}

impl Instance {
    /// Returns whether the server's process lives. One that the system does not show counts as alive.
    pub(super) fn is_alive(&self) -> bool {
        let Some(pid) = self.pid else {
            return true;
        };
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => Stat::parse(&stat).is_none_or(|stat| !stat.has_ended()),
            Err(_) => !Path::new("/proc/self/stat").exists(),
        }
    }
}

/// The head server and the servers behind it.
#[derive(Debug)]
pub(super) struct Head {
    url: ServerUrl,
    servers: Vec<Instance>,
}

impl Head {
    pub(super) fn url(&self) -> &ServerUrl {
        &self.url
    }

    pub(super) fn servers(&self) -> &[Instance] {
        &self.servers
    }
}

/// The wait for a head server.
#[derive(Debug)]
pub(super) struct Readiness {
    http: HttpClients,
    head: Head,
    /// None for as long as it takes.
    deadline: Option<Instant>,
    has_answered: bool,
    looked: Option<Instant>,
}

impl Readiness {
    /// Begins to wait for the head server at this address.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub(super) fn new(url: ServerUrl) -> Result<Self, LaunchError> {
        let http = HttpClients::new(&HttpSettings {
            connections: 1,
            connect_timeout: TIMEOUT,
            first_byte_timeout: None,
            read_timeout: TIMEOUT,
            max_body: 64 << 20,
            body_memory: 64 << 20,
        })?;
        Ok(Self {
            http,
            head: Head {
                url,
                servers: Vec::new(),
            },
            // Until the head server can say what is configured.
            deadline: Some(Instant::now() + Duration::from_secs_f64(SPIN_UP)),
            has_answered: false,
            looked: None,
        })
    }

    /// Returns whether servers with this fingerprint run at the address.
    pub(super) async fn has_fingerprint(&self, fingerprint: &str) -> bool {
        let config = self.config().await;
        config.is_some_and(|config| {
            config.get(FINGERPRINT).and_then(Value::as_str) == Some(fingerprint)
        })
    }

    pub(super) fn head_server(&self) -> &Head {
        &self.head
    }

    /// The head server, once it has answered.
    pub(super) fn head(&self) -> Option<&Head> {
        self.has_answered.then_some(&self.head)
    }

    pub(super) fn into_head(self) -> Head {
        self.head
    }

    /// Asks the head server whether all servers are ready, at most once in [`PAUSE`].
    pub(super) async fn look(&mut self) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < PAUSE) {
            return false;
        }
        self.looked = Some(Instant::now());
        if !self.has_answered {
            let Some(config) = self.config().await else {
                return false;
            };
            self.deadline = deadline(&config);
            self.has_answered = true;
        }
        // Asked before the list, which grows until all servers are started.
        let is_ready = self.ask(self.head.url.as_str(), "/readyz").await.is_some();
        if let Some(servers) = self.ask(self.head.url.as_str(), "/server_instances").await
            && let Ok(servers) = serde_json::from_str(&servers)
        {
            self.head.servers = servers;
        }
        is_ready
    }

    /// Returns whether the servers had their time.
    pub(super) fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Returns what does not answer yet.
    pub(super) async fn missing(&self) -> String {
        let mut missing = Vec::new();
        for server in &self.head.servers {
            let answer = match &server.url {
                Some(url) => self.ask(url, "/livez").await,
                None => None,
            };
            if answer.is_none() {
                missing.push(server.name.as_str());
            }
        }
        match (self.has_answered, missing.is_empty()) {
            (false, _) => format!("the head server at {}", self.head.url),
            (true, true) => "NeMo Gym to find that all servers and models answer".to_owned(),
            (true, false) => missing.join(", "),
        }
    }

    async fn config(&self) -> Option<Value> {
        let text = self
            .ask(self.head.url.as_str(), "/global_config_dict_yaml")
            .await?;
        let yaml: String = serde_json::from_str(&text).ok()?;
        serde_yaml_ng::from_str(&yaml).ok()
    }

    /// Returns the body of a good answer.
    async fn ask(&self, base: &str, path: &str) -> Option<String> {
        let url = Url::parse(&format!("{}{path}", base.trim_end_matches('/'))).ok()?;
        let asked = self.http.for_url(&url).get(url.clone()).timeout(TIMEOUT);
        let answer = asked.send().await.ok()?.error_for_status().ok()?;
        answer.text().await.ok()
    }
}

/// Returns when servers with this configuration are late; none if they have no limit.
fn deadline(config: &Value) -> Option<Instant> {
    let seconds = |key: &str, default| match config.get(key) {
        Some(Value::Number(number)) => number.as_f64().unwrap_or(default),
        Some(Value::String(text)) => text.parse().unwrap_or(default),
        _ => default,
    };
    let spin_up = seconds("server_spinup_timeout_seconds", SPIN_UP);
    let endpoints = seconds("model_endpoint_readiness_timeout_seconds", ENDPOINTS).max(0.0);
    let limit = Duration::try_from_secs_f64(spin_up + endpoints).ok()?;
    (spin_up > 0.0).then(|| Instant::now() + limit + SLACK)
}
