use std::sync::Arc;

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
use super::response::Response;
use crate::failure::Failure;

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
    pub fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    /// Sends `body` with `headers`, and waits for the head of the response.
    ///
    /// # Errors
    /// No connection came about, it broke, or there was no answer in time.
    pub async fn post(
        &self,
        headers: HeaderMap,
        body: Bytes,
        call: &Call<'_>,
    ) -> Result<Response, Failure> {
        let Some(direct) = &self.direct else {
            let client = self.http.for_url(&self.url);
            let request = client.post(self.url.clone()).headers(headers).body(body);
            return self.http.send(request, call).await;
        };
        let mut request = Outgoing::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = direct.path.clone();
        *request.headers_mut() = headers;
        let limit = self.http.first_byte_timeout();
        let first_byte = limit.map(end_of);
        match direct.pool.send(request, first_byte).await {
            Ok(received) => Ok(received.into()),
            Err(problem) => Err(call.problem(&problem)),
        }
    }

    /// The whole body of a response, bounded as the clients' settings say.
    ///
    /// # Errors
    /// The connection broke, fell silent, or the body is too large.
    pub async fn body(&self, response: Response, call: &Call<'_>) -> Result<Bytes, Failure> {
        self.http.body(response, call).await
    }
}

impl Direct {
    fn to(url: &Url, http: &HttpClients) -> Option<Self> {
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        Some(Self {
            path: Uri::try_from(path).ok()?,
            pool: http.pool(url)?,
        })
    }
}

fn host(url: &Url) -> Option<HeaderValue> {
    let host = url.host_str()?;
    match url.port() {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")).ok(),
        None => HeaderValue::try_from(host).ok(),
    }
}
