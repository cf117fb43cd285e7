use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};
use tokio::time::timeout;
use url::{Host, Url};

use super::call::Call;
use super::connect_time::ConnectTimeLayer;
use super::pool::{Pool, PoolSettings, Pools};
use super::problem::{Problem, describe};
use super::response::Response;
use super::room::Room;
use crate::failure::Failure;

/// How we call ourselves.
pub(super) const USER_AGENT: &str = concat!("rollstream/", env!("CARGO_PKG_VERSION"));

/// Time after which an idle connection is asked whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// TLS could not be set up, say.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client: {0}")]
pub struct ClientError(String);

/// How servers are talked to.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Idle connections kept per agent: the calls in flight.
    pub connections: usize,
    /// Deadline of a connect.
    pub connect_timeout: Duration,
    /// Longest time from the request to the head of the answer.
    pub first_byte_timeout: Option<Duration>,
    /// Longest silence on a connection, also before the first byte.
    pub read_timeout: Duration,
    /// Largest body that is taken, in bytes after decompression.
    pub max_body: u64,
    /// Bytes of bodies that may be in memory at a time; more are not read.
    pub body_memory: u64,
}

/// The HTTP clients of a process: connections are shared by all that use them.
#[derive(Debug, Clone)]
pub struct HttpClients {
    proxied: Client,
    direct: Client,
    /// Connections without TLS or proxy, which is how most agents are reached.
    pools: Arc<Pools>,
    proxies: Arc<Matcher>,
    room: Room,
    settings: HttpSettings,
}

impl HttpClients {
    /// Clients with pools of their own.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub fn new(settings: &HttpSettings) -> Result<Self, ClientError> {
        let builder = || {
            Client::builder()
                .user_agent(USER_AGENT)
                .redirect(Policy::none())
                .pool_max_idle_per_host(settings.connections)
                .tcp_keepalive(KEEPALIVE)
                .tcp_nodelay(true)
                .connector_layer(ConnectTimeLayer)
                .connect_timeout(settings.connect_timeout)
                .read_timeout(settings.read_timeout)
        };
        let failed = |source: reqwest::Error| ClientError(describe(&source));
        Ok(Self {
            proxied: builder().build().map_err(failed)?,
            direct: builder().no_proxy().build().map_err(failed)?,
            pools: Arc::default(),
            proxies: Arc::new(Matcher::from_env()),
            room: Room::new(settings.body_memory),
            settings: settings.clone(),
        })
    }

    /// The client for an address: a proxy of the environment is not asked for this very machine.
    pub fn for_url(&self, url: &Url) -> &Client {
        if is_loopback(url) {
            &self.direct
        } else {
            &self.proxied
        }
    }

    /// Where the connections to an address are, if they need neither TLS nor a proxy.
    pub(super) fn pool(&self, url: &Url) -> Option<Arc<Pool>> {
        let host = url.host_str()?;
        let port = url.port_or_known_default()?;
        let origin = Uri::try_from(format!("{}://{host}:{port}", url.scheme())).ok()?;
        let is_plain =
            url.scheme() == "http" && url.username().is_empty() && url.password().is_none();
        let is_direct = is_loopback(url) || self.proxies.intercept(&origin).is_none();
        let settings = PoolSettings {
            most_idle: self.settings.connections,
            connect_timeout: self.settings.connect_timeout,
            read_timeout: self.settings.read_timeout,
            keepalive: KEEPALIVE,
        };
        (is_plain && is_direct).then(|| self.pools.of(&origin, settings))
    }

    pub(super) fn first_byte_timeout(&self) -> Option<Duration> {
        self.settings.first_byte_timeout
    }

    /// Sends a request, and waits for the head of the response.
    ///
    /// # Errors
    /// No connection came about, it broke, or there was no answer in time.
    pub async fn send(
        &self,
        request: RequestBuilder,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let sent = match self.settings.first_byte_timeout {
            Some(limit) => match timeout(limit, request.send()).await {
                Ok(sent) => sent.map_err(Problem::from),
                Err(_) => Err(Problem::NoHead),
            },
            None => request.send().await.map_err(Problem::from),
        };
        match sent {
            Ok(response) => Ok(response.into()),
            Err(problem) => Err(call.problem(&problem)),
        }
    }

    /// The whole body of a response, bounded by `max_body`.
    ///
    /// # Errors
    /// The connection broke, fell silent, or the body is too large.
    pub async fn body(&self, response: Response, call: &Call<'_>) -> Result<Bytes, Failure> {
        let body = response.body(self.settings.max_body, &self.room).await;
        body.map_err(|problem| call.problem(&problem))
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
