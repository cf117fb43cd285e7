//! What a run holds, read from its Parquet parts by other code than the program's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// Task and rollout.
pub type RolloutKey = (i64, i64);

/// A row of `attempts`.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub task: i64,
    pub rollout: i64,
    pub attempt: i64,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub error: Option<String>,
    pub terminal: bool,
    pub failure_terminal: bool,
    pub response_headers: Option<String>,
    pub answer: Option<String>,
    pub concurrency_limit: Option<i32>,
    /// In microseconds since 1970.
    pub dispatched_at: i64,
    /// When the collector knew what came of it, in microseconds since 1970; none where it never did.
    pub known_at: Option<i64>,
    /// File of the part.
    pub part: String,
}

/// A row of `rollouts`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    pub attempt: i64,
    pub reward: Option<f64>,
    /// Input, output and all, as the answer says.
    pub tokens: [Option<i64>; 3],
    pub result: String,
}

/// `attempts` and `rollouts` of a run.
#[derive(Debug)]
pub struct Ledger {
    /// In order of task, rollout and attempt.
    pub attempts: Vec<Attempt>,
    pub rollouts: BTreeMap<RolloutKey, Rollout>,
}

/// So many attempts that ended so: outcome, HTTP status, whether the rollout was given up with it, number.
pub type Ends<'a> = (&'a str, Option<i32>, bool, usize);

impl Ledger {
    /// Reads a run. No rollout may be there twice.
    #[track_caller]
    pub fn read(run: &Path) -> Self {
        let mut attempts = Vec::new();
        for part in parts(run, "attempts") {
            let name = part.file_name().unwrap().to_str().unwrap().to_owned();
            for batch in batches(&part, &[]) {
                attempts.extend(attempts_of(&batch, &name));
            }
        }
        attempts.sort_by_key(Attempt::key);
        let mut rollouts = BTreeMap::new();
        for part in parts(run, "rollouts") {
            for batch in batches(&part, &[]) {
                for (key, rollout) in rollouts_of(&batch) {
                    let twice = rollouts.insert(key, rollout);
                    assert!(twice.is_none(), "{key:?} is there twice");
                }
            }
        }
        Self { attempts, rollouts }
    }

    /// The attempts at a task.
    pub fn of_task(&self, task: i64) -> Vec<&Attempt> {
        let of_task = self.attempts.iter();
        of_task.filter(|attempt| attempt.task == task).collect()
    }

    /// How the attempts ended that `which` says of.
    pub fn ends(&self, which: impl Fn(&Attempt) -> bool) -> Vec<Ends<'_>> {
        let mut counts: BTreeMap<(&str, Option<i32>, bool), usize> = BTreeMap::new();
        for attempt in self.attempts.iter().filter(|attempt| which(attempt)) {
            let end = (
                attempt.outcome.as_str(),
                attempt.http_status,
                attempt.terminal,
            );
            *counts.entry(end).or_default() += 1;
        }
        let flat = counts.into_iter();
        flat.map(|((outcome, status, terminal), count)| (outcome, status, terminal, count))
            .collect()
    }

    /// Attempts at each rollout, in order.
    pub fn by_rollout(&self) -> BTreeMap<RolloutKey, Vec<&Attempt>> {
        let mut attempts: BTreeMap<RolloutKey, Vec<&Attempt>> = BTreeMap::new();
        for attempt in &self.attempts {
            let key = (attempt.task, attempt.rollout);
            attempts.entry(key).or_default().push(attempt);
        }
        attempts
    }

    /// What holds of every run at any time: attempts are numbered from 0 without gaps, the last is the one that gave
    /// the rollout or gave it up, and what is in `rollouts` is what was answered.
    #[track_caller]
    pub fn is_consistent(&self) {
        for (key, attempts) in self.by_rollout() {
            let numbers: Vec<i64> = attempts.iter().map(|attempt| attempt.attempt).collect();
            assert_eq!(
                numbers,
                (0..attempts.len() as i64).collect::<Vec<_>>(),
                "{key:?}"
            );
            let (last, before) = attempts.split_last().unwrap();
            for attempt in before {
                assert!(attempt.outcome != "ok" && !attempt.terminal, "{attempt:?}");
            }
            let answered = (last.outcome == "ok").then_some(last.attempt);
            let landed = self.rollouts.get(&key).map(|rollout| rollout.attempt);
            assert_eq!(answered, landed, "{key:?}");
            for attempt in attempts {
                assert_eq!(
                    attempt.outcome == "ok",
                    attempt.error.is_none(),
                    "{attempt:?}"
                );
            }
        }
        let attempted: BTreeSet<RolloutKey> = self.by_rollout().into_keys().collect();
        assert!(self.rollouts.keys().all(|key| attempted.contains(key)));
    }
}

impl Attempt {
    pub fn key(&self) -> (i64, i64, i64) {
        (self.task, self.rollout, self.attempt)
    }
}

/// The parts of a table that there are now.
pub fn parts(run: &Path, table: &str) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(run.join(table)) else {
        return Vec::new();
    };
    let files = files.map(|file| file.unwrap().path());
    let mut parts: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|end| end == "parquet"))
        .collect();
    parts.sort();
    parts
}

/// All of a part, or only some columns.
pub fn batches(part: &Path, columns: &[&str]) -> Vec<RecordBatch> {
    let file = File::open(part).unwrap_or_else(|error| panic!("{}: {error}", part.display()));
    batches_of(file, columns)
}

/// All of an open part, or only some columns.
pub fn batches_of(part: File, columns: &[&str]) -> Vec<RecordBatch> {
    let shown = format!("{part:?}");
    let read = || -> parquet::errors::Result<Vec<RecordBatch>> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(part)?;
        let mask = match columns {
            [] => ProjectionMask::all(),
            _ => ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied()),
        };
        let reader = builder.with_projection(mask).build()?;
        reader.map(|batch| Ok(batch?)).collect()
    };
    read().unwrap_or_else(|error| panic!("{shown}: {error}"))
}

/// Tasks and rollouts of a batch.
pub fn keys(batch: &RecordBatch) -> Vec<RolloutKey> {
    let tasks = integers(batch, "task_index");
    let rollouts = integers(batch, "rollout_index");
    tasks.into_iter().zip(rollouts).collect()
}

pub fn column<'a>(batch: &'a RecordBatch, name: &str) -> &'a ArrayRef {
    batch
        .column_by_name(name)
        .unwrap_or_else(|| panic!("{name}"))
}

pub fn integers(batch: &RecordBatch, name: &str) -> Vec<i64> {
    let column = column(batch, name).as_primitive::<Int64Type>();
    column.values().to_vec()
}

pub fn optional_integers(batch: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    column(batch, name)
        .as_primitive::<Int64Type>()
        .iter()
        .collect()
}

pub fn text(batch: &RecordBatch, name: &str, row: usize) -> Option<String> {
    let column = column(batch, name).as_string::<i32>();
    column.is_valid(row).then(|| column.value(row).to_owned())
}

fn attempts_of(batch: &RecordBatch, part: &str) -> Vec<Attempt> {
    let numbers = integers(batch, "attempt");
    let flag = |name: &str, row: usize| column(batch, name).as_boolean().value(row);
    let int = |name: &str, row: usize| {
        let column = column(batch, name).as_primitive::<Int32Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let at = column(batch, "dispatched_at").as_primitive::<TimestampMicrosecondType>();
    let micros = |name: &str, row: usize| {
        let column = column(batch, name).as_primitive::<Float64Type>();
        column
            .is_valid(row)
            .then(|| (column.value(row) * 1e3).ceil() as i64)
    };
    let took = |row| {
        let parts = ["connect_ms", "server_ms", "client_ms"].map(|name| micros(name, row));
        parts.into_iter().sum::<Option<i64>>()
    };
    let keys = keys(batch).into_iter().zip(numbers).enumerate();
    keys.map(|(row, ((task, rollout), attempt))| Attempt {
        task,
        rollout,
        attempt,
        outcome: text(batch, "outcome", row).unwrap(),
        http_status: int("http_status", row),
        error: text(batch, "error", row),
        terminal: flag("terminal", row),
        failure_terminal: flag("failure_terminal", row),
        response_headers: text(batch, "response_headers", row),
        answer: text(batch, "answer", row),
        concurrency_limit: int("concurrency_limit", row),
        dispatched_at: at.value(row),
        known_at: took(row).map(|took| at.value(row) + took),
        part: part.to_owned(),
    })
    .collect()
}

fn rollouts_of(batch: &RecordBatch) -> Vec<(RolloutKey, Rollout)> {
    let attempts = integers(batch, "attempt");
    let rewards = column(batch, "reward").as_primitive::<Float64Type>();
    let tokens = ["input_tokens", "output_tokens", "total_tokens"];
    let tokens = tokens.map(|name| optional_integers(batch, name));
    let keys = keys(batch).into_iter().zip(attempts).enumerate();
    keys.map(|(row, (key, attempt))| {
        let rollout = Rollout {
            tokens: [0, 1, 2].map(|kind: usize| tokens[kind][row]),
            attempt,
            reward: rewards.is_valid(row).then(|| rewards.value(row)),
            result: text(batch, "result", row).unwrap(),
        };
        (key, rollout)
    })
    .collect()
}
