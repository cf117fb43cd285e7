//! [`Mlflow`]: a tracking server of MLflow, by its REST interface.
//!
//! Settings are flattened and batches cut as in NeMo Gym.

use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Body, Client, Method, RequestBuilder};
use serde_json::{Map, Value, json};
use tokio_util::io::ReaderStream;
use url::Url;

use super::end::RolloutTable;
use super::mlflow_names::name;
use super::{LAST, Opened, TrackError, Tracker};
use crate::config::{Secret, ServerUrl};
use crate::http::{HttpClients, HttpSettings, Secrets};
use crate::progress::Point;
use crate::python;

/// The longest value of a parameter or a tag, in characters.
const MAX_VALUE: usize = 6000;
/// The most metrics of a request.
const MAX_METRICS: usize = 1000;
/// The most parameters, or tags, of a request.
const MAX_ITEMS: usize = 100;
/// The largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;

/// Bytes of a file that are read at a time.
const PIECE: usize = 64 * 1024;

const TABLE: &str = "rollouts.json";
const CONFIG: &str = "global_config.json";

pub(super) struct Mlflow {
    url: String,
    /// The token, if there is one.
    headers: HeaderMap,
    client: Client,
    experiment: String,
    name: String,
    run: Run,
}

/// The open run.
#[derive(Default)]
struct Run {
    id: String,
    /// Where the server keeps its files.
    artifacts: String,
}

impl Mlflow {
    pub(super) fn new(
        url: &ServerUrl,
        token: Option<Secret>,
        experiment: String,
        name: String,
    ) -> Result<Self, TrackError> {
        let clients = HttpClients::new(&HttpSettings {
            // A connection that was idle may be closed by now.
            connections: 0,
            connect_timeout: LAST,
            first_byte_timeout: None,
            // Each request has a deadline of its own.
            read_timeout: Duration::from_secs(24 * 3600),
            max_body: MAX_ANSWER as u64,
            body_memory: MAX_ANSWER as u64,
        })?;
        let parsed = Url::parse(url.as_str());
        let parsed = parsed.map_err(|_| TrackError::Answer {
            url: url.to_string(),
            path: String::new(),
        })?;
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.reveal().trim()));
            let mut value = value.map_err(|_| TrackError::Token)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self {
            url: url.to_string(),
            client: clients.for_url(&parsed).clone(),
            headers,
            experiment,
            name,
            run: Run::default(),
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        request.headers(self.headers.clone())
    }

    /// Sends a request and reads the answer.
    async fn send(&self, request: RequestBuilder, path: &str) -> Result<Value, TrackError> {
        let lost = |source: reqwest::Error| TrackError::NoAnswer {
            url: self.url.clone(),
            source: source.without_url(),
        };
        let mut response = request.send().await.map_err(lost)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(lost)? {
            body.extend_from_slice(&piece);
            if body.len() > MAX_ANSWER {
                break;
            }
        }
        let answer: Option<Value> = serde_json::from_slice(&body).ok();
        if status.is_success() {
            // To a file, the answer is empty.
            return Ok(answer.unwrap_or_default());
        }
        let message = answer
            .as_ref()
            .and_then(|answer| answer["message"].as_str());
        let reason = message.map_or(&*body, str::as_bytes);
        Err(TrackError::Refused {
            url: self.url.clone(),
            path: path.to_owned(),
            status: status.as_u16(),
            reason: Secrets::of(&self.headers).shown(reason),
        })
    }

    fn unreadable(&self, path: &str) -> TrackError {
        TrackError::Answer {
            url: self.url.clone(),
            path: path.to_owned(),
        }
    }

    /// Calls a method of the interface.
    async fn post(&self, method: &str, body: &Value) -> Result<Value, TrackError> {
        let path = format!("/api/2.0/mlflow/{method}");
        let request = self.request(Method::POST, &path).timeout(LAST);
        let request = request.header(CONTENT_TYPE, "application/json");
        self.send(request.body(body.to_string()), &path).await
    }

    async fn experiment_by_name(&self) -> Result<Option<String>, TrackError> {
        let path = "/api/2.0/mlflow/experiments/get-by-name";
        let request = self.request(Method::GET, path).timeout(LAST);
        let request = request.query(&[("experiment_name", &self.experiment)]);
        match self.send(request, path).await {
            Ok(found) => {
                let id = found["experiment"]["experiment_id"].as_str();
                id.map(|id| Some(id.to_owned()))
                    .ok_or_else(|| self.unreadable(path))
            }
            Err(TrackError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the id of the experiment, which is created if there is none.
    async fn experiment_id(&self) -> Result<String, TrackError> {
        if let Some(id) = self.experiment_by_name().await? {
            return Ok(id);
        }
        let created = self
            .post("experiments/create", &json!({"name": self.experiment}))
            .await;
        if let Some(id) = created
            .as_ref()
            .ok()
            .and_then(|created| created["experiment_id"].as_str())
        {
            return Ok(id.to_owned());
        }
        // Another process may have been quicker.
        match self.experiment_by_name().await? {
            Some(id) => Ok(id),
            None => Err(created
                .err()
                .unwrap_or_else(|| self.unreadable("experiments/create"))),
        }
    }

    /// Logs what does not fit into one request.
    async fn log(&self, kind: &str, items: Vec<Value>, most: usize) -> Result<(), TrackError> {
        for batch in items.chunks(most) {
            let body = json!({"run_id": self.run.id, kind: batch});
            self.post("runs/log-batch", &body).await?;
        }
        Ok(())
    }

    /// Puts a file among those of the run.
    async fn put(&self, name: &str, bytes: u64, body: Body) -> Result<(), TrackError> {
        let place = self.run.artifacts.strip_prefix("mlflow-artifacts:");
        let place = place.ok_or_else(|| TrackError::Artifacts {
            place: self.run.artifacts.clone(),
        })?;
        // After the scheme there may be the name of a server, which is this one.
        let place = match place.strip_prefix("//") {
            Some(place) => place.split_once('/').map_or("", |(_, place)| place),
            None => place.trim_start_matches('/'),
        };
        let path = format!("/api/2.0/mlflow-artifacts/artifacts/{place}/{name}");
        let request = self.request(Method::PUT, &path).body(body);
        let request = request.header(CONTENT_LENGTH, bytes);
        self.send(request, &path).await.map(drop)
    }
}

#[async_trait]
impl Tracker for Mlflow {
    fn name(&self) -> &'static str {
        "MLflow"
    }

    fn file(&self) -> &'static str {
        "tracker_mlflow.json"
    }

    fn place(&self) -> String {
        format!("{} {}", self.url, self.experiment)
    }

    async fn open(&mut self, id: Option<&str>, _: &str) -> Result<Opened, TrackError> {
        let now = Utc::now().timestamp_millis();
        let (method, body) = match id {
            Some(id) => ("runs/update", json!({"run_id": id, "status": "RUNNING"})),
            None => {
                let experiment = self.experiment_id().await?;
                let body =
                    json!({"experiment_id": experiment, "run_name": self.name, "start_time": now});
                ("runs/create", body)
            }
        };
        let answer = self.post(method, &body).await?;
        let info = answer
            .get("run")
            .map_or(&answer["run_info"], |run| &run["info"]);
        let text = |key: &str| info[key].as_str().map(str::to_owned);
        let (Some(id), Some(artifacts)) = (text("run_id"), text("artifact_uri")) else {
            return Err(self.unreadable(method));
        };
        let experiment = text("experiment_id").unwrap_or_default();
        self.run = Run {
            id: id.clone(),
            artifacts,
        };
        let url = format!("{}/#/experiments/{experiment}/runs/{id}", self.url);
        Ok(Opened {
            id,
            shown: Some(url),
        })
    }

    async fn config(&mut self, config: &Value) -> Result<(), TrackError> {
        let mut params = Vec::new();
        flatten(config, String::new(), &mut params);
        self.log("params", params, MAX_ITEMS).await?;
        // The parameters are cut; the file is whole, where the server takes files.
        let text = format!("{config:#}");
        match self.put(CONFIG, text.len() as u64, text.into()).await {
            Err(TrackError::Artifacts { .. }) => Ok(()),
            done => done,
        }
    }

    async fn points(&mut self, points: &[Point]) -> Result<(), TrackError> {
        let metrics = points.iter().flat_map(|point| {
            let each = point.metrics.iter();
            each.filter_map(|(key, value)| metric(key, *value, point.at, point.step))
        });
        self.log("metrics", metrics.collect(), MAX_METRICS).await
    }

    async fn metrics(&mut self, metrics: &Map<String, Value>) -> Result<(), TrackError> {
        let now = Utc::now().timestamp_millis();
        let (mut numbers, mut tags) = (Vec::new(), Vec::new());
        for (key, value) in metrics {
            match value {
                Value::Bool(truth) => numbers.extend(metric(key, f64::from(*truth), now, 0)),
                Value::Number(number) => {
                    numbers.extend(
                        number
                            .as_f64()
                            .and_then(|number| metric(key, number, now, 0)),
                    );
                }
                Value::String(text) => tags.extend(item(key, text)),
                _ => {}
            }
        }
        self.log("metrics", numbers, MAX_METRICS).await?;
        self.log("tags", tags, MAX_ITEMS).await
    }

    async fn rollouts(&mut self, table: &RolloutTable) -> Result<(), TrackError> {
        let file = tokio::fs::File::open(&table.path)
            .await
            .map_err(TrackError::Table)?;
        let pieces = ReaderStream::with_capacity(file, PIECE);
        self.put(TABLE, table.bytes, Body::wrap_stream(pieces))
            .await?;
        // By this tag, the server's pages show the file as a table.
        let tables = format!(r#"[{{"path": "{TABLE}", "type": "table"}}]"#);
        let tag = json!({"key": "mlflow.loggedArtifacts", "value": tables});
        self.log("tags", vec![tag], MAX_ITEMS).await
    }

    async fn close(&mut self, ended_well: bool) -> Result<(), TrackError> {
        let status = if ended_well { "FINISHED" } else { "KILLED" };
        let now = Utc::now().timestamp_millis();
        let body = json!({"run_id": self.run.id, "status": status, "end_time": now});
        self.post("runs/update", &body).await.map(drop)
    }
}

fn metric(key: &str, value: f64, at: i64, step: u64) -> Option<Value> {
    let key = name(key)?;
    Some(json!({"key": key, "value": value, "timestamp": at, "step": step}))
}

/// A parameter or a tag.
fn item(key: &str, value: &str) -> Option<Value> {
    let value: String = value.chars().take(MAX_VALUE).collect();
    Some(json!({"key": name(key)?, "value": value}))
}

/// Lists the values of settings under dotted keys.
fn flatten(value: &Value, path: String, params: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                flatten(value, format!("{path}{dot}{key}"), params);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                flatten(value, format!("{path}[{index}]"), params);
            }
        }
        value => {
            let text = python::Value::parse(&value.to_string());
            params.extend(item(&path, &text.map_or(String::new(), |text| text.text())));
        }
    }
}
