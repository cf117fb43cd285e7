//! What a run holds, read from its Parquet files as any reader would, without our own session.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{
    ArrowPrimitiveType, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub task: i64,
    pub agent: String,
    pub first_rollout: i64,
    pub repeats: i64,
    pub file: String,
    pub line: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    pub task: i64,
    pub rollout: i64,
    pub agent: String,
    pub attempt: i64,
    pub reward: Option<f64>,
    pub tokens: [Option<i64>; 3],
    pub result: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    pub task: i64,
    pub rollout: i64,
    pub agent: String,
    pub attempt: i64,
    pub outcome: String,
    pub http_status: Option<i32>,
    pub error: Option<String>,
    pub terminal: bool,
    pub dispatched_at: i64,
    pub finished_at: Option<i64>,
}

/// The parts of a table, by name.
pub fn parts(run: &Path, table: &str) -> Vec<PathBuf> {
    files(&run.join(table), "parquet")
}

/// The segments that are left in a journal, by name.
pub fn segments(journal: &Path) -> Vec<PathBuf> {
    let mut found = files(journal, "rows");
    let directories = journal.read_dir().into_iter().flatten();
    for directory in directories.map(|entry| entry.unwrap().path()) {
        if directory.is_dir() {
            found.extend(segments(&directory));
        }
    }
    found
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = directory.read_dir() else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths
}

/// All rows of a table, part by part, in the order of the files.
pub fn batches(run: &Path, table: &str) -> Vec<RecordBatch> {
    let of_part = |path: PathBuf| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        reader
            .build()
            .unwrap()
            .map(Result::unwrap)
            .collect::<Vec<_>>()
    };
    parts(run, table).into_iter().flat_map(of_part).collect()
}

pub fn tasks(run: &Path) -> Vec<Task> {
    rows(run, "tasks", |row| Task {
        task: row.integer("task_index"),
        agent: row.text("agent_name"),
        first_rollout: row.integer("first_rollout_index"),
        repeats: row.integer("num_repeats"),
        file: row.text("source_file"),
        line: row.integer("source_line"),
    })
}

pub fn rollouts(run: &Path) -> Vec<Rollout> {
    rows(run, "rollouts", |row| Rollout {
        task: row.integer("task_index"),
        rollout: row.integer("rollout_index"),
        agent: row.text("agent_name"),
        attempt: row.integer("attempt"),
        reward: row.number::<Float64Type>("reward"),
        tokens: ["input_tokens", "output_tokens", "total_tokens"]
            .map(|name| row.number::<Int64Type>(name)),
        result: row.text("result"),
    })
}

pub fn attempts(run: &Path) -> Vec<Attempt> {
    rows(run, "attempts", |row| Attempt {
        task: row.integer("task_index"),
        rollout: row.integer("rollout_index"),
        agent: row.text("agent_name"),
        attempt: row.integer("attempt"),
        outcome: row.text("outcome"),
        http_status: row.number::<Int32Type>("http_status"),
        error: row.optional_text("error"),
        terminal: row.of("terminal").as_boolean().value(row.index),
        dispatched_at: row
            .number::<TimestampMicrosecondType>("dispatched_at")
            .unwrap(),
        finished_at: row.number::<TimestampMicrosecondType>("finished_at"),
    })
}

/// Task and rollout of every rollout that is landed, in order.
pub fn done(run: &Path) -> Vec<(i64, i64)> {
    let mut done: Vec<_> = rollouts(run)
        .iter()
        .map(|row| (row.task, row.rollout))
        .collect();
    done.sort_unstable();
    done
}

/// `(0, 0), (0, 1) … (tasks - 1, repeats - 1)`.
pub fn all(tasks: i64, repeats: i64) -> Vec<(i64, i64)> {
    (0..tasks)
        .flat_map(|task| (0..repeats).map(move |rollout| (task, rollout)))
        .collect()
}

fn rows<T>(run: &Path, table: &str, read: impl Fn(&Row) -> T) -> Vec<T> {
    let batches = batches(run, table);
    let rows = batches
        .iter()
        .flat_map(|batch| (0..batch.num_rows()).map(move |index| Row { batch, index }));
    rows.map(|row| read(&row)).collect()
}

struct Row<'a> {
    batch: &'a RecordBatch,
    index: usize,
}

impl Row<'_> {
    fn of(&self, name: &str) -> &dyn Array {
        self.batch
            .column_by_name(name)
            .unwrap_or_else(|| panic!("no column '{name}'"))
    }

    fn number<T: ArrowPrimitiveType>(&self, name: &str) -> Option<T::Native> {
        let column = self.of(name).as_primitive::<T>();
        column
            .is_valid(self.index)
            .then(|| column.value(self.index))
    }

    fn integer(&self, name: &str) -> i64 {
        self.number::<Int64Type>(name).unwrap()
    }

    fn optional_text(&self, name: &str) -> Option<String> {
        let column = self.of(name).as_string::<i32>();
        column
            .is_valid(self.index)
            .then(|| column.value(self.index).to_owned())
    }

    fn text(&self, name: &str) -> String {
        self.optional_text(name).unwrap()
    }
}
