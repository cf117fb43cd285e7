//! [`RunRecord`]: `run.json`.

use std::collections::BTreeMap;
use std::error::Error;

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::lock::random_id;
use super::{RunStore, StoreError};
use crate::gym::GymRules;
use crate::schema::SCHEMA_VERSION;

/// Name of the record within a run.
pub const RUN_JSON: &str = "run.json";

/// Key of NeMo Gym's version in the identity of a run. A run without it follows 0.5.
pub const GYM: &str = "gym";

/// `run.json`: what was asked of a sweep, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Version of the layout of the run.
    pub schema_version: u32,
    /// A random id, made with the run: journals and their copies carry it, so that those of another run at the same place
    /// are never taken for this one's.
    #[serde(default)]
    pub run_id: String,
    /// Version of the program that wrote it last.
    pub rollstream_version: String,
    /// State of the run.
    pub state: RunState,
    /// When the sweep was first started, RFC 3339.
    pub created_at: String,
    /// When the last process began to send what was pending, RFC 3339; none before the first resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it was last finished or interrupted, RFC 3339.
    pub finished_at: Option<String>,
    /// The settings that decide what is sent. A resume must have the same.
    pub identity: serde_json::Value,
    /// All settings, resolved. Secrets are not among them: settings only name the variables that hold secrets.
    pub settings: serde_json::Value,
    /// The inputs that the tasks were read from.
    pub inputs: Vec<InputRecord>,
    /// Number of tasks.
    pub num_tasks: u64,
    /// Address of each agent.
    pub agents: BTreeMap<String, String>,
    /// The environment server that gets the rows of an agent, by the agent's name, where there is one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment_servers: BTreeMap<String, EnvironmentServer>,
    /// Rollouts, by what became of them.
    pub rollouts: RunCounts,
}

/// An environment server of NeMo Gym, as it is stamped on its results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentServer {
    /// Its name.
    pub name: String,
    /// The name of its implementation; empty if unknown.
    pub implementation: String,
    /// The agent that its results are attributed to, if their rows name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

impl EnvironmentServer {
    /// Describes a server of which only the name is known.
    pub fn named(name: String) -> Self {
        Self {
            name,
            implementation: String::new(),
            agent: None,
        }
    }
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process is working on it, or was killed.
    Running,
    /// No rollout is pending.
    Finished,
    /// Rollouts are pending: an agent failed or discarded its answer, or the dispatch budget ran out. Resume it.
    Incomplete,
    /// A limit stopped it: a deadline, or too many failures; `rollstream resume` continues it.
    Stopped,
    /// A signal stopped it; `rollstream resume` continues it.
    Interrupted,
    /// An error of its own stopped it; `rollstream resume` continues it.
    Failed,
}

/// Writes the name that `run.json` has.
impl std::fmt::Display for RunState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.serialize(formatter)
    }
}

/// An input file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    /// Its path, as given.
    pub path: String,
    /// Digest of the bytes that were read, after decompression.
    pub digest: String,
    /// Number of these bytes.
    pub num_bytes: u64,
}

/// Rollouts of a run: `planned = done + failed + pending`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
    /// All rollouts that the sweep asks for.
    pub planned: u64,
    /// Rollouts whose answer is stored.
    pub done: u64,
    /// Retries are exhausted, or the agent said never again.
    pub failed: u64,
    /// Not tried yet, or to be tried again.
    pub pending: u64,
}

impl RunRecord {
    /// Makes an id for a new run.
    pub fn new_id() -> String {
        random_id(Utc::now())
    }

    /// Whether the run was imported from another collector's files, and has no input of its own.
    pub fn is_imported(&self) -> bool {
        self.identity
            .get("input")
            .is_none_or(serde_json::Value::is_null)
    }

    /// Returns the place, identified by the record of the run there now; unchanged if there is no record that can be
    /// read.
    pub async fn identify(run: &RunStore) -> Result<RunStore, StoreError> {
        if run.is_identified() {
            return Ok(run.clone());
        }
        match Self::load(run).await {
            Ok(Some(record)) => {
                let rules = run.rules().unwrap_or_else(|| record.rules());
                Ok(run.identified(&record.run_id).following(rules))
            }
            Ok(None) | Err(StoreError::Record { .. }) => Ok(run.clone()),
            Err(error) => Err(error),
        }
    }

    /// The rules of NeMo Gym that the run follows.
    pub fn rules(&self) -> &'static GymRules {
        GymRules::of(self.identity.get(GYM).and_then(serde_json::Value::as_str))
    }

    /// Reads the record at a place; `None` if there is none.
    ///
    /// # Errors
    /// The store failed, or what is there is no record, or has another schema version.
    pub async fn load(run: &RunStore) -> Result<Option<Self>, StoreError> {
        if run.local_path().is_some_and(|path| !path.is_dir()) {
            return Ok(None);
        }
        let Some(bytes) = run.get(RUN_JSON).await? else {
            return Ok(None);
        };
        let refuse = |source: Box<dyn Error + Send + Sync>| StoreError::Record {
            object: run.display(RUN_JSON),
            source,
        };
        let record: Self = serde_json::from_slice(&bytes).map_err(|error| refuse(error.into()))?;
        let version = record.schema_version;
        if version != SCHEMA_VERSION {
            let (than, other) = if version > SCHEMA_VERSION {
                ("newer", "a newer rollstream")
            } else {
                let other = "the rollstream that made it, whose `export` can be imported here";
                ("older", other)
            };
            return Err(StoreError::Version {
                object: run.display(RUN_JSON),
                reason: format!(
                    "its schema version {version} is {than} than {SCHEMA_VERSION}; use {other}"
                ),
            });
        }
        // It becomes the name of a directory.
        if record.run_id.is_empty() || !record.run_id.chars().all(|of| of.is_ascii_alphanumeric()) {
            return Err(refuse(format!("its run_id is '{}'", record.run_id).into()));
        }
        Ok(Some(record))
    }

    /// Writes the record if there is none yet, and returns whether it did.
    pub async fn create(&self, run: &RunStore) -> Result<bool, StoreError> {
        if run.create(RUN_JSON, run.json(RUN_JSON, self)?).await? {
            return Ok(true);
        }
        // The client retries a put whose answer was lost, and then finds its own record.
        Ok(Self::load(run).await?.as_ref() == Some(self))
    }

    /// Writes the record.
    pub async fn save(&self, run: &RunStore) -> Result<(), StoreError> {
        run.put(RUN_JSON, run.json(RUN_JSON, self)?).await
    }
}
