//! A server with the methods of MLflow's and of W&B's that are used, which can fail.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{park, spawn};

use serde_json::{Value, json};

use super::Series;

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mood {
    Well,
    Answers(u16),
    Hangs,
}

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) path: String,
    host: Option<String>,
    pub(super) authorization: Option<String>,
    pub(super) body: String,
}

impl Asked {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// The methods of MLflow's server that are used, and those that `wandb sync` uses.
pub(super) struct Server {
    pub(super) url: String,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(super) fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (mood, asked) = (Arc::new(Mutex::new(mood)), Arc::default());
        let (its_mood, log) = (Arc::clone(&mood), Arc::clone(&asked));
        spawn(move || {
            for stream in listener.incoming() {
                let (mood, log) = (Arc::clone(&its_mood), Arc::clone(&log));
                spawn(move || serve(stream.unwrap(), &mood, &log));
            }
        });
        Self { url, mood, asked }
    }

    pub(super) fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(super) fn asked(&self, end: &str) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        let all = asked.iter().filter(|asked| asked.path.ends_with(end));
        all.cloned().collect()
    }

    /// The queries to W&B's server of this name.
    pub(super) fn queries(&self, name: &str) -> Vec<Value> {
        let asked = self.asked("/graphql");
        let queries = asked.iter().map(Asked::json);
        queries
            .filter(|query| query["operationName"] == name)
            .collect()
    }

    /// The lines of the history of W&B's run, each with its number.
    pub(super) fn history(&self) -> Vec<(u64, Value)> {
        history(&self.asked.lock().unwrap())
    }

    pub(super) fn series(&self) -> Series {
        let mut series = Series::new();
        for asked in self.asked("runs/log-batch") {
            let body = asked.json();
            for metric in body["metrics"].as_array().into_iter().flatten() {
                let point = (
                    metric["step"].as_u64().unwrap(),
                    metric["value"].as_f64().unwrap(),
                );
                let key = metric["key"].as_str().unwrap().to_owned();
                series.entry(key).or_default().push(point);
            }
        }
        series
    }
}

/// The lines of a run's history that `wandb sync` sent, each with its number.
fn history(asked: &[Asked]) -> Vec<(u64, Value)> {
    let mut lines = Vec::new();
    let sent = |asked: &&Asked| asked.path.ends_with("file_stream");
    for asked in asked.iter().filter(sent) {
        let history = &asked.json()["files"]["wandb-history.jsonl"];
        let content = history["content"].as_array().into_iter().flatten();
        let content = content.map(|line| serde_json::from_str(line.as_str().unwrap()).unwrap());
        lines.extend((history["offset"].as_u64().unwrap_or(0)..).zip(content));
    }
    lines
}

/// Returns none when the other side has closed the connection.
fn serve(stream: TcpStream, mood: &Mutex<Mood>, log: &Mutex<Vec<Asked>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.split_once(": ") else {
                break;
            };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length");
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).ok()?;
        let asked = Asked {
            path: path.split('?').next()?.to_owned(),
            host: headers.remove("host"),
            authorization: headers.remove("authorization"),
            body: String::from_utf8(body).unwrap(),
        };
        // The lock must not be held by a connection that hangs.
        let mood = *mood.lock().unwrap();
        let (status, answer) = match mood {
            Mood::Hangs => loop {
                park();
            },
            // What a server repeats must not be shown.
            Mood::Answers(status) => (status, json!({"message": format!("no: {asked:?}")})),
            Mood::Well if asked.path == "/graphql" => {
                let data = wandb(&asked, &log.lock().unwrap());
                (200, json!({"data": data}))
            }
            Mood::Well => answer(&asked.path),
        };
        let is_file = status == 200 && asked.path.contains("mlflow-artifacts");
        log.lock().unwrap().push(asked);
        // As from the real one, the answer to a file is empty.
        let text = if is_file {
            String::new()
        } else {
            answer.to_string()
        };
        let length = text.len();
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + &text).as_bytes()).ok()?;
    }
}

fn answer(path: &str) -> (u16, Value) {
    let info = json!({"run_id": "r1", "experiment_id": "1", "artifact_uri": "mlflow-artifacts:/1/r1/artifacts"});
    match path.rsplit("mlflow/").next().unwrap() {
        "experiments/get-by-name" => (404, json!({"error_code": "RESOURCE_DOES_NOT_EXIST"})),
        "experiments/create" => (200, json!({"experiment_id": "1"})),
        "runs/create" => (200, json!({"run": {"info": info}})),
        "runs/update" => (200, json!({"run_info": info})),
        _ => (200, json!({})),
    }
}

/// What W&B's server answers to a query, after others.
fn wandb(asked: &Asked, earlier: &[Asked]) -> Value {
    let query = asked.json();
    let host = asked.host.as_ref().unwrap();
    let project = json!({"id": "P", "name": "p", "entity": {"id": "E", "name": "e"}});
    let name = &query["variables"]["name"];
    match query["operationName"].as_str().unwrap() {
        "RunResumeStatus" => {
            let run = history(earlier).pop().map(|(number, last)| {
                json!({
                    "id": "R", "name": name, "displayName": "r", "tags": [],
                    "config": "{}", "wandbConfig": r#"{"t": {}}"#, "summaryMetrics": "{}",
                    "historyLineCount": number + 1, "historyTail": json!([last.to_string()]).to_string(),
                    "eventsLineCount": 0, "eventsTail": "[]", "logLineCount": 0,
                })
            });
            json!({"model": {"id": "P", "name": "p", "entity": {"id": "E", "name": "e"}, "bucket": run}})
        }
        "UpsertBucket" => {
            let run = json!({"id": "R", "name": name, "displayName": "r", "project": project, "historyLineCount": 0});
            json!({"upsertBucket": {"bucket": run, "inserted": true}})
        }
        "CreateRunFiles" => {
            let files = query["variables"]["files"].as_array().unwrap().iter();
            let files = files.map(|file| {
                let file = file.as_str().unwrap();
                json!({"name": file, "uploadUrl": format!("http://{host}/{file}")})
            });
            json!({"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files.collect::<Vec<_>>()}})
        }
        "CreateArtifact" => {
            let artifact = json!({"id": "A", "state": "PENDING", "artifactSequence": {"id": "S"}});
            json!({"createArtifact": {"artifact": artifact}})
        }
        "CreateArtifactManifest" => {
            let url = format!("http://{host}/manifest");
            let file = json!({"id": "F", "uploadUrl": url, "uploadHeaders": []});
            json!({"createArtifactManifest": {"artifactManifest": {"id": "M", "file": file}}})
        }
        "CreateArtifactFiles" => {
            let files = query["variables"]["input"]["artifactFiles"].as_array();
            let files = files.unwrap().iter().map(|file| {
                let url = format!("http://{host}/{}", file["name"].as_str().unwrap());
                json!({"node": {"storagePath": "S", "uploadUrl": url, "uploadHeaders": [], "artifact": {"id": "A"}}})
            });
            json!({"createArtifactFiles": {"files": {"edges": files.collect::<Vec<_>>()}}})
        }
        "CommitArtifact" => json!({"commitArtifact": {"artifact": {"id": "A", "digest": "D"}}}),
        _ => json!({}),
    }
}
