//! A head server that serves a configuration, and the environment servers in it, which note what they are sent.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::ready;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rollstream::json::{Object, quote};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinSet, yield_now};

use super::scripted_replies::{Reply, ScriptedReplies};

/// Serves until it is dropped.
pub struct ServedConfig {
    url: String,
    yaml: String,
    addresses: BTreeMap<String, String>,
    received: Received,
    _serving: JoinSet<()>,
}

type Received = Arc<Mutex<Vec<String>>>;

impl ServedConfig {
    /// Serves `yaml`, with other ports in it. Every rollout is answered with a reward.
    pub async fn start(yaml: &str) -> Result<Self, String> {
        Self::with_replies(yaml, ScriptedReplies::default()).await
    }

    /// The same; some calls are answered by a script.
    pub async fn with_replies(yaml: &str, replies: ScriptedReplies) -> Result<Self, String> {
        let replies = Arc::new(replies);
        let mut addresses = BTreeMap::new();
        let mut config: Value = serde_yaml_ng::from_str(yaml).map_err(|error| error.to_string())?;
        let received = Received::default();
        let mut serving = JoinSet::new();
        let instances = config
            .as_object_mut()
            .ok_or("the configuration is no mapping")?;
        for (name, instance) in instances {
            let servers = instance["environment_servers"].as_object_mut();
            for server in servers.into_iter().flat_map(|servers| servers.values_mut()) {
                let (own, received) = (name.clone(), Arc::clone(&received));
                let replies = Arc::clone(&replies);
                let answer = move |body: String| {
                    let line = format!("{{\"server\":{},\"body\":{body}}}", quote(&own));
                    received.lock().unwrap().push(line);
                    if asks_for_metrics(&body) {
                        return Reply::none();
                    }
                    let scripted = replies.next(&body);
                    scripted.unwrap_or_else(|| Reply::ok(answer_to(&body)))
                };
                let address = serve(&mut serving, answer).await?;
                addresses.insert(name.clone(), format!("http://{address}"));
                server["host"] = address.ip().to_string().into();
                server["port"] = address.port().into();
            }
        }
        let yaml = serde_yaml_ng::to_string(&config).map_err(|error| error.to_string())?;
        let answer = Value::from(yaml.clone()).to_string();
        let head = serve(&mut serving, move |_| Reply::ok(answer.clone())).await?;
        Ok(Self {
            url: format!("http://{head}"),
            yaml,
            addresses,
            received,
            _serving: serving,
        })
    }

    /// Address of the head server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Address of an environment server.
    pub fn address(&self, server: &str) -> &str {
        self.addresses.get(server).map_or("", String::as_str)
    }

    /// What is served.
    pub fn yaml(&self) -> &str {
        &self.yaml
    }

    /// What the environment servers were sent, in the order in which it came: a JSON object a line.
    pub fn received(&self) -> String {
        let received = self.received.lock().unwrap();
        received.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Whether a body shows an environment server the answers of its rollouts.
pub fn asks_for_metrics(body: &str) -> bool {
    Object::parse(body).is_ok_and(|body| body.contains("verify_responses"))
}

/// A verify response, or the response to an episode.
fn answer_to(body: &str) -> String {
    let body = Object::parse(body).unwrap_or_default();
    let value = |text: Option<&str>| -> Value {
        serde_json::from_str(text.unwrap_or("null")).unwrap_or_default()
    };
    let task = value(body.get("task"));
    match body.get("episode_id") {
        None => json!({"reward": 1.0}).to_string(),
        Some(id) => json!({
            "episode_id": value(Some(id)),
            "task_id": task["task_id"],
            "result": {"reward": 1.0},
            "failure": null,
        })
        .to_string(),
    }
}

async fn serve(
    serving: &mut JoinSet<()>,
    answer: impl Fn(String) -> Reply + Clone + Send + 'static,
) -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer.clone();
                async move {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let reply = answer(String::from_utf8(body.to_vec()).unwrap());
                    if reply.is_disconnect {
                        return Err(io::Error::other("the script ends the connection"));
                    }
                    // Of a stream no one knows the length, so that the header may promise more than comes.
                    let promised = reply.text.len() + if reply.is_cut { 10 } else { 0 };
                    let response = Response::builder()
                        .status(reply.status)
                        .header("content-length", promised);
                    let body = Frame::data(Bytes::from(reply.text));
                    let end = stream::once(async move {
                        // What was written so far is sent first.
                        yield_now().await;
                        let end = io::Error::other("the script ends the body");
                        reply.is_cut.then_some(Err(end))
                    });
                    let body =
                        stream::iter([Ok::<_, io::Error>(body)]).chain(end.filter_map(ready));
                    Ok(response.body(StreamBody::new(Box::pin(body))).unwrap())
                }
            });
            connections
                .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(address)
}
