//! [`HttpClients`] share connections; a [`Destination`] is an address that JSON is posted to over and over.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Request, RequestBuilder};
use tokio::time::timeout;
use tower_layer::layer_fn;
use url::{Host, Position, Url};

use super::call::{Call, Problem, describe, redirect_target};
use super::link::{Outgoing, UNREAD, end_of};
use super::pool::{KEEPALIVE, Pool, TimedConnector, add_connect_time, with_connect_time};
use super::response::{Encoding, Response};
use super::room::{Holder, Room};
use crate::retry::{Failure, FailureClass};

/// The name of this client, for servers.
const PRODUCT: &str = concat!("rollstream/", env!("CARGO_PKG_VERSION"));

/// The clients could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the HTTP client: {}", describe(.0))]
pub struct ClientError(#[source] reqwest::Error);

/// The settings of HTTP clients.
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
    /// The largest body that is accepted, in bytes after decompression.
    pub max_body: u64,
    /// The most bytes of bodies in memory at a time, after decompression, without one body
    /// that may exceed the limit. No more are read until there is room.
    pub body_memory: u64,
}

/// The HTTP clients of a process: connections are shared by all that use them.
#[derive(Debug, Clone)]
pub struct HttpClients {
    proxied: Client,
    direct: Client,
    /// The clients that keep no connections, created when they are needed.
    proxied_anew: Arc<OnceLock<Option<Client>>>,
    direct_anew: Arc<OnceLock<Option<Client>>>,
    /// Connections without TLS or proxy, which is how most agents are reached.
    pools: Arc<Mutex<HashMap<Uri, Arc<Pool>>>>,
    proxies: Arc<Matcher>,
    room: Room,
    settings: HttpSettings,
}

impl HttpClients {
    /// Creates clients with pools of their own.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub fn new(settings: &HttpSettings) -> Result<Self, ClientError> {
        let direct = builder(settings).no_proxy().build();
        Ok(Self {
            proxied: builder(settings).build().map_err(ClientError)?,
            direct: direct.map_err(ClientError)?,
            proxied_anew: Arc::default(),
            direct_anew: Arc::default(),
            pools: Arc::default(),
            proxies: Arc::new(Matcher::from_env()),
            room: Room::new(settings.body_memory),
            settings: settings.clone(),
        })
    }

    /// Returns the client for an address: requests to this machine bypass the environment's proxy.
    pub fn for_url(&self, url: &Url) -> &Client {
        if is_loopback(url) {
            &self.direct
        } else {
            &self.proxied
        }
    }

    /// Returns the connections to an address, if they need neither TLS nor a proxy.
    pub(super) fn pool(&self, url: &Url) -> Option<Arc<Pool>> {
        let host = url.host_str()?;
        let port = url.port_or_known_default()?;
        let origin = Uri::try_from(format!("{}://{host}:{port}", url.scheme())).ok()?;
        let is_plain =
            url.scheme() == "http" && url.username().is_empty() && url.password().is_none();
        let is_direct = is_loopback(url) || self.proxies.intercept(&origin).is_none();
        (is_plain && is_direct).then(|| {
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            let pool = || Arc::new(Pool::new(origin.clone(), self.settings.clone()));
            Arc::clone(pools.entry(origin.clone()).or_insert_with(pool))
        })
    }

    /// Sends a request, and waits for the head of the response. It is sent again, over a new connection, if the server
    /// seems to have closed the one that was idle: see `pool`.
    ///
    /// # Errors
    /// No connection was made, it broke, or there was no answer in time.
    pub async fn send(
        &self,
        request: RequestBuilder,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let (client, request) = request.build_split();
        let request = request.map_err(|error| call.problem(&error.into()))?;
        let again = request.try_clone();
        let began = Instant::now();
        let (mut sent, connect) = with_connect_time(self.head(&client, request)).await;
        add_connect_time(connect);
        if let (Err(problem), Some(again)) = (&sent, again)
            && problem.is_end_of_connection()
            && connect.is_zero()
            && began.elapsed() <= UNREAD
            && let Some(client) = self.anew(again.url())
        {
            sent = self.head(client, again).await;
        }
        match sent {
            Ok(response) => Ok(Response::Client(response)),
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

    /// Returns the client that opens a connection for each request to an address.
    fn anew(&self, url: &Url) -> Option<&Client> {
        let builder = || builder(&self.settings).pool_max_idle_per_host(0);
        // The other clients could be built, so this one can be, too.
        let client = if is_loopback(url) {
            self.direct_anew
                .get_or_init(|| builder().no_proxy().build().ok())
        } else {
            self.proxied_anew.get_or_init(|| builder().build().ok())
        };
        client.as_ref()
    }

    /// Reads the whole body of a response, bounded by `max_body`; `holder` gets it.
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
        .user_agent(PRODUCT)
        .redirect(Policy::none())
        .pool_max_idle_per_host(settings.connections)
        .tcp_keepalive(KEEPALIVE)
        .tcp_nodelay(true)
        .connector_layer(layer_fn(TimedConnector))
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

/// The body of a redirect is read up to this size and for this long; with a larger one, the connection is dropped.
const REDIRECT_BYTES: usize = 64 * 1024;
const REDIRECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An address that JSON is posted to, over and over.
#[derive(Debug, Clone)]
pub struct Destination {
    http: HttpClients,
    url: Url,
    headers: HeaderMap,
    /// The path and the pool, if the connections are our own.
    direct: Option<(Uri, Arc<Pool>)>,
}

impl Destination {
    /// Creates the destination `url`; `headers` go with every request.
    pub fn new(url: Url, headers: HeaderMap, http: HttpClients) -> Self {
        let mut of_all = HeaderMap::new();
        of_all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let direct = path(&url).zip(http.pool(&url));
        if direct.is_some() {
            of_all.insert(ACCEPT, HeaderValue::from_static("*/*"));
            let accepted = HeaderValue::from_static(Encoding::ACCEPTED);
            of_all.insert(ACCEPT_ENCODING, accepted);
            of_all.insert(USER_AGENT, HeaderValue::from_static(PRODUCT));
            let host = &url[Position::BeforeHost..Position::AfterPort];
            of_all.extend(HeaderValue::try_from(host).map(|host| (HOST, host)));
        }
        of_all.extend(headers);
        Self {
            http,
            url,
            headers: of_all,
            direct,
        }
    }

    /// Returns the address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the clients, which read the bodies of responses.
    pub fn http(&self) -> &HttpClients {
        &self.http
    }

    /// Returns the headers of every request. [`Self::post`] takes them together with those of a single request.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Sends `body` with `headers`, and waits for the head of the response. Redirects by 307 and 308 within the server are
    /// followed.
    ///
    /// # Errors
    /// No connection was made, it broke, there was no answer in time, or the answer redirects elsewhere.
    pub async fn post(
        &self,
        headers: &HeaderMap,
        body: &Bytes,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let mut url = Cow::Borrowed(&self.url);
        let mut followed = 0;
        loop {
            let response = self.send(&url, headers, body, call).await?;
            let status = response.status();
            if !status.is_redirection() {
                return Ok(response);
            }
            let next = redirect_target(status, response.headers(), &url, followed);
            let next = next.map_err(|why| Failure {
                http_status: Some(status.as_u16()),
                ..call.failure(FailureClass::Data, &why)
            })?;
            // The connection can be reused once the body is read.
            Box::pin(response.start(REDIRECT_BYTES, REDIRECT_TIMEOUT)).await;
            url = Cow::Owned(next);
            followed += 1;
        }
    }

    /// Sends a request to `url`, which is on this server.
    async fn send(
        &self,
        url: &Url,
        headers: &HeaderMap,
        body: &Bytes,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let Some((own_path, pool)) = &self.direct else {
            let client = self.http.for_url(url);
            let request = client.post(url.clone()).headers(headers.clone());
            // Boxed, like all state that few calls need: else each of thousands in flight reserves room for it.
            return Box::pin(self.http.send(request.body(body.clone()), call)).await;
        };
        let path = if *url == self.url {
            Cow::Borrowed(own_path)
        } else {
            let why = "the path that it redirects to can't be sent";
            let path = path(url).ok_or_else(|| call.failure(FailureClass::Data, why));
            Cow::Owned(path?)
        };
        let request = || {
            let mut request = Outgoing::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = path.as_ref().clone();
            *request.headers_mut() = headers.clone();
            request
        };
        let first_byte = self.http.settings.first_byte_timeout.map(end_of);
        match pool.send(request, first_byte).await {
            Ok(received) => Ok(Response::Own(received)),
            Err(problem) => Err(call.problem(&problem)),
        }
    }
}

/// Returns path and query as in a request.
fn path(url: &Url) -> Option<Uri> {
    Uri::try_from(&url[Position::BeforePath..Position::AfterQuery]).ok()
}
