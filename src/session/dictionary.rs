//! The names of metrics from the dictionaries of a Parquet file: each row group lists the distinct
//! values of its map's keys in a page of its own, so that no rows need to be read for them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::error::DataFusionError;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use object_store::{ObjectMeta, ObjectStore};
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

/// The column of names.
const KEYS: &str = "metrics.key_value.key";

/// A dictionary that is larger than this lists something else than names.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The names of metrics in a part, none where it has row groups that do not list them.
///
/// # Errors
/// The file can't be read.
pub(super) async fn metric_names(
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

/// Where the dictionaries are, with the rows of each row group; none where one has values outside.
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

/// The values of a dictionary page: each its length in four bytes and its text.
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

/// A piece of a file, at the place where it is in the file.
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
        match length <= bytes.len() {
            true => Ok(bytes.slice(..length)),
            false => Err(ParquetError::EOF(
                "the piece that was read is too short".to_owned(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Builder, MapBuilder, MapFieldNames, StringBuilder};
    use arrow::record_batch::RecordBatch;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    use super::*;
    use crate::store::{PartWriter, RunStore};

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
