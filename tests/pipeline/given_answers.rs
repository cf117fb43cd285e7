//! [`GivenAnswers`]: an agent that answers with bytes of the test's own, by task.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub struct GivenAnswers {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    _serving: JoinSet<()>,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub authorization: Option<String>,
    pub row: Value,
}

impl GivenAnswers {
    /// Answers the task of index `n` with the `n`th body.
    pub async fn start(bodies: Vec<Bytes>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (bodies, noted) = (Arc::new(bodies), Arc::clone(&asked));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (bodies, noted) = (Arc::clone(&bodies), Arc::clone(&noted));
                let service = service_fn(move |request| {
                    answer(request, Arc::clone(&bodies), Arc::clone(&noted))
                });
                connections
                    .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            url,
            asked,
            _serving: serving,
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    bodies: Arc<Vec<Bytes>>,
    noted: Arc<Mutex<Vec<Asked>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .map(|value| value.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let row: Value = serde_json::from_slice(&body).unwrap();
    let task = row["_ng_task_index"].as_u64().unwrap() as usize;
    noted.lock().unwrap().push(Asked {
        authorization: header,
        row,
    });
    Ok(Response::new(Full::new(bodies[task].clone())))
}
