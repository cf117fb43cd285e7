//! The tasks of a sweep: [`Inputs`] reads them from files, or takes those that a run already has.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::fs::File;
use tokio::runtime::Handle;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::identity;
use crate::config::{AgentSettings, Routing, Settings};
use crate::error::Error;
use crate::gym::GymRules;
use crate::python::glob;
use crate::read::{
    self, AgentRows, Batches, OpenSource, Overrides, Prompt, ReadOptions, ReadSummary,
    ReadTasksError, SourceError, batches, read_tasks,
};
use crate::schema::{self, TASKS};
use crate::servers::Servers;
use crate::session::{self, Rows, RunTables, row};
use crate::status;
use crate::store::{
    Address, InputRecord, PartWriter, RunRecord, RunStore, Scratch, StoreError, part_name,
};

/// Name of the one part that a sweep's tasks become.
const PART: &str = "tasks";

/// The name of an input that stands for the standard input.
const STDIN: &str = "-";

const SUMMARY: &str = include_str!("../../queries/expand/summary.sql");

/// The input of a sweep, read and checked.
#[derive(Debug)]
pub(super) struct Inputs {
    pub(super) spool: Spool,
    pub(super) records: Vec<InputRecord>,
    pub(super) summary: ReadSummary,
    /// Text of the prompt template, which is part of the sweep's identity.
    pub(super) prompt: Option<String>,
    /// The identity of the run, if the tasks are the run's own.
    pub(super) identity: Option<Value>,
}

impl Inputs {
    /// Reads the inputs that `settings` names. An error leaves nothing behind.
    pub(super) async fn read(
        settings: &Settings,
        routing: Option<Routing>,
        servers: Option<Arc<Servers>>,
    ) -> Result<Self, Error> {
        let prompt = settings.prompt_config.as_deref().map(Prompt::text);
        let prompt = prompt.transpose()?;
        let options = ReadOptions {
            agent_name: settings.agent.clone(),
            routing,
            servers,
            limit: settings.limit,
            repeats: settings.num_repeats.clone(),
            seed: settings.num_repeats_add_seed.then_some(settings.seed_field),
            overrides: Overrides::new(&settings.responses_create_params)?,
            prompt: prompt.as_deref().map(Prompt::from_yaml).transpose()?,
            plain_questions: settings.agents.values().any(AgentSettings::runs_here),
        };
        let names = expand(settings.required_input()?)?;
        let runtime = Handle::current();
        let (output, input) = batches();
        let reading = tokio::task::spawn_blocking(move || {
            let sources = names.iter().map(|name| open(name, &runtime));
            read_tasks(sources, options, &output)
        });
        let (spool, read) = tokio::join!(Spool::write(input), reading);
        let read = read
            .map_err(|error| Error::failed("a defect of rollstream: reading the input", error))?;
        let (summary, records) = match read {
            Ok(read) => read,
            // The reader ends so if the spool failed first.
            Err(ReadTasksError::Abandoned) => {
                spool?;
                return Err(Error::defect("reading the input was abandoned"));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            spool: spool?,
            records,
            summary,
            prompt,
            identity: None,
        })
    }
}

/// The inputs that `patterns` name, in order: each pattern becomes the files that match it now.
fn expand(patterns: &[String]) -> Result<Vec<String>, SourceError> {
    let here = PathBuf::from(".");
    let mut names = Vec::new();
    for pattern in patterns {
        let is_pattern = pattern.contains(['*', '?', '[']);
        if is_pattern && pattern.contains("://") {
            let source = io::Error::other("patterns are for local files; name each object");
            return Err(SourceError::Unreadable {
                path: pattern.clone(),
                source,
            });
        }
        if !is_pattern || Path::new(pattern).exists() {
            names.push(pattern.clone());
            continue;
        }
        let matches = glob(pattern, &here);
        if matches.is_empty() {
            return Err(SourceError::NotFound(pattern.clone()));
        }
        names.extend(matches);
    }
    Ok(names)
}

/// Opens an input, wherever it is. Blocks.
fn open(name: &str, runtime: &Handle) -> Result<OpenSource, SourceError> {
    let open = |reader| OpenSource {
        name: name.to_owned(),
        reader,
    };
    if name == STDIN {
        return Ok(OpenSource {
            name: "stdin".to_owned(),
            reader: Box::new(io::stdin()),
        });
    }
    if !name.contains("://") {
        return read::open(Path::new(name)).map(open);
    }
    let unreadable = |source: io::Error| SourceError::Unreadable {
        path: name.to_owned(),
        source,
    };
    let refused = |error| unreadable(io::Error::other(error));
    let object = match Address::parse(name).map_err(refused)? {
        Address::Local(path) => return read::open(&path).map(open),
        Address::Remote(object) => object,
    };
    let store = object.store().map_err(refused)?;
    let found = runtime.block_on(async { store.get(&ObjectPath::default()).await });
    let found = found.map_err(|error| match error {
        object_store::Error::NotFound { .. } => SourceError::NotFound(name.to_owned()),
        other => unreadable(other.into()),
    })?;
    let bytes = StreamReader::new(found.into_stream().map_err(io::Error::from));
    let reader = SyncIoBridge::new_with_handle(Box::pin(bytes), runtime.clone());
    read::decoded(name, reader).map(open).map_err(unreadable)
}

impl Inputs {
    /// Takes the tasks that a run already has, and reads no input. `run.json` says what decides the requests, and
    /// the parts of it that matter later are copied to `settings`.
    ///
    /// # Errors
    /// A setting differs from the run's own, or the run can't be read.
    pub(super) async fn of_run(
        settings: &mut Settings,
        rules: &GymRules,
        run: &RunStore,
        record: &RunRecord,
    ) -> Result<Self, Error> {
        if run.parts(TASKS).await?.is_empty() {
            // The run ended before it had any tasks.
            settings.required_input()?;
        }
        let prompt = settings.prompt_config.as_deref().map(Prompt::text);
        let mut given = identity::given(settings, rules, prompt.transpose()?.as_deref());
        // Imported tasks all name their agents, so `--agent`, for tasks that name none, changes nothing.
        if let (Value::Object(given), None) = (&mut given, record.identity.get("agent")) {
            given.remove("agent");
        }
        identity::check(record, &given, &run.display(""))?;
        settings.num_repeats_add_seed = recorded(record, "num_repeats_add_seed")?;
        settings.seed_field = recorded(record, "seed_field")?;
        settings.interleave_repeats = recorded(record, "interleave_repeats")?;
        settings.environment_routing_mode = recorded(record, "environment_routing_mode")?;
        settings.environment_server_name = recorded(record, "environment_server_name")?;
        // Of the collector that read the tasks, for the record.
        if let Ok(recorded) = status::settings(run, record) {
            settings.input = recorded.input;
            settings.prompt_config = recorded.prompt_config;
        }

        let session = SessionContext::new_with_config(session::config().with_target_partitions(1));
        let tasks = RunTables::tasks(run).await?;
        let tasks = tasks.table(&session, TASKS).await?;
        session.register_table(TASKS, tasks.into_view())?;
        let (summary, num_bytes) = summary(&session).await?;
        Ok(Self {
            spool: Spool::of_run(run, summary.rows, num_bytes),
            records: record.inputs.clone(),
            summary,
            prompt: None,
            identity: Some(record.identity.clone()),
        })
    }
}

/// Returns a setting from the identity of a run; its default for imports, which have none: their tasks are complete.
fn recorded<T: DeserializeOwned + Default>(record: &RunRecord, key: &str) -> Result<T, Error> {
    match record.identity.get(key) {
        None => Ok(T::default()),
        Some(value) => serde_json::from_value(value.clone())
            .map_err(|error| Error::usage(format!("run.json, identity.{key}"), error)),
    }
}

row! {
    struct AgentSummary {
        agent_name: String,
        num_rows: i64,
        num_rollouts: i64,
        num_bytes: i64,
    }
}

async fn summary(session: &SessionContext) -> Result<(ReadSummary, u64), Error> {
    let mut summary = ReadSummary::default();
    let mut bytes = 0;
    let mut agents = Rows::start(session.sql(SUMMARY).await?, AgentSummary::rows).await?;
    while let Some(row) = agents.next().await? {
        let of_agent = AgentRows {
            rows: row.num_rows.unsigned_abs(),
            rollouts: row.num_rollouts.unsigned_abs(),
        };
        summary.rows += of_agent.rows;
        bytes += row.num_bytes.unsigned_abs();
        summary.agents.insert(Arc::from(row.agent_name), of_agent);
    }
    Ok((summary, bytes))
}

/// The `tasks` table in a temporary place, until the whole input is checked: an input error
/// must leave nothing behind where the run would be.
#[derive(Debug)]
pub(super) struct Spool {
    // Removed from the disk when dropped. None where the table is that of a run.
    _directory: Option<Scratch>,
    store: RunStore,
    /// Number of rows: lines of the input.
    pub(super) num_rows: u64,
    /// Bytes of the rows in memory, about.
    pub(super) num_bytes: u64,
}

impl Spool {
    /// Writes `batches` to a new temporary table.
    pub(super) async fn write(mut batches: Batches) -> Result<Self, Error> {
        let failed = |source| StoreError::File {
            action: "create a directory in",
            path: std::env::temp_dir(),
            source,
        };
        let directory = Scratch::new().map_err(failed)?;
        let store = RunStore::local(directory.path().to_owned())?;
        let name = part_name(schema::TASKS, PART);
        let mut writer = PartWriter::new(&store, schema::TASKS, &name, schema::tasks())?;
        let (mut num_rows, mut num_bytes) = (0, 0);
        while let Some(batch) = batches.recv().await {
            num_rows += batch.num_rows() as u64;
            num_bytes += batch.get_array_memory_size() as u64;
            writer.write(&batch).await?;
        }
        writer.finish().await?;
        Ok(Self {
            _directory: Some(directory),
            store,
            num_rows,
            num_bytes,
        })
    }

    /// Returns the tasks of a run where they are, without a copy.
    pub(super) fn of_run(run: &RunStore, num_rows: u64, num_bytes: u64) -> Self {
        Self {
            _directory: None,
            store: run.clone(),
            num_rows,
            num_bytes,
        }
    }

    /// Returns the store of the table: a run that may have nothing but tasks.
    pub(super) fn store(&self) -> &RunStore {
        &self.store
    }

    /// Copies the table to the run.
    pub(super) async fn publish(&self, run: &RunStore) -> Result<(), StoreError> {
        let name = part_name(schema::TASKS, PART);
        let path = self
            .store
            .local_path()
            .unwrap_or(Path::new("/"))
            .join(&name);
        let part = File::open(&path).await;
        let part = part.map_err(|source| StoreError::File {
            action: "read",
            path,
            source,
        })?;
        run.upload(&name, part).await
    }
}
