use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{HeaderMap, Method, Uri};
use url::Url;

use super::call::Call;
use super::clients::{self, HttpClients};
use super::encoding::Encoding;
use super::link::{Outgoing, end_of};
use super::pool::Pool;
use super::redirect;
use super::response::Response;
use super::room::Holder;
use crate::retry::{Failure, FailureClass};

/// The body of a redirect is read up to this size and for this long; more of it costs the connection.
const REDIRECT_BYTES: usize = 64 * 1024;
const REDIRECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An address that JSON is posted to, over and over.
#[derive(Debug, Clone)]
pub struct Destination {
    http: HttpClients,
    url: Url,
    headers: HeaderMap,
    direct: Option<Direct>,
}

/// What need not be worked out for each request.
#[derive(Debug, Clone)]
struct Direct {
    pool: Arc<Pool>,
    path: Uri,
}

impl Destination {
    /// The address `url`; `headers` go with every request.
    pub fn new(url: Url, headers: HeaderMap, http: HttpClients) -> Self {
        let mut of_all = HeaderMap::new();
        of_all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let direct = Direct::to(&url, &http);
        if direct.is_some() {
            of_all.insert(ACCEPT, HeaderValue::from_static("*/*"));
            of_all.insert(
                ACCEPT_ENCODING,
                HeaderValue::from_static(Encoding::ACCEPTED),
            );
            of_all.insert(USER_AGENT, HeaderValue::from_static(clients::USER_AGENT));
            if let Some(host) = host(&url) {
                of_all.insert(HOST, host);
            }
        }
        of_all.extend(headers);
        Self {
            http,
            url,
            headers: of_all,
            direct,
        }
    }

    /// The address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The headers of every request, to be given with what is this one's to [`Self::post`].
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Sends `body` with `headers`, and waits for the head of the response. Redirects by 307 and 308
    /// within the server are followed.
    ///
    /// # Errors
    /// No connection came about, it broke, there was no answer in time, or it leads elsewhere.
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
            let next = redirect::next(status, response.headers(), &url, followed);
            let next = next.map_err(|why| Failure {
                http_status: Some(status.as_u16()),
                ..call.failure(FailureClass::Data, &why)
            })?;
            // Its connection can be used again when its body was read.
            Box::pin(response.start(REDIRECT_BYTES, REDIRECT_TIMEOUT)).await;
            url = Cow::Owned(next);
            followed += 1;
        }
    }

    /// Sends a request to `url`, which is of this server.
    async fn send(
        &self,
        url: &Url,
        headers: &HeaderMap,
        body: &Bytes,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let Some(direct) = &self.direct else {
            let client = self.http.for_url(url);
            let request = client.post(url.clone()).headers(headers.clone());
            // Boxed, as is all that few calls need: each of thousands in flight would have room for it.
            return Box::pin(self.http.send(request.body(body.clone()), call)).await;
        };
        let path = match *url == self.url {
            true => Cow::Borrowed(&direct.path),
            false => Cow::Owned(path(url).ok_or_else(|| {
                call.failure(
                    FailureClass::Data,
                    "the path that it redirects to can't be sent",
                )
            })?),
        };
        let request = || {
            let mut request = Outgoing::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = path.as_ref().clone();
            *request.headers_mut() = headers.clone();
            request
        };
        let limit = self.http.first_byte_timeout();
        let first_byte = limit.map(end_of);
        match direct.pool.send(request, first_byte).await {
            Ok(received) => Ok(received.into()),
            Err(problem) => Err(call.problem(&problem)),
        }
    }

    /// The whole body of a response, bounded as the clients' settings say; `holder` gets it.
    ///
    /// # Errors
    /// The connection broke, fell silent, or the body is too large.
    pub async fn body(
        &self,
        response: Response,
        holder: Holder,
        call: &Call<'_>,
    ) -> Result<Bytes, Failure> {
        self.http.body(response, holder, call).await
    }
}

impl Direct {
    fn to(url: &Url, http: &HttpClients) -> Option<Self> {
        Some(Self {
            path: path(url)?,
            pool: http.pool(url)?,
        })
    }
}

/// Path and query, as they stand in a request.
fn path(url: &Url) -> Option<Uri> {
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    Uri::try_from(path).ok()
}

fn host(url: &Url) -> Option<HeaderValue> {
    let host = url.host_str()?;
    match url.port() {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")).ok(),
        None => HeaderValue::try_from(host).ok(),
    }
}
