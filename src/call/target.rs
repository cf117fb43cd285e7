use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cookie::Cookie;
use reqwest::StatusCode;
use reqwest::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use serde::Deserialize;
use tokio::time::timeout;
use url::{Origin, Url};

use super::{CallEnd, CallLog, CallSpec, OpenCall};
use crate::http::{Call, Destination, Holder, HttpClients, Secrets, retry_after};
use crate::retry::{Failure, FailureClass};

/// The header with the identity of a call.
const REQUEST_ID: &str = "x-request-id";

/// A server that calls within attempts go to.
#[derive(Debug, Clone)]
pub struct Target {
    to: Destination,
    address: Arc<str>,
    /// Headers that go with every call.
    headers: HeaderMap,
    secrets: Arc<Secrets>,
}

/// A request of a call.
#[derive(Debug)]
pub struct Post<'a> {
    /// The description of the call, for its row.
    pub call: CallSpec,
    /// The body as JSON text.
    pub body: Bytes,
    /// The cookies that the server set before, if they go with the call.
    pub cookies: Option<&'a mut CookieJar>,
    /// The longest time to the last byte of the answer, and the name of its setting.
    pub deadline: Option<(Duration, &'static str)>,
}

/// The answer of a server.
#[derive(Debug)]
pub struct Posted {
    /// Status code.
    pub status: StatusCode,
    /// The wait that the server asked for.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Bytes,
    /// The call's row.
    pub open: OpenCall,
    address: Arc<str>,
    began: Instant,
    secrets: Arc<Secrets>,
}

impl Target {
    /// Creates the target at `base`; `headers` go with every call.
    ///
    /// # Errors
    /// The address can't be used. The text says why.
    pub fn new(base: &str, headers: HeaderMap, http: HttpClients) -> Result<Self, String> {
        let url = Url::parse(base).map_err(|source| source.to_string())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err("give http://host:port".into());
        }
        let address = format!("POST {url}").into();
        let secrets = Arc::new(Secrets::of(&headers));
        Ok(Self {
            to: Destination::new(url, headers.clone(), http),
            address,
            headers,
            secrets,
        })
    }

    /// Returns the same server, at `path` below its address.
    pub fn at(&self, path: &str) -> Self {
        let mut url = self.to.url().clone();
        {
            // An http or https address can be a base, so this succeeds.
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.pop_if_empty();
                segments.extend(path.split('/').filter(|part| !part.is_empty()));
            }
        }
        Self {
            address: format!("POST {url}").into(),
            to: Destination::new(url, self.headers.clone(), self.to.http().clone()),
            ..self.clone()
        }
    }

    /// Returns the address of the server, without secrets.
    pub fn address(&self) -> &str {
        self.address.trim_start_matches("POST ")
    }

    /// Returns the destination of requests, for callers that read the answer themselves.
    pub fn destination(&self) -> &Destination {
        &self.to
    }

    /// Starts the clock of a request, and returns it for the texts of failures.
    pub fn call(&self) -> Call<'_> {
        Call {
            what: &self.address,
            began: Instant::now(),
            secrets: &self.secrets,
        }
    }

    /// Begins a call to the server, which [`Self::send`] sends.
    ///
    /// # Errors
    /// The journal could not note it.
    pub fn begin(&self, call: &CallSpec, log: &CallLog) -> Result<OpenCall, Failure> {
        log.begin(call, &self.address)
    }

    /// Sends a call and waits for the whole answer, whatever its status. Its row is in `log`.
    ///
    /// # Errors
    /// There was no whole answer.
    pub async fn post(&self, post: Post<'_>, log: &CallLog) -> Result<Posted, Failure> {
        let open = self.begin(&post.call, log)?;
        self.send(post, open).await
    }

    /// Sends a call that was begun as `open`, and waits for the whole answer, whatever its status.
    ///
    /// # Errors
    /// There was no whole answer.
    pub async fn send(&self, post: Post<'_>, open: OpenCall) -> Result<Posted, Failure> {
        let call = self.call();
        let began = call.began;
        let mut end = CallEnd {
            request_bytes: post.body.len() as u64,
            ..CallEnd::default()
        };
        let exchange = self.exchange(post.body, post.cookies, &open, &call, &mut end);
        let result = match post.deadline {
            Some((limit, setting)) => match timeout(limit, exchange).await {
                Ok(result) => result,
                Err(_) => {
                    let limit = humantime::format_duration(limit);
                    let why = format!("no whole answer within {limit} ({setting})");
                    Err(call.failure(FailureClass::Timeout, &why))
                }
            },
            None => exchange.await,
        };
        end.elapsed = began.elapsed();
        match result {
            Ok((status, retry_after, body)) => {
                end.http_status = Some(status.as_u16());
                end.response_bytes = body.len() as u64;
                open.end(end);
                Ok(Posted {
                    status,
                    retry_after,
                    body,
                    open,
                    address: Arc::clone(&self.address),
                    began,
                    secrets: Arc::clone(&self.secrets),
                })
            }
            Err(failure) => {
                end.http_status = end.http_status.or(failure.http_status);
                end.failure = Some(failure.class);
                end.error = Some(failure.message.clone());
                open.end(end);
                Err(failure)
            }
        }
    }

    async fn exchange(
        &self,
        body: Bytes,
        mut cookies: Option<&mut CookieJar>,
        open: &OpenCall,
        call: &Call<'_>,
        end: &mut CallEnd,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), Failure> {
        let mut headers = self.to.headers().clone();
        if let Ok(id) = HeaderValue::try_from(open.request_id()) {
            headers.insert(REQUEST_ID, id);
        }
        if let Some(jar) = &cookies {
            jar.add_to(&self.to.url().origin(), &mut headers);
        }
        let response = self.to.post(&headers, &body, call).await?;
        let status = response.status();
        end.http_status = Some(status.as_u16());
        if let Some(jar) = &mut cookies {
            jar.take(&self.to.url().origin(), response.headers());
        }
        let retry_after = retry_after(response.headers(), SystemTime::now());
        let body = self.to.http().body(response, Holder::Caller, call).await?;
        Ok((status, retry_after, body))
    }
}

impl Posted {
    /// Returns the body, if the status is 200.
    ///
    /// # Errors
    /// The status is another, which is then noted in the row.
    pub fn ok(&self) -> Result<&Bytes, Failure> {
        if self.status == StatusCode::OK {
            return Ok(&self.body);
        }
        let reason = self.status.canonical_reason().unwrap_or_default();
        let status = self.status.as_u16();
        let why = format!("HTTP {status} {reason}{}", self.quote());
        let failure = self.refuse(FailureClass::of_status(status), why.trim_end());
        Err(Failure {
            retry_after: self.retry_after.filter(|_| matches!(status, 429 | 503)),
            ..failure
        })
    }

    /// Returns the body as JSON, if the status is 200.
    ///
    /// # Errors
    /// The status is another, or the body is not a `T`. The failure is then noted in the row.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_slice(self.ok()?).map_err(|source| {
            let why = format!("the answer can't be read ({source}){}", self.quote());
            self.refuse(FailureClass::Data, &why)
        })
    }

    /// Returns the failure that this answer stands for, and notes it in the row.
    pub fn refuse(&self, class: FailureClass, why: &str) -> Failure {
        let failure = Failure {
            http_status: Some(self.status.as_u16()),
            ..self.call().failure(class, why)
        };
        self.open.refuse(&failure);
        failure
    }

    /// Returns the beginning of the body, on one line and without secrets.
    pub fn quote(&self) -> String {
        self.call().quote(&self.body)
    }

    /// Returns the beginning of a text of the body, on one line and without secrets.
    pub fn shown(&self, text: &[u8]) -> String {
        self.secrets.shown(text)
    }

    fn call(&self) -> Call<'_> {
        Call {
            what: &self.address,
            began: self.began,
            secrets: &self.secrets,
        }
    }
}

/// The cookies of one episode, each for the server that set it. They are never shared between episodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CookieJar(Vec<KeptCookie>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptCookie {
    server: Origin,
    name: String,
    value: String,
}

impl CookieJar {
    /// Stores the cookies that a server's answer sets. Each replaces the one of its name; an expired one removes it.
    pub fn take(&mut self, server: &Origin, headers: &HeaderMap) {
        for value in headers.get_all(SET_COOKIE) {
            let parsed = value.to_str().ok().map(Cookie::parse);
            let Some(Ok(cookie)) = parsed else { continue };
            self.0
                .retain(|kept| kept.name != cookie.name() || kept.server != *server);
            if !is_expired(&cookie) {
                self.0.push(KeptCookie {
                    server: server.clone(),
                    name: cookie.name().to_owned(),
                    value: cookie.value().to_owned(),
                });
            }
        }
    }

    /// Adds the cookies of a server to a request's headers.
    pub fn add_to(&self, server: &Origin, headers: &mut HeaderMap) {
        let own = self.0.iter().filter(|kept| kept.server == *server);
        let pairs: Vec<String> = own
            .map(|KeptCookie { name, value, .. }| format!("{name}={value}"))
            .collect();
        if pairs.is_empty() {
            return;
        }
        if let Ok(mut value) = HeaderValue::try_from(pairs.join("; ")) {
            value.set_sensitive(true);
            headers.insert(COOKIE, value);
        }
    }
}

/// Returns whether a cookie is expired. `Max-Age` takes precedence over `Expires` (RFC 6265, section 4.1.2.2).
fn is_expired(cookie: &Cookie<'_>) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match (cookie.max_age(), cookie.expires_datetime()) {
        (Some(age), _) => !age.is_positive(),
        (None, Some(until)) => u64::try_from(until.unix_timestamp()).unwrap_or(0) <= now.as_secs(),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        url::Url::parse(url).unwrap().origin()
    }

    #[test]
    fn cookies_are_replaced_by_name_and_go_when_they_expire() {
        let set = |jar: &mut CookieJar, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SET_COOKIE, HeaderValue::from_static(value));
            }
            jar.take(&origin("http://a:1"), &headers);
        };
        let sent_to = |jar: &CookieJar, server: &str| {
            let mut headers = HeaderMap::new();
            jar.add_to(&origin(server), &mut headers);
            headers
                .get(COOKIE)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let sent = |jar: &CookieJar| sent_to(jar, "http://a:1");
        let mut jar = CookieJar::default();
        assert_eq!(sent(&jar), None);
        set(
            &mut jar,
            &[
                "session=a=b; path=/; httponly; samesite=lax",
                "n=1",
                "not a cookie",
            ],
        );
        assert_eq!(sent(&jar).unwrap(), "session=a=b; n=1");
        set(&mut jar, &["session=c", "n=1; Max-Age=0"]);
        assert_eq!(sent(&jar).unwrap(), "session=c");
        assert_eq!(sent_to(&jar, "http://b:1"), None);
        let past = ["session=d; expires=Thu, 01 Jan 1970 00:00:00 GMT"];
        set(&mut jar, &past);
        assert_eq!(sent(&jar), None);
    }
}
