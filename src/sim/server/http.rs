//! Replies ([`Reply`]), most of them with a body in memory, and request bodies read with a limit and a deadline
//! ([`read_body`]).

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use thiserror::Error;

/// A reply whose body is in memory, or streamed.
pub(crate) type Reply = Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>>;

/// The largest request body, in bytes.
const MAX_REQUEST_BYTES: usize = 128 << 20;

/// Time that a client has to send the body of a request.
const BODY_DEADLINE: Duration = Duration::from_secs(120);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// An answer that is not an HTTP reply and ends the connection.
#[derive(Debug, Error)]
pub(crate) enum Abrupt {
    /// The connection is closed in good order.
    #[error("the simulated agent closes the connection")]
    Fin,
    /// The connection is reset.
    #[error("the simulated agent resets the connection")]
    Reset,
    /// These bytes are sent as they are before the connection is closed.
    #[error("the simulated agent breaks off its answer")]
    Raw(Bytes),
}

/// Reads a whole body.
///
/// # Errors
/// The reply to a body that is too large (413), too slow (408) or broken (400).
pub(crate) async fn read_body(body: Incoming) -> Result<Bytes, Reply> {
    let too_large = || {
        let why = format!("the body is larger than {MAX_REQUEST_BYTES} bytes");
        detail(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    if body.size_hint().lower() > MAX_REQUEST_BYTES as u64 {
        return Err(too_large());
    }
    let whole = Limited::new(body, MAX_REQUEST_BYTES).collect();
    match tokio::time::timeout(BODY_DEADLINE, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            let why = format!("the body could not be read: {error}");
            Err(detail(StatusCode::BAD_REQUEST, why))
        }
        Err(_) => {
            let why = format!("the body was not complete within {BODY_DEADLINE:?}");
            Err(detail(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
}

/// Returns status 200 with JSON.
pub(crate) fn json(body: impl Into<Bytes>) -> Reply {
    reply(StatusCode::OK, JSON, body.into())
}

/// Returns status 200 with a streamed body.
pub(crate) fn streamed<B>(content_type: &'static str, body: B) -> Reply
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let mut reply = Response::new(Either::Right(body.boxed_unsync()));
    let content_type = HeaderValue::from_static(content_type);
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}

/// Returns status 200 with a page of HTML.
pub(crate) fn html(body: &'static str) -> Reply {
    reply(StatusCode::OK, HTML, Bytes::from_static(body.as_bytes()))
}

/// Returns an error in the format of NeMo Gym's servers: `{"detail": ...}`.
pub(crate) fn detail(status: StatusCode, why: impl ToString) -> Reply {
    let body = serde_json::json!({ "detail": why.to_string() });
    reply(status, JSON, body.to_string().into())
}

/// Returns every server's answer to `GET /`.
pub(crate) fn alive() -> Reply {
    json(Bytes::from_static(br#"{"status":"ok"}"#))
}

pub(crate) fn not_found() -> Reply {
    detail(StatusCode::NOT_FOUND, "Not Found")
}

/// Returns status 200 with a value as JSON, or 500 if it cannot be written.
pub(crate) fn json_of(value: &impl serde::Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => json(body),
        Err(error) => detail(StatusCode::INTERNAL_SERVER_ERROR, error),
    }
}

fn reply(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, content_type);
    reply
}
