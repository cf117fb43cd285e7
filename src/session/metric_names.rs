//! [`MetricNames`]: the names of the metrics of runs, from the dictionaries of their parts if these list them. Parquet
//! readers decode every row for that.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use bytes::{Buf, Bytes};
use datafusion::common::Result;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::error::DataFusionError;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::functions_nested::expr_fn::map_keys;
use datafusion::logical_expr::ident;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore};
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::register_store;
use super::tables::{JournalRows, RunTables, scan};
use crate::schema;
use crate::store::{OpenSegment, RunStore};

/// The most parts that are read at the same time.
const MAX_READS: usize = 8;

/// The column of names.
const KEYS: &str = "metrics.key_value.key";

/// The largest dictionary that is read: a larger one lists something other than names.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The names of metrics in each part and journal segment. A part never changes, so its names need
/// not be read again.
#[derive(Debug, Default)]
pub struct MetricNames {
    known: HashMap<Source, Found>,
}

/// A version of a file with names: its address, its size in bytes, and the time at which it was written.
type Source = (String, u64, i64);

#[derive(Debug)]
struct Found {
    names: BTreeSet<String>,
    /// Whether it was used since the last [`MetricNames::forget_others`].
    is_asked: bool,
}

impl MetricNames {
    /// Finds the metrics of a run's rollouts, and reads only new parts and segments.
    pub(super) async fn of(
        &mut self,
        session: &SessionContext,
        tables: &RunTables,
    ) -> Result<BTreeSet<String>> {
        let run = tables.run();
        let mut sources = Vec::new();
        let mut unknown = Vec::new();
        for object in tables.parts(schema::ROLLOUTS) {
            let written_at = object.last_modified.timestamp_millis();
            let source = (run.url(&object.location).into(), object.size, written_at);
            if !self.known.contains_key(&source) {
                unknown.push((source.clone(), object.clone()));
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
            let source = (
                run.display(&segment.name().to_string()),
                segment.num_bytes(),
                0,
            );
            if !self.known.contains_key(&source) {
                self.insert(source.clone(), of_segment(segment.clone()).await?);
            }
            sources.push(source);
        }
        let mut all = BTreeSet::new();
        for source in &sources {
            if let Some(found) = self.known.get_mut(source) {
                found.is_asked = true;
                add(&mut all, found.names.iter().map(String::as_str));
            }
        }
        Ok(all)
    }

    /// Forgets parts and segments that no longer exist, for example because a run was overwritten.
    pub(super) fn forget_others(&mut self) {
        self.known
            .retain(|_, found| std::mem::take(&mut found.is_asked));
    }

    fn insert(&mut self, source: Source, names: BTreeSet<String>) {
        let is_asked = false;
        self.known.insert(source, Found { names, is_asked });
    }
}

async fn of_part(
    session: &SessionContext,
    run: &RunStore,
    object: &ObjectMeta,
) -> Result<BTreeSet<String>> {
    let runtime = session.runtime_env();
    let cache = runtime.cache_manager.get_file_metadata_cache();
    match metric_names(run.object_store(), object, cache).await? {
        Some(names) => Ok(names),
        None => by_query(session, run, object).await,
    }
}

/// Reads every row, for files that do not list their values.
async fn by_query(
    session: &SessionContext,
    run: &RunStore,
    object: &ObjectMeta,
) -> Result<BTreeSet<String>> {
    let rollouts = scan(session, run, [&object.location], &schema::rollouts())?;
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
            add(&mut all, keys(&batch?));
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

/// Lists the names of metrics in a part; none if some row groups do not list them.
async fn metric_names(
    store: &Arc<dyn ObjectStore>,
    part: &ObjectMeta,
    cache: Arc<FileMetadataCache>,
) -> Result<Option<BTreeSet<String>>> {
    // A query that follows needs the same metadata, and finds it in the cache.
    let metadata = DFParquetMetadata::new(store.as_ref(), part)
        .with_file_metadata_cache(Some(cache))
        .fetch_metadata()
        .await?;
    let Some(dictionaries) = dictionaries(&metadata) else {
        return Ok(None);
    };
    let ranges: Vec<Range<u64>> = dictionaries.iter().map(|(_, _, at)| at.clone()).collect();
    let pages = store.get_ranges(&part.location, &ranges).await?;
    let mut names = BTreeSet::new();
    for ((column, num_rows, range), bytes) in dictionaries.into_iter().zip(pages) {
        let offset = range.start;
        let reader = Arc::new(Section { offset, bytes });
        let listed = SerializedPageReader::new(reader, column, num_rows, None)
            .and_then(|mut pages| pages.get_next_page())
            .map_err(DataFusionError::from)?;
        let Some(listed) = listed.and_then(values) else {
            return Ok(None);
        };
        names.extend(listed);
    }
    Ok(Some(names))
}

/// Finds the dictionaries, with the rows of each row group; none if a row group has values outside its dictionary.
fn dictionaries(
    metadata: &ParquetMetaData,
) -> Option<Vec<(&ColumnChunkMetaData, usize, Range<u64>)>> {
    let columns = metadata.file_metadata().schema_descr().columns();
    let keys = columns
        .iter()
        .position(|column| column.path().string() == KEYS)?;
    metadata
        .row_groups()
        .iter()
        .map(|group| {
            let num_rows = usize::try_from(group.num_rows()).ok()?;
            let column = group.columns().get(keys)?;
            let encodings = column.page_encoding_stats_mask()?;
            let start = u64::try_from(column.dictionary_page_offset()?).ok()?;
            let end = u64::try_from(column.data_page_offset()).ok()?;
            let is_listed = encodings.is_only(Encoding::RLE_DICTIONARY)
                || encodings.is_only(Encoding::PLAIN_DICTIONARY);
            let fits = end > start && end - start <= MAX_BYTES && column.compressed_size() >= 0;
            (is_listed && fits).then_some((column, num_rows, start..end))
        })
        .collect()
}

/// Reads the values of a dictionary page: each is a length of four bytes and a text.
fn values(page: Page) -> Option<Vec<String>> {
    let Page::DictionaryPage {
        mut buf,
        num_values,
        ..
    } = page
    else {
        return None;
    };
    (0..num_values)
        .map(|_| {
            let len = buf.try_get_u32_le().ok()?;
            let len = usize::try_from(len).ok()?;
            let text = (len <= buf.len()).then(|| buf.split_to(len))?;
            String::from_utf8(text.to_vec()).ok()
        })
        .collect()
}

/// A piece of a file, with its offset in the file.
struct Section {
    offset: u64,
    bytes: Bytes,
}

impl Section {
    fn from(&self, start: u64) -> ParquetResult<Bytes> {
        let start = start.checked_sub(self.offset);
        let start = start.and_then(|start| usize::try_from(start).ok());
        start
            .filter(|start| *start <= self.bytes.len())
            .map(|start| self.bytes.slice(start..))
            .ok_or_else(|| ParquetError::EOF("outside the piece that was read".to_owned()))
    }
}

impl Length for Section {
    fn len(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl ChunkReader for Section {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            let reason = "the piece that was read is too short";
            return Err(ParquetError::EOF(reason.to_owned()));
        }
        Ok(bytes.slice(..length))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use arrow::array::{
        ArrayRef, Float64Builder, MapBuilder, MapFieldNames, StringBuilder, new_empty_array,
    };
    use arrow::record_batch::RecordBatch;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    use crate::store::{PartWriter, RunStore};

    use super::*;

    /// Writes a part without metrics, which lists no names and so is read row by row.
    async fn part(run: &RunStore, name: &str) {
        let schema = schema::rollouts();
        let columns = schema
            .fields()
            .iter()
            .map(|field| new_empty_array(field.data_type()));
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

        // The bytes may change, because nobody reads them again.
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

    fn metrics(names: &[&str], rows: usize) -> RecordBatch {
        let fields = MapFieldNames {
            entry: "key_value".into(),
            key: "key".into(),
            value: "value".into(),
        };
        let mut builder =
            MapBuilder::new(Some(fields), StringBuilder::new(), Float64Builder::new());
        for _ in 0..rows {
            for name in names {
                builder.keys().append_value(name);
                builder.values().append_value(1.0);
            }
            builder.append(true).unwrap();
        }
        let metrics: ArrayRef = Arc::new(builder.finish());
        RecordBatch::try_from_iter([("metrics", metrics)]).unwrap()
    }

    async fn names(run: &RunStore) -> Option<BTreeSet<String>> {
        let parts = run.list("rollouts").await.unwrap();
        let cache = RuntimeEnv::default()
            .cache_manager
            .get_file_metadata_cache();
        metric_names(run.object_store(), &parts[0], cache)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn the_names_of_every_row_group_are_found_without_its_rows() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunStore::open(folder.path().to_str().unwrap(), None).unwrap();
        let first = metrics(&["accuracy", "turns"], 130 * 1024);
        let name = "rollouts/a.parquet";
        let mut writer = PartWriter::new(&run, "rollouts", name, first.schema()).unwrap();
        writer.write(&first).await.unwrap();
        writer.write(&metrics(&["\u{e4}"], 1)).await.unwrap();
        writer.finish().await.unwrap();
        let expected = ["accuracy", "turns", "\u{e4}"].map(str::to_owned);
        assert_eq!(names(&run).await, Some(BTreeSet::from(expected)));
    }

    #[tokio::test]
    async fn a_part_that_lists_no_values_is_said_to_list_none() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunStore::open(folder.path().to_str().unwrap(), None).unwrap();
        std::fs::create_dir(folder.path().join("rollouts")).unwrap();
        let file = std::fs::File::create(folder.path().join("rollouts/a.parquet")).unwrap();
        let rows = metrics(&["accuracy"], 3);
        let plain = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .build();
        let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(plain)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
        assert_eq!(names(&run).await, None);
    }
}
