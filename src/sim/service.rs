//! A simulated server that is no agent: [`Server`] receives requests, with the faults, the latency
//! and the capacity that agents have, and a [`Service`] answers them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, SET_COOKIE};
use hyper::{Method, Request, StatusCode};

use super::agent::{fail, truncated};
use super::call::{Call, CallId, Fate, origin, request_id};
use super::fault::FaultKind;
use super::http::{Abrupt, BodyError, Reply, alive, detail, json, not_found, read_body};
use super::oracle::Key;
use super::profile::Profile;
use super::refusal::Refusal;
use super::requests::now_us;
use super::spoil::spoil;
use super::station::Station;

/// What a server does with a request.
pub(super) trait Service: Send + Sync + 'static {
    /// Answers a `GET`; none where there is nothing.
    fn get(&self, _path: &str) -> Option<Bytes> {
        None
    }

    /// Answers a `POST`.
    ///
    /// # Errors
    /// The request is wrong.
    fn post(&self, call: &Call, profile: &Profile) -> Result<Answer, Rejected>;
}

/// A good answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// One JSON object.
    pub body: Vec<u8>,
    /// A cookie for the client, as `Set-Cookie` has it.
    pub cookie: Option<String>,
}

/// The request is wrong.
#[derive(Debug)]
pub(super) struct Rejected {
    status: StatusCode,
    body: serde_json::Value,
}

impl Rejected {
    /// In the shape that NeMo Gym's servers have.
    pub(super) fn detail(status: StatusCode, why: impl ToString) -> Self {
        let body = serde_json::json!({ "detail": why.to_string() });
        Self { status, body }
    }

    /// 400 in the shape that OpenAI's API has.
    pub(super) fn openai(message: impl ToString, code: Option<&str>) -> Self {
        let error = serde_json::json!({
            "message": message.to_string(),
            "type": "invalid_request_error",
            "param": null,
            "code": code,
        });
        Self {
            status: StatusCode::BAD_REQUEST,
            body: serde_json::json!({ "error": error }),
        }
    }

    fn reply(self) -> Reply {
        let mut reply = json(self.body.to_string());
        *reply.status_mut() = self.status;
        reply
    }
}

impl From<Vec<u8>> for Answer {
    fn from(body: Vec<u8>) -> Self {
        Self { body, cookie: None }
    }
}

/// A simulated server.
#[derive(Debug)]
pub(super) struct Server<S> {
    name: &'static str,
    station: Arc<Station>,
    service: S,
    /// Numbers the calls, for those that do not say which they are.
    calls: AtomicU64,
}

impl<S: Service> Server<S> {
    /// A server that is asked at this station.
    pub(super) fn new(name: &'static str, station: Arc<Station>, service: S) -> Self {
        Self {
            name,
            station,
            service,
            calls: AtomicU64::new(0),
        }
    }

    /// Answers a request.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Reply, Abrupt> {
        match *request.method() {
            Method::POST => self.post(request).await,
            Method::GET => {
                let path = request.uri().path();
                let alive = || (path == "/").then(alive);
                let found = self.service.get(path).map(json).or_else(alive);
                Ok(found.unwrap_or_else(not_found))
            }
            _ => Ok(not_found()),
        }
    }

    async fn post(&self, request: Request<Incoming>) -> Result<Reply, Abrupt> {
        let mut admission = self.station.counters().admit();
        let (head, body) = request.into_parts();
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(error) => {
                if !matches!(error, BodyError::Broken(_)) {
                    admission.reject();
                }
                return Ok(error.reply());
            }
        };
        let (path, id) = (head.uri.path(), request_id(&head.headers));
        let key = id.and_then(CallId::parse).map_or(NOWHERE, |id| id.key);
        admission.received(key, now_us(), Some(origin(path, &head.headers)));
        let Ok(text) = std::str::from_utf8(&body) else {
            admission.decline(now_us());
            let why = "the body is not UTF-8";
            return Ok(detail(StatusCode::UNPROCESSABLE_ENTITY, why));
        };
        let profile = self.station.profile();
        let number = self.calls.fetch_add(1, Relaxed);
        let Fate { fault, latency } = profile.fate(self.name, path, id, number);
        if let Err(refusal) = self.station.work(&profile, latency, &mut admission).await {
            return Ok(refusal);
        }
        let now = now_us();
        if let Some(kind) = fault.filter(|kind| !has_answer(*kind)) {
            let refusal = Refusal::of_fault(kind, profile.retry_after, now);
            let not_before_us = refusal.as_ref().map(|refusal| refusal.not_before_us);
            admission.fault(kind, now, not_before_us);
            return match refusal {
                Some(refusal) => Ok(refusal.reply),
                None => fail(kind, Bytes::new).await,
            };
        }
        let call = Call {
            path,
            headers: &head.headers,
            body: text,
        };
        let Answer { body, cookie } = match self.service.post(&call, &profile) {
            Ok(answer) => answer,
            Err(rejected) => {
                admission.decline(now);
                return Ok(rejected.reply());
            }
        };
        let body = match fault {
            None => {
                admission.answer(now);
                body
            }
            Some(kind) => {
                admission.fault(kind, now, None);
                if kind == FaultKind::TruncatedBody {
                    return Err(Abrupt::Raw(truncated(&body.into())));
                }
                spoil(kind, body)
            }
        };
        let mut reply = json(body);
        // The cookies made here are headers.
        if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::try_from(cookie).ok()) {
            reply.headers_mut().insert(SET_COOKIE, cookie);
        }
        Ok(reply)
    }
}

/// The place of a request that does not say where it belongs.
const NOWHERE: Key = Key {
    task: 0,
    rollout: 0,
    attempt: 0,
};

/// The request is answered, and then something is done to the answer.
fn has_answer(kind: FaultKind) -> bool {
    match kind {
        FaultKind::SlowFirstByte
        | FaultKind::TruncatedBody
        | FaultKind::MissingReward
        | FaultKind::NoPersist
        | FaultKind::FailureClass
        | FaultKind::FailureTerminal
        | FaultKind::DeepJson
        | FaultKind::InvalidUtf8
        | FaultKind::NotANumber
        | FaultKind::HugeAnswer => true,
        FaultKind::Error500
        | FaultKind::RateLimited429
        | FaultKind::Reset
        | FaultKind::Hang
        | FaultKind::NotJson
        | FaultKind::Fin
        | FaultKind::Error503
        | FaultKind::RateLimitedDate
        | FaultKind::RateLimitedReset
        | FaultKind::GzipBomb
        | FaultKind::EndlessBody
        | FaultKind::BadRequest400 => false,
    }
}
