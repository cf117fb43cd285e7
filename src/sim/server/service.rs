//! Servers that are no agents: [`Server`] receives requests, and a [`Service`] answers them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::COOKIE;
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};

use super::super::plan::{CallId, Profile};
use super::endpoint::Endpoint;
use super::http::{Abrupt, Reply, alive, detail, json as reply_json, not_found};
use super::requests::{RequestRecord, now_us};

/// What a server does with its requests.
pub(crate) trait Service: Send + Sync + 'static {
    /// Answers a `GET`; none if there is nothing at the path.
    fn get(&self, _path: &str) -> Option<Bytes> {
        None
    }

    /// Answers a `POST`.
    ///
    /// # Errors
    /// The request is wrong.
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected>;
}

/// A `POST` to a server.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// Path, without a query.
    pub path: &'a str,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// Body, which is text.
    pub body: &'a str,
}

impl Call<'_> {
    /// Returns the identity of the call, if it has one.
    pub(crate) fn id(&self) -> Option<CallId> {
        CallId::parse(request_id(self.headers)?)
    }

    /// Returns the value of a cookie.
    pub(crate) fn cookie(&self, name: &str) -> Option<String> {
        let lines = self.headers.get_all(COOKIE).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let mut cookies = lines.flat_map(cookie::Cookie::split_parse).flatten();
        let found = cookies.find(|cookie| cookie.name() == name)?;
        Some(found.value().to_owned())
    }
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-request-id")?.to_str().ok()
}

#[derive(Debug)]
pub(crate) struct Answer {
    /// One JSON object.
    pub body: Vec<u8>,
    /// The value of `Set-Cookie`.
    pub cookie: Option<String>,
}

impl From<Vec<u8>> for Answer {
    fn from(body: Vec<u8>) -> Self {
        Self { body, cookie: None }
    }
}

impl From<Value> for Answer {
    fn from(body: Value) -> Self {
        body.to_string().into_bytes().into()
    }
}

/// Why a request is wrong.
#[derive(Debug)]
pub(crate) struct Rejected {
    status: StatusCode,
    body: Value,
}

impl Rejected {
    /// Creates a rejection in the format of NeMo Gym's servers.
    pub(crate) fn detail(status: StatusCode, why: impl ToString) -> Self {
        let body = json!({ "detail": why.to_string() });
        Self { status, body }
    }

    pub(crate) fn not_found() -> Self {
        Self::detail(StatusCode::NOT_FOUND, "Not Found")
    }

    /// Creates a rejection with status 400 in the format of OpenAI's API.
    pub(crate) fn openai(message: impl ToString, code: Option<&str>) -> Self {
        let error = json!({
            "message": message.to_string(),
            "type": "invalid_request_error",
            "param": null,
            "code": code,
        });
        Self {
            status: StatusCode::BAD_REQUEST,
            body: json!({ "error": error }),
        }
    }

    pub(crate) fn reply(self) -> Reply {
        let mut reply = reply_json(self.body.to_string());
        *reply.status_mut() = self.status;
        reply
    }
}

#[derive(Debug)]
pub(crate) struct Server<S> {
    name: &'static str,
    endpoint: Arc<Endpoint>,
    service: S,
    /// Number of the next call, to draw for calls without identity.
    calls: AtomicU64,
}

impl<S: Service> Server<S> {
    pub(crate) fn new(name: &'static str, endpoint: Arc<Endpoint>, service: S) -> Self {
        Self {
            name,
            endpoint,
            service,
            calls: AtomicU64::new(0),
        }
    }

    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Reply, Abrupt> {
        match *request.method() {
            Method::POST => self.post(request).await,
            Method::GET => {
                let path = request.uri().path();
                let alive = || (path == "/").then(alive);
                let found = self.service.get(path).map(reply_json).or_else(alive);
                Ok(found.unwrap_or_else(not_found))
            }
            _ => Ok(not_found()),
        }
    }

    async fn post(&self, request: Request<Incoming>) -> Result<Reply, Abrupt> {
        let mut admission = self.endpoint.requests().admit();
        let (head, body) = request.into_parts();
        let body = match admission.read(body).await {
            Ok(body) => body,
            Err(refused) => return Ok(refused),
        };
        let (path, id) = (head.uri.path(), request_id(&head.headers));
        let key = id.and_then(CallId::parse).map(|id| id.key);
        admission.received(RequestRecord {
            path: Some(path.into()),
            request_id: id.map(Into::into),
            ..RequestRecord::arrived(key.unwrap_or_default())
        });
        let Ok(text) = std::str::from_utf8(&body) else {
            admission.decline(now_us());
            let why = "the body is not UTF-8";
            return Ok(detail(StatusCode::UNPROCESSABLE_ENTITY, why));
        };
        let profile = self.endpoint.profile();
        let number = self.calls.fetch_add(1, Relaxed);
        let (fault, latency) = profile.plan_call(self.name, path, id, number);
        let call = Call {
            path,
            headers: &head.headers,
            body: text,
        };
        let answer = || self.service.post(&call, &profile);
        let replied = self
            .endpoint
            .reply(&mut admission, &profile, fault, latency, answer);
        replied.await
    }
}
