use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::functions_nested::expr_fn::map_keys;
use datafusion::logical_expr::ident;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::tables::{JournalRows, RunTables, external, scan};
use super::{dictionary, register_store};
use crate::schema;
use crate::store::{OpenSegment, RunStore, SegmentName};

/// Parts that are read at once.
const MAX_READS: usize = 8;

/// The names of metrics that each part and journal segment was found to have. A part never changes,
/// so what is here need not be read again.
#[derive(Debug, Default)]
pub struct MetricNames {
    known: HashMap<Source, Arc<BTreeSet<String>>>,
    /// What was asked for since the last [`MetricNames::forget_others`].
    asked: HashMap<Source, Arc<BTreeSet<String>>>,
}

/// Where names were found, and the state that it was in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Source {
    Part {
        url: String,
        num_bytes: u64,
        /// Milliseconds since the epoch.
        written_at: i64,
    },
    Segment {
        run: String,
        name: SegmentName,
        num_bytes: u64,
    },
}

impl MetricNames {
    /// The metrics of a run's rollouts, by reading what is new of it.
    ///
    /// # Errors
    /// A store or a journal can't be read.
    pub(super) async fn of(
        &mut self,
        session: &SessionContext,
        tables: &RunTables,
    ) -> Result<BTreeSet<String>> {
        let run = tables.run();
        let mut sources = Vec::new();
        let mut unknown = Vec::new();
        let parts: HashSet<&Path> = tables.parts(schema::ROLLOUTS).iter().collect();
        for object in run.list(schema::ROLLOUTS).await.map_err(external)? {
            if !parts.contains(&object.location) {
                continue;
            }
            let source = Source::Part {
                url: run.url(&object.location).into(),
                num_bytes: object.size,
                written_at: object.last_modified.timestamp_millis(),
            };
            match self.take(&source) {
                true => {}
                false => unknown.push((source.clone(), object)),
            }
            sources.push(source);
        }
        register_store(session, run);
        let reads = unknown.into_iter().map(|(source, object)| async move {
            let names = of_part(session, run, &object).await?;
            Ok::<_, DataFusionError>((source, names))
        });
        let mut read = stream::iter(reads).buffer_unordered(MAX_READS);
        while let Some((source, names)) = read.try_next().await? {
            self.insert(source, names);
        }
        for JournalRows { segment, .. } in tables.segments() {
            let source = Source::Segment {
                run: run.display(""),
                name: segment.name(),
                num_bytes: segment.num_bytes(),
            };
            if !self.take(&source) {
                self.insert(source.clone(), of_segment(segment.clone()).await?);
            }
            sources.push(source);
        }
        let found = sources.iter().filter_map(|source| self.asked.get(source));
        Ok(found.flat_map(|names| names.iter().cloned()).collect())
    }

    /// Forgets parts and segments that have gone since, as those of a run that was overwritten.
    pub(super) fn forget_others(&mut self) {
        self.known = std::mem::take(&mut self.asked);
    }

    fn take(&mut self, source: &Source) -> bool {
        let found = self.known.get(source).cloned();
        let is_known = found.is_some();
        if let Some(names) = found {
            self.asked.insert(source.clone(), names);
        }
        is_known
    }

    fn insert(&mut self, source: Source, names: BTreeSet<String>) {
        let names = Arc::new(names);
        // Both, so that a look that is given up on the way was not for nothing.
        self.known.insert(source.clone(), Arc::clone(&names));
        self.asked.insert(source, names);
    }
}

async fn of_part(
    session: &SessionContext,
    run: &RunStore,
    object: &ObjectMeta,
) -> Result<BTreeSet<String>> {
    let runtime = session.runtime_env();
    let cache = runtime.cache_manager.get_file_metadata_cache();
    match dictionary::metric_names(run.object_store(), object, cache).await? {
        Some(names) => Ok(names),
        None => by_query(session, run, object).await,
    }
}

/// Reads every row, where a file does not list its values.
async fn by_query(
    session: &SessionContext,
    run: &RunStore,
    object: &ObjectMeta,
) -> Result<BTreeSet<String>> {
    let parts = [object.location.clone()];
    let rollouts = scan(session, run, &parts, &schema::rollouts())?;
    let keys = rollouts.select(vec![map_keys(ident(schema::METRICS)).alias("name")])?;
    let mut rows = keys
        .unnest_columns(&["name"])?
        .distinct()?
        .execute_stream()
        .await?;
    let mut all = BTreeSet::new();
    while let Some(batch) = rows.try_next().await? {
        let column = arrow::compute::cast(batch.column(0), &DataType::Utf8)?;
        add(&mut all, column.as_string::<i32>().iter().flatten());
    }
    Ok(all)
}

async fn of_segment(segment: OpenSegment) -> Result<BTreeSet<String>> {
    let reading = SpawnedTask::spawn_blocking(move || {
        let mut all = BTreeSet::new();
        for batch in segment.read() {
            add(&mut all, keys(&batch.map_err(external)?));
        }
        Ok(all)
    });
    let read = reading.join().await;
    read.map_err(|error| DataFusionError::External(Box::new(error)))?
}

fn keys(batch: &RecordBatch) -> impl Iterator<Item = &str> {
    let metrics = batch.column_by_name(schema::METRICS);
    let metrics = metrics.and_then(|column| column.as_map_opt());
    let keys = metrics.and_then(|metrics| metrics.keys().as_string_opt::<i32>());
    keys.into_iter().flat_map(|keys| keys.iter().flatten())
}

fn add<'a>(all: &mut BTreeSet<String>, names: impl Iterator<Item = &'a str>) {
    for name in names {
        if !all.contains(name) {
            all.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use arrow::array::new_null_array;

    use super::*;
    use crate::store::PartWriter;

    /// Rollouts without metrics, of which a part lists no names: it is read row by row.
    async fn part(run: &RunStore, name: &str) {
        let schema = schema::rollouts();
        let columns = schema
            .fields()
            .iter()
            .map(|field| match field.is_nullable() {
                true => new_null_array(field.data_type(), 0),
                false => arrow::array::new_empty_array(field.data_type()),
            });
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap();
        let mut writer = PartWriter::new(run, schema::ROLLOUTS, name, schema).unwrap();
        writer.write(&batch).await.unwrap();
        writer.finish().await.unwrap();
    }

    #[tokio::test]
    async fn a_part_is_read_once_and_forgotten_when_it_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunStore::open(folder.path().to_str().unwrap(), None).unwrap();
        let session = SessionContext::new();
        let mut names = MetricNames::default();
        let mut look = async || {
            let tables = RunTables::look(&run).await.unwrap();
            let found = names.of(&session, &tables).await;
            names.forget_others();
            (found.is_ok(), names.known.len())
        };
        part(&run, "rollouts/a.parquet").await;
        assert_eq!(look().await, (true, 1));

        // What nobody reads again may be anything.
        let path = folder.path().join("rollouts/a.parquet");
        let before = fs::metadata(&path).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let footer = bytes.len() - 8;
        bytes[..footer].fill(b'x');
        fs::write(&path, bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        part(&run, "rollouts/b.parquet").await;
        assert_eq!(look().await, (true, 2));

        fs::remove_file(&path).unwrap();
        assert_eq!(look().await, (true, 1));
    }
}
