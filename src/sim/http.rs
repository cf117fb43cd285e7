//! HTTP in the small: replies ([`Reply`]), most of them with a body in memory, and bodies read
//! within a bound and a deadline ([`read_body`]).

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use thiserror::Error;

/// A reply whose body is in memory, or made as the client takes it.
pub(super) type Reply = Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>>;

/// The largest request that is read, in bytes.
pub(super) const MAX_REQUEST_BYTES: usize = 128 << 20;

/// A client has this long to send a request's body.
const BODY_DEADLINE: Duration = Duration::from_secs(120);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// An answer that is not an HTTP reply: the connection ends with it.
#[derive(Debug, Error)]
pub(super) enum Abrupt {
    /// The connection is closed in good order.
    #[error("the simulated agent closes the connection")]
    Fin,
    /// The connection is reset.
    #[error("the simulated agent resets the connection")]
    Reset,
    /// These bytes are sent as they are, then the connection is closed.
    #[error("the simulated agent breaks off its answer")]
    Raw(Bytes),
}

/// Why a request's body could not be read.
#[derive(Debug, Error)]
pub(super) enum BodyError {
    /// Larger than what is read.
    #[error("the body is larger than {MAX_REQUEST_BYTES} bytes")]
    TooLarge,
    /// Not all there in time.
    #[error("the body was not complete within {BODY_DEADLINE:?}")]
    TooSlow,
    /// The connection broke.
    #[error("the body could not be read: {0}")]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// Reads a whole body.
pub(super) async fn read_body(body: Incoming) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > MAX_REQUEST_BYTES as u64 {
        return Err(BodyError::TooLarge);
    }
    let whole = Limited::new(body, MAX_REQUEST_BYTES).collect();
    match tokio::time::timeout(BODY_DEADLINE, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Ok(Err(error)) => Err(BodyError::Broken(error)),
        Err(_) => Err(BodyError::TooSlow),
    }
}

impl BodyError {
    /// The reply that says so.
    pub(super) fn reply(&self) -> Reply {
        let status = match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        };
        detail(status, self)
    }
}

/// 200 with JSON.
pub(super) fn json(body: impl Into<Bytes>) -> Reply {
    reply(StatusCode::OK, JSON, body.into())
}

/// 200 with a body that is made as the client takes it.
pub(super) fn streamed<B>(content_type: &'static str, body: B) -> Reply
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let mut reply = Response::new(Either::Right(body.boxed_unsync()));
    let content_type = HeaderValue::from_static(content_type);
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// 200 with a page of HTML.
pub(super) fn html(body: &'static str) -> Reply {
    reply(StatusCode::OK, HTML, Bytes::from_static(body.as_bytes()))
}

/// A refusal, in the shape that NeMo Gym's servers have: `{"detail": ...}`.
pub(super) fn detail(status: StatusCode, why: impl ToString) -> Reply {
    let body = serde_json::json!({ "detail": why.to_string() });
    reply(status, JSON, body.to_string().into())
}

/// The answer of every server to `GET /`.
pub(super) fn alive() -> Reply {
    json(Bytes::from_static(br#"{"status":"ok"}"#))
}

/// There is nothing at this path, or not by this method.
pub(super) fn not_found() -> Reply {
    detail(StatusCode::NOT_FOUND, "Not Found")
}

/// JSON of a value, or a 500 where it has none.
pub(super) fn json_of(value: &impl serde::Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => json(body),
        Err(error) => detail(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

/// A reply that never fails, where a service must say how it could.
pub(super) fn certain(reply: Reply) -> Result<Reply, Infallible> {
    Ok(reply)
}

fn reply(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}
