//! A reader that has nothing but a listing and Parquet.

use std::collections::BTreeMap;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::s3_server::Change;

/// Task and rollout.
pub type Key = (i64, i64);

/// The rows of a Parquet file.
fn read(file: &Bytes) -> parquet::errors::Result<Vec<RecordBatch>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone())?.build()?;
    Ok(reader.collect::<Result<_, _>>()?)
}

fn keys_of(file: &Bytes) -> Vec<Key> {
    let batches = read(file).unwrap();
    let of_batch = |batch: &RecordBatch| {
        let [task, rollout] = ["task_index", "rollout_index"].map(|name| {
            let column = batch.column_by_name(name).unwrap();
            column.as_primitive::<Int64Type>().values().to_vec()
        });
        task.into_iter().zip(rollout).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).collect()
}

/// Task and rollout of every row of a table, in order.
pub fn keys(objects: &BTreeMap<String, Bytes>, table: &str) -> Vec<Key> {
    let parts = objects.iter().filter(|(name, _)| is_part(name, table));
    let mut keys: Vec<Key> = parts.flat_map(|(_, part)| keys_of(part)).collect();
    keys.sort_unstable();
    keys
}

/// The answers by task and rollout.
pub fn answers(objects: &BTreeMap<String, Bytes>) -> BTreeMap<Key, String> {
    let mut answers = BTreeMap::new();
    for (_, part) in objects.iter().filter(|(name, _)| is_part(name, "rollouts")) {
        let results = read(part).unwrap();
        let results = results.iter().flat_map(|batch| {
            let results = batch.column_by_name("result").unwrap().as_string::<i32>();
            results.iter().map(|text| text.unwrap().to_owned())
        });
        answers.extend(keys_of(part).into_iter().zip(results));
    }
    answers
}

/// `(0, 0), (0, 1) … (tasks - 1, repeats - 1)`.
pub fn all(tasks: i64, repeats: i64) -> Vec<Key> {
    (0..tasks)
        .flat_map(|task| (0..repeats).map(move |rollout| (task, rollout)))
        .collect()
}

fn is_part(name: &str, table: &str) -> bool {
    name.contains(&format!("{table}/")) && name.ends_with(".parquet")
}

/// At every moment each Parquet file could be read whole, and no rollout was there twice.
#[track_caller]
pub fn was_whole_at_every_moment(history: &[Change]) {
    let mut rollouts: BTreeMap<&str, Vec<Key>> = BTreeMap::new();
    for change in history {
        match change {
            Change::Put(name, content) if name.ends_with(".parquet") => {
                if let Err(error) = read(content) {
                    panic!("{name} was torn: {error}");
                }
                if is_part(name, "rollouts") {
                    rollouts.insert(name, keys_of(content));
                }
            }
            Change::Put(..) => {}
            Change::Deleted(name) => {
                rollouts.remove(name.as_str());
            }
        }
        let mut keys: Vec<&Key> = rollouts.values().flatten().collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "rollouts were there twice");
    }
}
