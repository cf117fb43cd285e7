use arrow::json::ArrayWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use super::Folder;

impl Folder {
    /// The rows of a Parquet file, or of those in a folder, as JSON objects without their nulls: read without the
    /// program, to check its numbers by.
    pub fn parquet(&self, name: &str) -> Vec<Value> {
        let path = self.path(name);
        let files = if path.is_dir() {
            let entries = std::fs::read_dir(path).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        } else {
            vec![path]
        };
        let mut rows = Vec::new();
        for path in files {
            let file =
                std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            let mut json = ArrayWriter::new(Vec::new());
            for batch in reader.build().unwrap() {
                json.write(&batch.unwrap()).unwrap();
            }
            json.finish().unwrap();
            let read: Vec<Value> = serde_json::from_slice(&json.into_inner()).unwrap_or_default();
            rows.extend(read);
        }
        rows
    }

    /// What landed of a run, by task and rollout, with the answers as JSON.
    pub fn landed(&self, run: &str) -> Vec<Value> {
        let mut rows = self.parquet(&format!("{run}/rollouts"));
        for row in &mut rows {
            row["result"] = serde_json::from_str(row["result"].as_str().unwrap()).unwrap();
        }
        rows.sort_by_key(|row| (row["task_index"].as_i64(), row["rollout_index"].as_i64()));
        rows
    }
}
