//! [`import_collection`]: makes a run of a collection of NeMo Gym.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::error::ArrowError;
use datafusion::common::runtime::SpawnedTask;
use serde_json::json;
use tokio::sync::mpsc::{Receiver, channel};

use super::begin::make_directory;
use super::identity::add_rules;
use super::now;
use super::prepare::refuse_remains;
use crate::config::Settings;
use crate::error::Error;
use crate::gym::GymRules;
use crate::import::{
    Collection, CollectionFiles, CollectionRules, ImportError, Piece, is_stamped, read_collection,
};
use crate::outcome::{attempts_of, rollouts_of};
use crate::report::ImportReport;
use crate::schema::{self, ATTEMPTS, FINISHED_AT, ROLLOUTS, SCHEMA_VERSION, SERVER_MS, TASKS};
use crate::store::{
    LockOptions, PartWriter, RunLock, RunRecord, RunState, RunStore, StoreError, part_name,
};

/// The tables of a run, and the name of the one part that an import writes for each.
const PARTS: [(&str, &str); 3] = [
    (TASKS, "tasks"),
    (ROLLOUTS, "imported"),
    (ATTEMPTS, "imported"),
];

/// Turns the files of a NeMo Gym collection into a run. `settings` say where, whether a run there is replaced, and
/// how many failures a rollout may have.
///
/// # Errors
/// The files can't be imported, or the place can't be used. Then there is no run, or still the earlier one.
pub async fn import_collection(
    files: CollectionFiles,
    settings: &Settings,
) -> Result<ImportReport, Error> {
    let run = RunStore::open(settings.required_output()?, settings.state_dir.as_deref())?;
    let is_new = run.local_path().is_some_and(|path| !path.exists());
    make_directory(&run)?;
    let imported = locked(files, &run, settings).await;
    if let (true, Err(_), Some(path)) = (is_new, &imported, run.local_path()) {
        // A directory that is not empty stays, and does no harm.
        let parts = PARTS.iter().map(|(table, _)| path.join(table));
        for directory in parts.chain([path.to_owned()]) {
            let _ = std::fs::remove_dir(directory);
        }
    }
    imported
}

async fn locked(
    files: CollectionFiles,
    run: &RunStore,
    settings: &Settings,
) -> Result<ImportReport, Error> {
    let options = LockOptions {
        break_existing: settings.break_lock,
        ..LockOptions::default()
    };
    let lock = RunLock::acquire(run, options).await?;
    let imported = tokio::select! {
        imported = import(files, run, settings) => imported,
        lost = lock.keep() => Err(lost.into()),
    };
    lock.release().await;
    imported
}

async fn import(
    files: CollectionFiles,
    run: &RunStore,
    settings: &Settings,
) -> Result<ImportReport, Error> {
    let place = run.display("");
    let replaces = settings.overwrite;
    if !replaces {
        if let Some(record) = RunRecord::load(run).await.map_err(StoreError::of_output)? {
            let state = record.state.to_string();
            return Err(StoreError::Exists { place, state }.into());
        }
        refuse_remains(run).await?;
    }
    let is_stamped = is_stamped(&files.rollouts)?;
    let rules = settings.gym.rules(|| is_stamped);
    let (output, pieces) = channel(2);
    let how = CollectionRules {
        gym: rules,
        retry_terminal_timeouts: settings.retry_terminal_timeouts,
        retry_invalid_judge_responses: settings.retry_invalid_judge_responses,
    };
    let reading = SpawnedTask::spawn_blocking(move || read_collection(&files, how, &output));
    let mut parts = Parts::new(run);
    let (written, read) = tokio::join!(parts.write(pieces), reading.join());
    let read =
        read.map_err(|error| Error::failed("a defect of rollstream: reading the files", error))?;
    let collection = match (read, written) {
        (Ok(collection), Ok(())) => collection,
        (Err(ImportError::Abandoned) | Ok(_), Err(error)) => {
            parts.abandon().await;
            return Err(error);
        }
        (Err(error), _) => {
            parts.abandon().await;
            return Err(error.into());
        }
    };
    if replaces {
        run.clear().await.map_err(StoreError::of_output)?;
    }
    let mut written = parts.publish().await?;
    let record = record(&collection, rules, settings)?;
    record.save(run).await.map_err(StoreError::of_output)?;
    written.push(run.display("run.json"));
    Ok(ImportReport {
        place,
        state: record.state,
        rollouts: record.rollouts,
        inputs: collection.inputs,
        answers: collection.answers,
        failed_attempts: collection.failures,
        failures: collection.failure_counts(settings),
        max_attempts: settings.max_attempts,
        warnings: collection.warnings,
        written,
    })
}

fn record(
    collection: &Collection,
    rules: &GymRules,
    settings: &Settings,
) -> Result<RunRecord, Error> {
    let rollouts = collection.counts(settings);
    let state = match rollouts.pending {
        0 => RunState::Finished,
        _ => RunState::Interrupted,
    };
    let digest = |file: usize| collection.files.get(file).map(|file| &file.digest);
    let mut identity = json!({
        "imported": "nemo-gym",
        "materialized_inputs": digest(0),
        "rollouts": digest(1),
        "failures": digest(2),
    });
    add_rules(&mut identity, rules);
    let now = now();
    Ok(RunRecord {
        schema_version: SCHEMA_VERSION,
        run_id: RunRecord::new_id(),
        rollstream_version: env!("CARGO_PKG_VERSION").to_owned(),
        state,
        created_at: now.clone(),
        started_at: None,
        finished_at: Some(now),
        identity,
        settings: serde_json::to_value(settings).map_err(Error::defect)?,
        inputs: collection.files.clone(),
        num_tasks: collection.num_tasks,
        // The files do not say where the agents are.
        agents: collection
            .agents()
            .map(|name| (name.to_owned(), String::new()))
            .collect(),
        environment_servers: collection.servers.clone(),
        rollouts,
    })
}

/// The parts of a new run, invisible until they are published.
struct Parts<'a> {
    run: &'a RunStore,
    writers: [Option<PartWriter>; 3],
}

impl<'a> Parts<'a> {
    fn new(run: &'a RunStore) -> Self {
        Self {
            run,
            writers: [None, None, None],
        }
    }

    async fn write(&mut self, mut pieces: Receiver<Piece>) -> Result<(), Error> {
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Tasks(tasks) => self.append(0, &tasks).await?,
                Piece::TasksAgain => {
                    let [tasks, ..] = &mut self.writers;
                    if let Some(tasks) = tasks.take() {
                        tasks.abandon().await;
                    }
                }
                Piece::Outcomes(outcomes) => {
                    let defect = |error: ArrowError| Error::defect(error);
                    let answered = rollouts_of(&outcomes).map_err(defect)?;
                    self.append(1, &answered).await?;
                    let attempted = attempts_of(&outcomes).and_then(without_times);
                    self.append(2, &attempted.map_err(defect)?).await?;
                }
            }
        }
        // A run has a table of tasks, even if it is empty.
        let no_tasks = RecordBatch::new_empty(schema::tasks());
        Ok(self.append(0, &no_tasks).await?)
    }

    async fn append(&mut self, table: usize, rows: &RecordBatch) -> Result<(), StoreError> {
        let (Some(writer), Some((name, part))) = (self.writers.get_mut(table), PARTS.get(table))
        else {
            return Ok(());
        };
        if rows.num_rows() == 0 && *name != TASKS {
            return Ok(());
        }
        let writer = match writer {
            Some(writer) => writer,
            None => {
                let object = part_name(name, part);
                writer.insert(PartWriter::new(self.run, name, &object, rows.schema())?)
            }
        };
        writer.write(rows).await
    }

    /// Publishes the parts, and the tasks last: without tasks there is no run to see.
    async fn publish(self) -> Result<Vec<String>, StoreError> {
        let mut written = Vec::new();
        for writer in self.writers.into_iter().rev().flatten() {
            written.push(writer.finish().await?.path);
        }
        written.reverse();
        Ok(written)
    }

    async fn abandon(self) {
        for writer in self.writers.into_iter().flatten() {
            writer.abandon().await;
        }
    }
}

/// Returns the attempts with null times: the files do not say when attempts ended, but the builder needs a value.
fn without_times(attempts: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let schema = attempts.schema();
    let columns = schema.fields().iter().zip(attempts.columns());
    let columns: Vec<ArrayRef> = columns
        .map(|(field, column)| match field.name().as_str() {
            FINISHED_AT | SERVER_MS => new_null_array(field.data_type(), column.len()),
            _ => Arc::clone(column),
        })
        .collect();
    RecordBatch::try_new(schema, columns)
}
