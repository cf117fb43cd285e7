//! What is logged of a run beside its progress: settings, metrics, and the rollouts as a table.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::{LAST, TrackError};
use crate::config::Secret;
use crate::export::RolloutRows;
use crate::gym::AGGREGATE_METRICS;
use crate::import::Zeros;
use crate::json::{Object, write_quoted};
use crate::measure::zeros;
use crate::session::{self, RunTables};
use crate::status;
use crate::store::{RunRecord, RunStore, Scratch};

/// The least rate at which a tracker takes rollouts, in bytes per second; [`LAST`] comes on top.
const UPLOAD_RATE: u64 = 1 << 20;

/// Bytes of memory for the query that counts zeros.
const MEMORY: usize = 32 * 1024 * 1024;

/// Returns the settings of a run that are set, with every text masked whose key NeMo Gym masks.
pub(super) fn config(record: &RunRecord) -> Value {
    let mut config = record.settings.clone();
    mask(&mut config);
    config
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            for (key, value) in fields {
                let is_secret = ["token", "key", "header"]
                    .iter()
                    .any(|word| key.contains(word));
                match value {
                    Value::String(text) if is_secret => Secret::MASK.clone_into(text),
                    Value::Array(items) if is_secret => items.fill(json!(Secret::MASK)),
                    value => mask(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

/// What is read of an entry of `aggregate_metrics.json`.
#[derive(Deserialize)]
struct Entry {
    agent_ref: AgentRef,
    agent_metrics: Map<String, Value>,
    key_metrics: Map<String, Value>,
}

#[derive(Deserialize)]
struct AgentRef {
    name: String,
}

/// Returns the metrics of all agents, and the coverage.
pub(super) async fn metrics(
    run: &RunStore,
    record: &RunRecord,
) -> Result<[Map<String, Value>; 2], TrackError> {
    let mut aggregate = Map::new();
    for entry in entries(run).await? {
        let name = entry.agent_ref.name;
        let is_single = |value: &Value| !value.is_array() && !value.is_object();
        let mut add = |prefix: String, metrics: Map<String, Value>| {
            let single = metrics.into_iter().filter(|(_, value)| is_single(value));
            aggregate.extend(single.map(|(key, value)| (format!("{prefix}/{key}"), value)));
        };
        add(name.clone(), entry.agent_metrics);
        add(format!("key_metrics/{name}"), entry.key_metrics);
    }
    Ok([aggregate, coverage(run, record).await?])
}

/// Reads `aggregate_metrics.json` without its tasks, which are most of it.
async fn entries(run: &RunStore) -> Result<Vec<Entry>, TrackError> {
    let Some(pieces) = run.stream(AGGREGATE_METRICS).await? else {
        return Ok(Vec::new());
    };
    let text = StreamReader::new(pieces.map_err(io::Error::other));
    let text = io::BufReader::new(SyncIoBridge::new(Box::pin(text)));
    let read = tokio::task::spawn_blocking(move || serde_json::from_reader(text)).await;
    let read = read.map_err(|error| TrackError::Table(io::Error::other(error)))?;
    read.map_err(TrackError::Metrics)
}

async fn coverage(run: &RunStore, record: &RunRecord) -> Result<Map<String, Value>, TrackError> {
    let settings = status::settings(run, record)?;
    let all = Zeros {
        failure_classes: settings.count_failure_classes_as_zero,
        missing: false,
    };
    let failed = num_zeros(run, record, &all).await?;
    let missing = Zeros {
        failure_classes: Vec::new(),
        missing: settings.count_missing_rollouts_as_zero,
    };
    let imputed = num_zeros(run, record, &missing).await?;
    let expected = record.rollouts.planned;
    let scored = record.rollouts.done + failed + imputed;
    let mut coverage = Map::new();
    coverage.insert("coverage/expected".into(), expected.into());
    coverage.insert("coverage/scored".into(), scored.into());
    let left = expected.saturating_sub(scored);
    coverage.insert("coverage/missing".into(), left.into());
    if missing.missing {
        coverage.insert("coverage/imputed".into(), imputed.into());
    }
    Ok(coverage)
}

async fn num_zeros(run: &RunStore, record: &RunRecord, zeros: &Zeros) -> Result<u64, TrackError> {
    if !zeros.any() {
        return Ok(0);
    }
    let failed = |error| TrackError::Run(crate::error::Error::failed("", error));
    let session = session::measuring(MEMORY).map_err(failed)?;
    let tables = RunTables::look(run).await.map_err(failed)?;
    tables.register(&session).await.map_err(failed)?;
    let found = zeros::add(&session, zeros, record.rules()).await?;
    Ok(found.num_zeros as u64)
}

/// A file with the rollouts: `{"columns":["Rollout"],"data":[["ROLLOUT"],...]}`, where each ROLLOUT is JSON as a text. It
/// is removed when this is dropped.
pub(super) struct RolloutTable {
    pub(super) path: PathBuf,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    _folder: Scratch,
}

impl RolloutTable {
    /// The longest time that sending it may take.
    pub(super) fn time_to_send(&self) -> Duration {
        LAST + Duration::from_secs(self.bytes / UPLOAD_RATE)
    }
}

/// Writes the rollouts to a file, one at a time.
pub(super) async fn rollouts(
    run: &RunStore,
    record: &RunRecord,
) -> Result<RolloutTable, TrackError> {
    let folder = Scratch::new().map_err(TrackError::Table)?;
    let path = folder.path().join("rollouts.table.json");
    let mut rows = RolloutRows::with_failures(run, record)
        .await
        .map_err(crate::error::Error::from)?;
    let mut out = BufWriter::new(File::create(&path).map_err(TrackError::Table)?);
    let mut put = |text: &str| out.write_all(text.as_bytes()).map_err(TrackError::Table);
    put("{\"columns\":[\"Rollout\"],\"data\":[")?;
    let (mut count, mut text) = (0, String::new());
    while let Some(row) = rows.next().await.map_err(crate::error::Error::from)? {
        text.clear();
        text.push_str(if count == 0 { "[" } else { ",[" });
        write_quoted(&without_evidence(&row).unwrap_or(row), &mut text);
        text.push(']');
        put(&text)?;
        count += 1;
    }
    put("]}")?;
    out.flush().map_err(TrackError::Table)?;
    let bytes = size(&path)?;
    Ok(RolloutTable {
        path,
        rows: count,
        bytes,
        _folder: folder,
    })
}

fn size(path: &Path) -> Result<u64, TrackError> {
    Ok(path.metadata().map_err(TrackError::Table)?.len())
}

/// Leaves out the trajectory of a rollout, and the bodies of its captured calls; none if it has neither.
fn without_evidence(row: &str) -> Option<String> {
    const CAPTURE: &str = "ng_model_call_capture";
    let mut object = Object::parse(row).ok()?;
    if !object.contains("ng_trajectory") && !object.contains(CAPTURE) {
        return None;
    }
    object.remove("ng_trajectory");
    let capture = object.get(CAPTURE).map(serde_json::from_str::<Value>);
    object.remove(CAPTURE);
    if let Some(Ok(Value::Object(mut capture))) = capture {
        if let Some(Value::Array(calls)) = capture.get_mut("calls") {
            calls.retain(Value::is_object);
            for call in calls.iter_mut().filter_map(Value::as_object_mut) {
                for body in ["request", "response", "request_raw", "response_raw"] {
                    call.shift_remove(body);
                }
            }
        } else {
            capture.shift_remove("calls");
        }
        object.set(CAPTURE, Value::Object(capture).to_string());
    }
    let mut text = String::new();
    object.write(&mut text);
    Some(text)
}
