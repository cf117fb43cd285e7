//! [`ScriptedServer`]: a local server whose answers a test scripts.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{CallLog, RolloutKey};
use crate::http::{HttpClients, HttpSettings};

/// A request that a server received.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The answer of a server.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Answer {
    pub(crate) fn ok(body: impl ToString) -> Self {
        Self::status(200, body)
    }

    pub(crate) fn status(status: u16, body: impl ToString) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.to_string(),
        }
    }

    pub(crate) fn with(mut self, header: &'static str, value: impl ToString) -> Self {
        self.headers.push((header, value.to_string()));
        self
    }
}

/// A local server with scripted answers. Its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
    _serving: JoinSet<()>,
}

impl ScriptedServer {
    /// Starts a server that answers each request with the result of `script`.
    pub(crate) async fn start(
        script: impl FnMut(&Received) -> Answer + Send + 'static,
    ) -> ScriptedServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(script));
        let mut serving = JoinSet::new();
        let log = Arc::clone(&received);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                let service = service_fn(move |request| {
                    let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                    async move {
                        let received = receive(request).await;
                        log.lock().unwrap().push(received.clone());
                        let answer = (script.lock().unwrap())(&received);
                        Ok::<_, Infallible>(respond(answer))
                    }
                });
                connections.spawn(async move {
                    let stream = TokioIo::new(stream);
                    let served = http1::Builder::new().serve_connection(stream, service);
                    // A client may leave whenever it wants.
                    let _ = served.await;
                });
            }
        });
        Self {
            url,
            received,
            _serving: serving,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns all requests so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn receive(request: Request<Incoming>) -> Received {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Received {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
        // A body can be empty.
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

fn respond(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(answer.body.into())).unwrap()
}

/// Returns clients with generous time limits.
pub(crate) fn http() -> HttpClients {
    let long = Duration::from_secs(60);
    HttpClients::new(&HttpSettings {
        connections: 4,
        connect_timeout: long,
        first_byte_timeout: None,
        read_timeout: long,
        max_body: 1 << 20,
        body_memory: 1 << 20,
    })
    .unwrap()
}

/// Returns the call log of rollout `rollout_index` of task 3.
pub(crate) fn log(rollout_index: i64) -> CallLog {
    let key = RolloutKey {
        task_index: 3,
        rollout_index,
        attempt: 0,
    };
    CallLog::new(key, None)
}
