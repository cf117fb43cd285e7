//! [`S3Server`]: object storage that speaks S3 over HTTP on loopback and keeps everything in memory. The protocol
//! (paths, signatures, XML, error codes) is the `s3s` crate's; [`S3Backend`](super::s3_backend::S3Backend) is what it
//! keeps. Conditional puts have one winner, and every state that a reader could ever have seen is on record.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue, IF_NONE_MATCH};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::s3_backend::{S3Backend, State};

pub const BUCKET: &str = "sweeps";
pub const ACCESS_KEY: &str = "AKIATESTKEY";
pub const SECRET_KEY: &str = "secret-of-the-test-store";

/// What the bucket looks like to its readers after one change of it.
#[derive(Debug, Clone)]
pub enum Change {
    Put(String, Bytes),
    Deleted(String),
}

/// Requests by their method, or `LIST`. A listing is one request, however many pages it has here: at Amazon, a page has a
/// thousand objects.
pub type Requests = BTreeMap<String, u64>;

/// The server, gone when dropped.
pub struct S3Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    requests: Arc<Mutex<Requests>>,
    _runtime: Runtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Requests must be signed with [`SECRET_KEY`].
    Amazon,
    /// Google's XML API, which is S3's but for a few headers; without signatures.
    Google,
}

impl S3Server {
    pub fn start() -> Self {
        Self::speaking(Dialect::Amazon)
    }

    /// With pages of a thousand objects, as at Amazon. They have one here else, so that a run's listing has several.
    pub fn with_long_pages(self) -> Self {
        self.state.lock().unwrap().further = 999;
        self
    }

    /// The same as `gs://` sees it.
    pub fn google() -> Self {
        Self::speaking(Dialect::Google)
    }

    fn speaking(dialect: Dialect) -> Self {
        let state = Arc::default();
        let mut builder = S3ServiceBuilder::new(S3Backend::new(Arc::clone(&state)));
        if dialect == Dialect::Amazon {
            builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        }
        let service = builder.build();
        let requests = Arc::default();
        let counted = Arc::clone(&requests);
        let (address, runtime) = on_loopback(|listener| serve(listener, service, dialect, counted));
        Self {
            address,
            state,
            requests,
            _runtime: runtime,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts an object as somebody else would.
    pub fn put(&self, key: &str, content: impl Into<Bytes>) {
        let mut state = self.state.lock().unwrap();
        state
            .publish(key.to_owned(), content.into(), None, None)
            .unwrap();
    }

    /// Deletes an object as somebody else would.
    pub fn delete(&self, key: &str) {
        self.state.lock().unwrap().delete(key);
    }

    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        let state = self.state.lock().unwrap();
        let objects = state.objects.iter();
        objects
            .map(|(key, object)| (key.clone(), object.content.clone()))
            .collect()
    }

    /// Keys of the multipart uploads that are neither completed nor aborted.
    pub fn open_uploads(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state
            .uploads
            .values()
            .map(|upload| upload.key.clone())
            .collect()
    }

    /// Pieces that were stored of multipart uploads, whatever became of these.
    pub fn pieces(&self) -> usize {
        self.state.lock().unwrap().pieces
    }

    /// Pieces that are kept, and paid for, of uploads that are still open.
    pub fn pieces_left(&self) -> usize {
        let state = self.state.lock().unwrap();
        state
            .uploads
            .values()
            .map(|upload| upload.pieces.len())
            .sum()
    }

    /// Requests that came until now.
    pub fn requests(&self) -> Requests {
        self.requests.lock().unwrap().clone()
    }

    /// Every change that readers could see, in order.
    pub fn history(&self) -> Vec<Change> {
        self.changes_since(0)
    }

    /// The changes after so many.
    pub fn changes_since(&self, seen: usize) -> Vec<Change> {
        self.state.lock().unwrap().history[seen..].to_vec()
    }
}

/// Serves at a port of loopback until the runtime is dropped.
pub fn on_loopback<F>(serve: impl FnOnce(TcpListener) -> F) -> (SocketAddr, Runtime)
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn_on(serve(listener), runtime.handle());
    // It ends with the runtime.
    tasks.detach_all();
    (address, runtime)
}

/// What a request counts as; nothing for the further pages of a listing.
fn kind<B>(request: &hyper::Request<B>) -> Option<&str> {
    let query = request.uri().query().unwrap_or_default();
    if query.contains("continuation-token") {
        return None;
    }
    let is_listing = query.contains("list-type");
    Some(if is_listing {
        "LIST"
    } else {
        request.method().as_str()
    })
}

async fn serve(
    listener: TcpListener,
    service: S3Service,
    dialect: Dialect,
    requests: Arc<Mutex<Requests>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let (service, requests) = (service.clone(), Arc::clone(&requests));
        let service = service_fn(move |mut request| {
            if let Some(kind) = kind(&request) {
                *requests.lock().unwrap().entry(kind.to_owned()).or_default() += 1;
            }
            if dialect == Dialect::Google {
                translate(&mut request);
            }
            let (service, request) = (service.clone(), request.map(Body::from));
            async move { Ok::<_, Infallible>(service.call(request).await.unwrap()) }
        });
        connections.spawn(async move {
            // A client may leave at any time.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// Makes a request for Google's XML API one for S3.
fn translate(request: &mut hyper::Request<hyper::body::Incoming>) {
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    let condition = HeaderName::from_static("x-goog-if-generation-match");
    if headers.remove(condition).is_some_and(|value| value == "0") {
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
}
