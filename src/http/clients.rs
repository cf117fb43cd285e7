use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, RequestBuilder};
use tokio::time::timeout;
use url::{Host, Url};

use super::call::Call;
use super::connect_time::{self, ConnectTimeLayer};
use super::link::UNREAD;
use super::pool::{Pool, PoolSettings, Pools};
use super::problem::{Problem, describe};
use super::response::Response;
use super::room::{Holder, Room};
use crate::retry::Failure;

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
    /// Bytes of bodies that may be in memory at a time, as they are after decompression, beside one
    /// that may go beyond; more are not read.
    pub body_memory: u64,
}

/// The HTTP clients of a process: connections are shared by all that use them.
#[derive(Debug, Clone)]
pub struct HttpClients {
    proxied: Client,
    direct: Client,
    /// The client that keeps no connections, for each of these; made when it is needed.
    proxied_anew: Arc<OnceLock<Option<Client>>>,
    direct_anew: Arc<OnceLock<Option<Client>>>,
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
        let failed = |source: reqwest::Error| ClientError(describe(&source));
        Ok(Self {
            proxied: builder(settings).build().map_err(failed)?,
            direct: builder(settings).no_proxy().build().map_err(failed)?,
            proxied_anew: Arc::default(),
            direct_anew: Arc::default(),
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

    /// Sends a request, and waits for the head of the response. It is sent again, over a new
    /// connection, where the server seems to have closed the one that was idle: see `pool`.
    ///
    /// # Errors
    /// No connection came about, it broke, or there was no answer in time.
    pub async fn send(
        &self,
        request: RequestBuilder,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let (client, request) = request.build_split();
        let request = request.map_err(|error| call.problem(&error.into()))?;
        let again = request.try_clone();
        let began = Instant::now();
        let (mut sent, connect) = connect_time::of(self.head(&client, request)).await;
        connect_time::add(connect);
        if let (Err(problem), Some(again)) = (&sent, again)
            && problem.is_end_of_connection()
            && connect.is_zero()
            && began.elapsed() <= UNREAD
            && let Some(client) = self.anew(again.url())
        {
            sent = self.head(client, again).await;
        }
        match sent {
            Ok(response) => Ok(response.into()),
            Err(problem) => Err(call.problem(&problem)),
        }
    }

    async fn head(&self, client: &Client, request: Request) -> Result<reqwest::Response, Problem> {
        let sent = client.execute(request);
        match self.settings.first_byte_timeout {
            Some(limit) => match timeout(limit, sent).await {
                Ok(sent) => sent.map_err(Problem::from),
                Err(_) => Err(Problem::NoHead),
            },
            None => sent.await.map_err(Problem::from),
        }
    }

    /// The client that opens a connection for each request to an address.
    fn anew(&self, url: &Url) -> Option<&Client> {
        let builder = || builder(&self.settings).pool_max_idle_per_host(0);
        // The others were made, so this one can be.
        let client = if is_loopback(url) {
            self.direct_anew
                .get_or_init(|| builder().no_proxy().build().ok())
        } else {
            self.proxied_anew.get_or_init(|| builder().build().ok())
        };
        client.as_ref()
    }

    /// The whole body of a response, bounded by `max_body`; `holder` gets it.
    ///
    /// # Errors
    /// The connection broke, fell silent, or the body is too large.
    pub async fn body(
        &self,
        response: Response,
        holder: Holder,
        call: &Call<'_>,
    ) -> Result<Bytes, Failure> {
        let body = response.body(self.settings.max_body, &self.room, holder);
        body.await.map_err(|problem| call.problem(&problem))
    }
}

fn builder(settings: &HttpSettings) -> ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        .redirect(Policy::none())
        .pool_max_idle_per_host(settings.connections)
        .tcp_keepalive(KEEPALIVE)
        .tcp_nodelay(true)
        .connector_layer(ConnectTimeLayer)
        .connect_timeout(settings.connect_timeout)
        .read_timeout(settings.read_timeout)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
