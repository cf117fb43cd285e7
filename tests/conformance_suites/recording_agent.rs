//! An agent that notes what it is sent, and answers what it was told to.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rollstream::json::Object;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Task and rollout, as JSON texts.
pub type Key = (String, String);

/// The answer to what nothing else is told for.
const ANSWER: &str = r#"{"reward":1.0,"response":{}}"#;

/// Serves until it is dropped.
pub struct RecordingAgent {
    url: String,
    notes: Arc<Notes>,
    _serving: JoinSet<()>,
    _runtime: Runtime,
}

struct Notes {
    answers: Mutex<HashMap<Key, VecDeque<String>>>,
    received: Mutex<Vec<String>>,
}

impl RecordingAgent {
    /// Answers each key with these texts, one after the other. A text that is a number is the status of an error.
    pub fn start(answers: HashMap<Key, VecDeque<String>>) -> Result<Self, String> {
        let runtime = Runtime::new().map_err(|error| error.to_string())?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let notes = Arc::new(Notes {
            answers: Mutex::new(answers),
            received: Mutex::default(),
        });
        let mut serving = JoinSet::new();
        let kept = Arc::clone(&notes);
        let serve = async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let notes = Arc::clone(&kept);
                let service = service_fn(move |request| answer(request, Arc::clone(&notes)));
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        };
        serving.spawn_on(serve, runtime.handle());
        Ok(Self {
            url: format!("http://{address}"),
            notes,
            _serving: serving,
            _runtime: runtime,
        })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The bodies that came, in order, one a line.
    pub fn received(&self) -> String {
        let received = self.notes.received.lock().unwrap();
        received.iter().map(|body| format!("{body}\n")).collect()
    }
}

async fn answer(
    request: Request<Incoming>,
    notes: Arc<Notes>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    let row = Object::parse(&body).unwrap();
    let part = |name: &str| row.get(name).unwrap_or_default().to_owned();
    let key = match part("_rowidx") {
        row if row.is_empty() => (part("_ng_task_index"), part("_ng_rollout_index")),
        // A trainer numbers the rows of a prompt.
        row => (String::new(), row),
    };
    let told = notes
        .answers
        .lock()
        .unwrap()
        .get_mut(&key)
        .and_then(VecDeque::pop_front);
    notes.received.lock().unwrap().push(body.clone());
    let text = told.unwrap_or_else(|| ANSWER.to_owned());
    let status = text
        .parse()
        .ok()
        .and_then(|status: u16| StatusCode::from_u16(status).ok());
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status.unwrap_or_default();
    Ok(response)
}
