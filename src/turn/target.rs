use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue};
use serde::Deserialize;
use tokio::time::timeout;
use url::Url;

use super::{CookieJar, OpenTurn, TurnCall, TurnEnd, TurnLog};
use crate::http::{Call, Destination, Holder, HttpClients, Secrets, retry_after};
use crate::retry::{Failure, FailureClass};

/// Header that every call bears its identity in.
const REQUEST_ID: &str = "x-request-id";

/// A server that calls within attempts go to.
#[derive(Debug, Clone)]
pub struct Target {
    http: HttpClients,
    to: Destination,
    address: Arc<str>,
    /// Those that every call bears.
    headers: HeaderMap,
    secrets: Arc<Secrets>,
}

/// A request of a call.
#[derive(Debug)]
pub struct Post<'a> {
    /// What it is, for its row.
    pub call: TurnCall,
    /// JSON text.
    pub body: Bytes,
    /// What the server set before, if it is to hear it again.
    pub cookies: Option<&'a mut CookieJar>,
    /// The longest time to the last byte of the answer, and the name of the setting that says so.
    pub deadline: Option<(Duration, &'static str)>,
}

/// What a server answered.
#[derive(Debug)]
pub struct Posted {
    /// Status code.
    pub status: StatusCode,
    /// How long the server asked to be left alone.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Bytes,
    /// Its row.
    pub turn: OpenTurn,
    address: Arc<str>,
    began: Instant,
    secrets: Arc<Secrets>,
}

impl Target {
    /// The server at `base`; `headers` go with every call.
    ///
    /// # Errors
    /// Why the address can't be used.
    pub fn new(base: &str, headers: HeaderMap, http: HttpClients) -> Result<Self, String> {
        let url = Url::parse(base).map_err(|source| source.to_string())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err("give http://host:port".into());
        }
        let address = format!("POST {url}").into();
        let secrets = Arc::new(Secrets::of(&headers));
        Ok(Self {
            to: Destination::new(url, headers.clone(), http.clone()),
            http,
            address,
            headers,
            secrets,
        })
    }

    /// The same server, at `path` below its address.
    pub fn at(&self, path: &str) -> Self {
        let mut url = self.to.url().clone();
        {
            // An address of http or https can be a base.
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.pop_if_empty();
                segments.extend(path.split('/').filter(|part| !part.is_empty()));
            }
        }
        Self {
            address: format!("POST {url}").into(),
            to: Destination::new(url, self.headers.clone(), self.http.clone()),
            ..self.clone()
        }
    }

    /// Its address, without secrets.
    pub fn address(&self) -> &str {
        self.address.trim_start_matches("POST ")
    }

    /// Begins a call to it, which [`Self::send`] sends.
    ///
    /// # Errors
    /// The journal could not note it.
    pub fn begin(&self, call: &TurnCall, log: &TurnLog) -> Result<OpenTurn, Failure> {
        log.begin(call, &self.address)
    }

    /// Sends a call and waits for the whole answer, whatever its status. Its row is in `log`.
    ///
    /// # Errors
    /// There was no whole answer.
    pub async fn post(&self, post: Post<'_>, log: &TurnLog) -> Result<Posted, Failure> {
        let turn = self.begin(&post.call, log)?;
        self.send(post, turn).await
    }

    /// Sends a call that was begun as `turn`, and waits for the whole answer, whatever its status.
    ///
    /// # Errors
    /// There was no whole answer.
    pub async fn send(&self, post: Post<'_>, turn: OpenTurn) -> Result<Posted, Failure> {
        let began = Instant::now();
        let call = Call {
            what: &self.address,
            began,
            secrets: &self.secrets,
        };
        let request_bytes = post.body.len() as u64;
        let mut end = TurnEnd {
            request_bytes,
            ..TurnEnd::default()
        };
        let exchange = self.exchange(post.body, post.cookies, &turn, &call, &mut end);
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
                turn.end(end);
                Ok(Posted {
                    status,
                    retry_after,
                    body,
                    turn,
                    address: Arc::clone(&self.address),
                    began,
                    secrets: Arc::clone(&self.secrets),
                })
            }
            Err(failure) => {
                end.http_status = end.http_status.or(failure.http_status);
                end.failure = Some(failure.class);
                end.error = Some(failure.message.clone());
                turn.end(end);
                Err(failure)
            }
        }
    }

    async fn exchange(
        &self,
        body: Bytes,
        mut cookies: Option<&mut CookieJar>,
        turn: &OpenTurn,
        call: &Call<'_>,
        end: &mut TurnEnd,
    ) -> Result<(StatusCode, Option<Duration>, Bytes), Failure> {
        let mut headers = self.to.headers().clone();
        if let Ok(id) = HeaderValue::try_from(turn.request_id()) {
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
        let body = self.to.body(response, Holder::Caller, call).await?;
        Ok((status, retry_after, body))
    }
}

impl Posted {
    /// The body, if the status is 200.
    ///
    /// # Errors
    /// It is another; the row says so then.
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

    /// The body as JSON, if the status is 200.
    ///
    /// # Errors
    /// The status is another, or the body is not what is wanted; the row says so then.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Failure> {
        serde_json::from_slice(self.ok()?).map_err(|source| {
            let why = format!("the answer can't be read ({source}){}", self.quote());
            self.refuse(FailureClass::Data, &why)
        })
    }

    /// The failure that this answer stands for, noted in its row.
    pub fn refuse(&self, class: FailureClass, why: &str) -> Failure {
        let failure = Failure {
            http_status: Some(self.status.as_u16()),
            ..self.call().failure(class, why)
        };
        self.turn.refuse(&failure);
        failure
    }

    /// The beginning of the body, on one line and without secrets.
    pub fn quote(&self) -> String {
        self.call().quote(&self.body)
    }

    /// The beginning of a text of the body, on one line and without secrets.
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
