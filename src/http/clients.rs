use std::error::Error as _;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use tokio::time::timeout;
use url::{Host, Url};

use super::connect_time::ConnectTimeLayer;
use super::retry_after::retry_after;
use crate::failure::{Failure, FailureClass};

/// An error's body is quoted up to this many bytes.
const QUOTED_BYTES: usize = 300;

/// The rest of an error is waited for this long; what matters of it is known by then.
const QUOTE_TIMEOUT: Duration = Duration::from_secs(5);

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
}

/// The HTTP clients of a process: connections are shared by all that use them.
#[derive(Debug, Clone)]
pub struct HttpClients {
    proxied: Client,
    direct: Client,
    first_byte_timeout: Option<Duration>,
    max_body: u64,
}

impl HttpClients {
    /// Clients with pools of their own.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub fn new(settings: &HttpSettings) -> Result<Self, ClientError> {
        let builder = || {
            Client::builder()
                .user_agent(concat!("rollstream/", env!("CARGO_PKG_VERSION")))
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
            first_byte_timeout: settings.first_byte_timeout,
            max_body: settings.max_body,
        })
    }

    /// The client for an address: a proxy of the environment is not asked for this very machine.
    pub fn for_url(&self, url: &Url) -> &Client {
        let loopback = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if loopback {
            &self.direct
        } else {
            &self.proxied
        }
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
        let sent = match self.first_byte_timeout {
            Some(limit) => timeout(limit, request.send()).await.map_err(|_| {
                let why = "no answer began within --first-byte-timeout";
                call.failure(FailureClass::Timeout, why)
            })?,
            None => request.send().await,
        };
        sent.map_err(|error| call.client_error(&error))
    }

    /// The whole body of a response, bounded by `max_body`.
    ///
    /// # Errors
    /// The connection broke, fell silent, or the body is too large.
    pub async fn body(&self, response: Response, call: &Call<'_>) -> Result<Bytes, Failure> {
        read_body(response, self.max_body, call).await
    }
}

/// A call under way, for the texts of its errors.
#[derive(Debug)]
pub struct Call<'a> {
    /// Method and address, without secrets.
    pub what: &'a str,
    /// When it began.
    pub began: Instant,
    /// What must not be quoted, should the agent repeat it.
    pub secrets: &'a Secrets,
}

/// Texts that must not be shown.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Shorter texts are no secrets: they are found everywhere.
    const SHORTEST: usize = 6;

    /// The values of the headers that hold secrets, also without what stands before the token.
    pub fn of(headers: &HeaderMap) -> Self {
        let values = headers.values().filter(|value| value.is_sensitive());
        let texts = values.filter_map(|value| value.to_str().ok());
        let tokens = texts.flat_map(|text| [Some(text), text.rsplit(' ').next()]);
        let long = |token: &&str| token.len() >= Self::SHORTEST;
        Self(tokens.flatten().filter(long).map(str::to_owned).collect())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{} secrets", self.0.len())
    }
}

impl Call<'_> {
    /// Beginning of a body, on one line and without secrets, for an error text.
    pub fn quote(&self, body: &[u8]) -> String {
        let start = body.get(..16 * QUOTED_BYTES).unwrap_or(body);
        let mut text = String::from_utf8_lossy(start).into_owned();
        for secret in &self.secrets.0 {
            text = text.replace(secret.as_str(), "[secret]");
        }
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(QUOTED_BYTES) {
            _ if line.is_empty() => line,
            Some((end, _)) => format!(": {}", line.get(..end).unwrap_or_default()),
            None => format!(": {line}"),
        }
    }

    /// A failure of this call, with its address and the time that it took.
    pub fn failure(&self, class: FailureClass, why: &str) -> Failure {
        Failure::new(
            class,
            // Always in seconds, so that texts of the same error differ in a number alone.
            format!(
                "{}: {why} after {:.3} s",
                self.what,
                self.began.elapsed().as_secs_f64()
            ),
        )
    }

    /// The failure that an error of the client stands for.
    pub fn client_error(&self, error: &reqwest::Error) -> Failure {
        let class = match error {
            error if error.is_connect() => FailureClass::Infra,
            error if error.is_timeout() => FailureClass::Timeout,
            // The body came whole, and can't be unpacked.
            error if error.is_decode() && !is_io(error) => FailureClass::Data,
            _ => FailureClass::Infra,
        };
        Failure {
            unreachable: error.is_connect(),
            ..self.failure(class, &describe(error))
        }
    }

    /// The failure that a status other than 200 stands for.
    pub async fn status_error(&self, response: Response) -> Failure {
        let status = response.status();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let quoted = self.quote(&read_start(response).await);
        let class = FailureClass::of_status(status.as_u16());
        let reason = status.canonical_reason().unwrap_or_default();
        Failure {
            retry_after: retry_after.filter(|_| matches!(status.as_u16(), 429 | 503)),
            ..self.failure(
                class,
                format!("HTTP {} {reason}{quoted}", status.as_u16()).trim_end(),
            )
        }
    }
}

async fn read_body(
    mut response: Response,
    max_body: u64,
    call: &Call<'_>,
) -> Result<Bytes, Failure> {
    let too_large = || {
        call.failure(
            FailureClass::Data,
            &format!("the answer is larger than {max_body} bytes (--max-body)"),
        )
    };
    let announced = response.content_length();
    if announced.is_some_and(|length| length > max_body) {
        return Err(too_large());
    }
    let failed = |error: reqwest::Error| call.client_error(&error);
    let Some(first) = response.chunk().await.map_err(failed)? else {
        return Ok(Bytes::new());
    };
    if announced == Some(first.len() as u64) {
        return Ok(first);
    }
    // What is announced is a hint, not a promise: a large one is believed only as it arrives.
    let hint = announced.unwrap_or_default().min(64 * 1024 * 1024) as usize;
    let mut body = BytesMut::with_capacity(hint.max(first.len()));
    body.extend_from_slice(&first);
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        if (body.len() + chunk.len()) as u64 > max_body {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// The beginning of a body: as much of it as comes soon, and is wanted for an error text.
async fn read_start(mut response: Response) -> Vec<u8> {
    let mut start = Vec::new();
    let read = async {
        while start.len() < 16 * QUOTED_BYTES
            && let Ok(Some(chunk)) = response.chunk().await
        {
            start.extend_from_slice(&chunk);
        }
    };
    // What came before the time was up is all there is to be quoted.
    let _ = timeout(QUOTE_TIMEOUT, read).await;
    start
}

/// The error is one of the connection, and not of what came over it.
fn is_io(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.is::<hyper::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What the innermost causes of an error say; the outer ones only repeat the address.
pub fn describe(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        cause = error.source();
    }
    if parts.is_empty() {
        without_url(error)
    } else {
        parts.join(": ")
    }
}

fn without_url(error: &reqwest::Error) -> String {
    let text = error.to_string();
    match text.find(" for url (") {
        Some(at) => text.get(..at).unwrap_or_default().to_owned(),
        None => text,
    }
}
