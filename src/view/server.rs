//! The HTTP server of the viewer: read only, for whoever has the token that is part of every address. A page is sent as it is
//! made, so that its head is there before its last query has ended.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::site::{Asked, Site};

/// Connections at a time. A browser opens six, and one more for each page that follows a run.
const MAX_CONNECTIONS: usize = 64;

/// Time that a client has to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);

/// Pause after a failed accept, which mostly means that there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pieces of a page that wait for a slow reader.
const PIECES: usize = 8;

/// Nothing but what this server has may be loaded, no script may stand in a page, and no other page may frame it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The policy of answers as they came: a browser shows them as text and nothing else.
const RAW_POLICY: &str = "default-src 'none'; sandbox";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Takes the pieces of an answer while they are made.
#[derive(Clone)]
pub(super) struct Out(mpsc::Sender<Bytes>);

impl Out {
    /// Makes an output, and the end from which its pieces come.
    pub(super) fn new() -> (Self, mpsc::Receiver<Bytes>) {
        let (pieces, made) = mpsc::channel(PIECES);
        (Self(pieces), made)
    }

    /// Sends a piece; returns whether anybody still wants more.
    pub(super) async fn put(&self, piece: impl Into<Bytes>) -> bool {
        self.0.send(piece.into()).await.is_ok()
    }

    /// The same from a thread that may block.
    pub(super) fn put_blocking(&self, piece: impl Into<Bytes>) -> bool {
        self.0.blocking_send(piece.into()).is_ok()
    }
}

/// An answer to a request.
pub(super) struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its media type.
    pub media: &'static str,
    /// The name of the file under which a browser keeps it, if it is not to be shown.
    pub file: Option<&'static str>,
    /// Whether it is something that an agent sent, as it came.
    pub is_raw: bool,
    /// Its content.
    pub body: Body,
}

impl Answer {
    /// An answer that is there.
    pub(super) fn whole(media: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            media,
            file: None,
            is_raw: false,
            body: UnsyncBoxBody::new(Full::new(body.into())),
        }
    }

    /// An answer that is being made by `work`, which ends if the client leaves.
    pub(super) fn made_by<W>(media: &'static str, work: impl FnOnce(Out) -> W) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let (out, made) = Out::new();
        let pieces = stream::unfold(made, |mut made| async {
            made.recv().await.map(|piece| (piece, made))
        });
        let work = work(out).into_stream().filter_map(|()| future::ready(None));
        let frames = stream::select(pieces, work).map(|piece| Ok(Frame::data(piece)));
        Self {
            body: UnsyncBoxBody::new(StreamBody::new(frames)),
            ..Self::whole(media, "")
        }
    }

    fn response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let policy = if self.is_raw { RAW_POLICY } else { POLICY };
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(policy),
        );
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.media));
        if let Some(file) = self.file {
            let value = format!("attachment; filename=\"{file}\"");
            headers.extend(
                HeaderValue::try_from(value)
                    .ok()
                    .map(|value| (header::CONTENT_DISPOSITION, value)),
            );
        }
        response
    }
}

/// Serves the pages of a site until it is dropped.
pub(super) async fn serve(listener: TcpListener, site: Arc<Site>) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Nobody closes the semaphore.
        let place = Arc::clone(&free).acquire_owned().await;
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let site = Arc::clone(&site);
                    connections.spawn(async move {
                        let _place = place;
                        connection(stream, site).await;
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, site: Arc<Site>) {
    let service = service_fn(|request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(answer(&request, site).await.response()) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .serve_connection(TokioIo::new(stream), service);
    // A client that leaves in the middle of an answer is no error of ours.
    let _ = served.await;
}

async fn answer(request: &Request<Incoming>, site: Arc<Site>) -> Answer {
    let refused = |status: StatusCode, why: &'static str| Answer {
        status,
        ..Answer::whole("text/plain; charset=utf-8", why)
    };
    if !is_from_here(request.headers(), site.address) {
        return refused(
            StatusCode::FORBIDDEN,
            "this request comes from another site",
        );
    }
    let path = request.uri().path();
    let (token, path) = path
        .trim_start_matches('/')
        .split_once('/')
        .unwrap_or_default();
    // Hashes are compared in constant time.
    if blake3::hash(token.as_bytes()) != site.token_hash {
        let why = "the address lacks the token: open the one that `rollstream view` printed";
        return refused(StatusCode::FORBIDDEN, why);
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "the viewer only reads");
    }
    let answer = site.answer(Asked::new(path, request.uri().query())).await;
    if request.method() != Method::HEAD {
        return answer;
    }
    Answer {
        body: Full::default().boxed_unsync(),
        ..answer
    }
}

/// Whether a request was made by a page of this server, by a person who follows a link, or by a program. A name that
/// somebody made point to this machine is none of its names.
fn is_from_here(headers: &HeaderMap, address: SocketAddr) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let port = address.port();
    let host = text(header::HOST).unwrap_or_default();
    let is_own = !address.ip().is_loopback()
        || [format!("{address}"), format!("localhost:{port}")]
            .iter()
            .any(|own| own == host);
    let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    let is_same = origin.is_none_or(|origin| origin == format!("http://{host}").as_bytes());
    let site = text(HeaderName::from_static("sec-fetch-site"));
    let mode = text(HeaderName::from_static("sec-fetch-mode"));
    is_own
        && is_same
        && (site.is_none_or(|site| ["same-origin", "none"].contains(&site))
            || mode == Some("navigate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_here(headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        is_from_here(&headers.collect(), SocketAddr::from(([127, 0, 0, 1], 80)))
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        assert!(from_here(&[("host", "127.0.0.1:80")]));
        assert!(from_here(&[
            ("host", "localhost:80"),
            ("origin", "http://localhost:80")
        ]));
        assert!(!from_here(&[("host", "evil.example:80")]));
        assert!(!from_here(&[]));
        assert!(!from_here(&[
            ("host", "127.0.0.1:80"),
            ("origin", "http://evil.example")
        ]));
        let cross = ("sec-fetch-site", "cross-site");
        assert!(!from_here(&[
            ("host", "127.0.0.1:80"),
            cross,
            ("sec-fetch-mode", "cors")
        ]));
        assert!(from_here(&[
            ("host", "127.0.0.1:80"),
            cross,
            ("sec-fetch-mode", "navigate")
        ]));
    }
}
