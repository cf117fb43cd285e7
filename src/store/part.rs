//! Files of a run, each invisible until it is whole: a [`PartWriter`] writes a Parquet part, a
//! [`Document`] any other file, and [`PartExchange`] replaces small parts.

use std::collections::HashSet;
use std::env;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Seek, Write};
use std::path::PathBuf;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use object_store::PutMode;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ArrowWriter, AsyncArrowWriter};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::local::{COMPACTED, LocalStore, Staged, sync_directory};
use super::objects::remove_all;
use super::place::relative_path;
use super::upload::Upload;
use super::{RunStore, SegmentName, StoreError, Writer};
use crate::schema;

/// A row group is closed at this many encoded bytes: they bound what a writer holds in memory, however large its part
/// grows.
const ROW_GROUP_BYTES: usize = 4 * 1024 * 1024;

/// A row group is closed at this many rows, so that a reader who wants a few tasks can skip most.
const ROW_GROUP_ROWS: usize = 128 * 1024;

/// A published part: a Parquet file that readers see.
#[derive(Debug, Clone)]
pub struct Part {
    /// Table that it belongs to.
    pub table: String,
    /// Its path, as a person names it.
    pub path: String,
    /// Number of rows.
    pub num_rows: u64,
    /// Size of the file in bytes.
    pub num_bytes: u64,
}

/// Returns the name of the part of `table` that `segment` becomes, relative to the run.
pub fn part_name(table: &str, segment: impl Display) -> String {
    format!("{table}/{segment}.parquet")
}

/// Writes one Parquet file, invisible until it is finished.
pub struct PartWriter {
    writer: AsyncArrowWriter<Upload>,
    run: RunStore,
    table: String,
    name: String,
    rows: u64,
}

impl PartWriter {
    /// Begins the part `name` (relative to the run) of a table.
    ///
    /// # Errors
    /// The schema can't be written as Parquet.
    pub fn new(
        run: &RunStore,
        table: &str,
        name: &str,
        schema: SchemaRef,
    ) -> Result<Self, StoreError> {
        let sink = Upload::new(run, name);
        // Without the Arrow schema in the file every reader sees plain Parquet types; with it, some fail on the views
        // that we hold text in.
        let options = ArrowWriterOptions::new()
            .with_properties(properties())
            .with_skip_arrow_metadata(true);
        let writer = AsyncArrowWriter::try_new_with_options(sink, schema, options);
        let writer = writer.map_err(|source| StoreError::Parquet {
            object: run.display(name),
            source,
        })?;
        Ok(Self {
            writer,
            run: run.clone(),
            table: table.to_owned(),
            name: name.to_owned(),
            rows: 0,
        })
    }

    /// Adds rows.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<(), StoreError> {
        self.rows += batch.num_rows() as u64;
        let written = async {
            self.writer.write(batch).await?;
            if self.writer.in_progress_size() >= ROW_GROUP_BYTES {
                self.writer.flush().await?;
            }
            Ok(())
        };
        let written: Result<(), ParquetError> = written.await;
        written.map_err(|source| self.failed(source))
    }

    /// Publishes the part.
    ///
    /// # Errors
    /// The store failed; then nothing is visible.
    pub async fn finish(mut self) -> Result<Part, StoreError> {
        if let Err(source) = self.writer.finish().await {
            return Err(self.failed(source));
        }
        let num_bytes = self.writer.bytes_written() as u64;
        let path = self.run.display(&self.name);
        Ok(Part {
            table: self.table,
            path,
            num_rows: self.rows,
            num_bytes,
        })
    }

    /// Abandons the part; nothing of it stays.
    pub async fn abandon(self) {
        self.writer.into_inner().abort().await;
    }

    fn failed(&self, source: ParquetError) -> StoreError {
        let object = self.run.display(&self.name);
        match of_store(source) {
            Ok(source) => StoreError::object("write", object, source),
            Err(source) => StoreError::Parquet { object, source },
        }
    }
}

/// Returns the store's error within a Parquet error; `Err` if the encoding failed.
fn of_store(error: ParquetError) -> Result<object_store::Error, ParquetError> {
    match error {
        ParquetError::External(inner) => match inner.downcast::<object_store::Error>() {
            Ok(store) => Ok(*store),
            // The writer wraps the error of its sink once more.
            Err(inner) => match inner.downcast::<ParquetError>() {
                Ok(inner) => of_store(*inner),
                Err(inner) => Err(ParquetError::External(inner)),
            },
        },
        other => Err(other),
    }
}

/// Begins a Parquet file for any reader: with ZSTD, and without Arrow's own copy of the schema.
///
/// # Errors
/// Parquet has no such type, or the output fails.
pub(crate) fn plain_parquet<W: Write + Send>(
    output: W,
    schema: SchemaRef,
) -> Result<ArrowWriter<W>, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(compression())
        .build();
    let options = ArrowWriterOptions::new()
        .with_properties(properties)
        .with_skip_arrow_metadata(true);
    ArrowWriter::try_new_with_options(output, schema, options)
}

/// On answers, level 2 takes as long as 1 and leaves a sixth less. LZ4 is hardly faster and leaves twice as much.
fn compression() -> Compression {
    Compression::ZSTD(ZstdLevel::try_new(2).unwrap_or_default())
}

fn properties() -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(compression())
        .set_created_by(format!("rollstream {}", env!("CARGO_PKG_VERSION")))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS));
    for text in [schema::RESULT, schema::INFO, schema::REQUEST] {
        let column = ColumnPath::from(text);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_statistics_enabled(column, EnabledStatistics::None);
    }
    // Nearly all values of these differ: a dictionary would list them all, and be abandoned when it is full.
    for distinct in [
        schema::DISPATCHED_AT,
        schema::FIRST_BYTE_AT,
        schema::FINISHED_AT,
        schema::STARTED_AT,
        schema::PERMIT_WAIT_MS,
        schema::SERVER_MS,
        schema::CLIENT_MS,
        schema::LATENCY_MS,
    ] {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(distinct), false);
    }
    properties.build()
}

/// Replaces parts of a table by others, all at once.
///
/// It fills a second directory of the table with the new parts and all that stay, then exchanges the two in one atomic
/// step: nobody who lists the table sees a row twice or misses one. Whoever listed it before can still read what was
/// replaced, until this is dropped. Needs a lock of the whole run, and a local disk: an object store has no such step.
#[derive(Debug)]
pub struct PartExchange {
    disk: LocalStore,
}

impl PartExchange {
    /// Begins to replace parts of a run; `None` if the run is not on a local disk.
    ///
    /// # Errors
    /// The leftovers of a process that died can't be removed.
    pub fn begin(run: &RunStore) -> Result<Option<Self>, StoreError> {
        let Some(disk) = run.disk().cloned() else {
            return Ok(None);
        };
        let compacted = Self { disk };
        compacted.clear()?;
        Ok(Some(compacted))
    }

    /// Name of a new part, relative to the run, until it is published.
    pub fn name(&self, table: &str, segment: SegmentName) -> String {
        format!("{COMPACTED}/{}", part_name(table, segment))
    }

    /// Replaces the parts of some segments by the new parts of the table. Says whether it did: not every file system
    /// can. If not, nothing changes.
    pub async fn publish(
        &self,
        table: &str,
        replaced: &[SegmentName],
        writer: &Writer,
    ) -> Result<bool, StoreError> {
        let replaced = replaced.iter().map(|segment| part_name(table, segment));
        let root = self.disk.root();
        let replaced: HashSet<PathBuf> = replaced.map(|name| root.join(name)).collect();
        let (old, new) = (root.join(table), root.join(COMPACTED).join(table));
        let _permit = writer.permit().await;
        let exchange = || {
            fs::set_permissions(&new, fs::metadata(&old)?.permissions())?;
            for entry in fs::read_dir(&old)? {
                let entry = entry?;
                if !replaced.contains(&entry.path()) {
                    fs::hard_link(entry.path(), new.join(entry.file_name()))?;
                }
            }
            sync_directory(&new)?;
            renameat_with(CWD, &old, CWD, &new, RenameFlags::EXCHANGE)?;
            sync_directory(root)
        };
        match exchange() {
            Ok(()) => Ok(true),
            // The file system has no hard links, or no atomic exchange.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput
                        | ErrorKind::Unsupported
                        | ErrorKind::PermissionDenied
                        | ErrorKind::CrossesDevices
                ) =>
            {
                Ok(false)
            }
            Err(source) => Err(StoreError::file("replace small parts in", &old)(source)),
        }
    }

    /// Removes parts that were replaced or never published.
    fn clear(&self) -> Result<(), StoreError> {
        let path = self.disk.root().join(COMPACTED);
        remove_all(&path)?;
        // A directory that is not empty stays.
        let _ = path.parent().map(fs::remove_dir);
        Ok(())
    }
}

impl Drop for PartExchange {
    fn drop(&mut self) {
        // On an error, the next writer removes what is left.
        let _ = self.clear();
    }
}

/// Writes a file of any kind and size in a run, or beside one, invisible until it is finished.
pub struct Document {
    place: RunStore,
    name: String,
    file: BufWriter<File>,
    /// The file, if it goes to a local disk: it is written there, so that nothing is copied. Otherwise it is uploaded.
    staged: Option<Staged>,
}

impl Document {
    /// Begins the file `name`.
    ///
    /// # Errors
    /// No temporary file can be created.
    pub fn create(place: &RunStore, name: &str) -> Result<Self, StoreError> {
        let staged = place.disk().map(LocalStore::stage).transpose();
        let staged = staged.map_err(place.failed("write", name))?;
        let file = match &staged {
            Some(staged) => staged.file().try_clone(),
            None => tempfile::tempfile(),
        };
        let file = file.map_err(StoreError::file("write into", &env::temp_dir()))?;
        Ok(Self {
            place: place.clone(),
            name: name.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
            staged,
        })
    }

    /// Puts the file in its place, and returns how a person names it.
    ///
    /// # Errors
    /// The store failed; then nothing is visible.
    pub async fn finish(self) -> Result<String, StoreError> {
        let shown = self.place.display(&self.name);
        let failed = StoreError::file("write", &shown);
        let file = self.file.into_inner();
        let mut file = file.map_err(|error| failed(error.into_error()))?;
        if let Some(staged) = self.staged {
            let published = staged.publish(&relative_path(&self.name), &PutMode::Overwrite);
            published.map_err(self.place.failed("write", &self.name))?;
        } else {
            file.rewind().map_err(&failed)?;
            let file = tokio::fs::File::from_std(file);
            self.place.upload(&self.name, file).await?;
        }
        Ok(self.place.display(&self.name))
    }
}

impl Write for Document {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::ROLLOUTS;

    use super::*;

    #[tokio::test]
    async fn what_was_listed_can_be_read_until_the_end_and_is_not_listed_again() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let writer = Writer::unlocked(1);
        let segments: Vec<SegmentName> = (0..4).map(|_| writer.segment(0)).collect();
        let parts: Vec<String> = segments
            .iter()
            .map(|segment| part_name(ROLLOUTS, segment))
            .collect();
        for part in &parts[..3] {
            run.put(part, part.clone()).await.unwrap();
        }
        let listed = async || {
            let listed = run.parts(ROLLOUTS).await.unwrap();
            let names = listed.iter().map(|path| run.display_path(path));
            names.collect::<Vec<_>>()
        };
        let shown = |parts: &[&String]| {
            let shown = parts.iter().map(|part| run.display(part));
            shown.collect::<Vec<_>>()
        };

        let compacted = PartExchange::begin(&run).unwrap().unwrap();
        let new = compacted.name(ROLLOUTS, segments[3]);
        run.put(&new, "new").await.unwrap();
        assert_eq!(listed().await, shown(&[&parts[0], &parts[1], &parts[2]]));
        let replaced = compacted.publish(ROLLOUTS, &segments[..2], &writer);
        assert!(replaced.await.unwrap());
        assert_eq!(listed().await, shown(&[&parts[2], &parts[3]]));
        for part in &parts[..3] {
            assert_eq!(run.get(part).await.unwrap().unwrap(), part.as_bytes());
        }
        assert_eq!(run.get(&parts[3]).await.unwrap().unwrap(), "new");

        drop(compacted);
        assert_eq!(listed().await, shown(&[&parts[2], &parts[3]]));
        assert_eq!(run.get(&parts[0]).await.unwrap(), None);
        assert_eq!(
            run.get(&parts[2]).await.unwrap().unwrap(),
            parts[2].as_bytes()
        );
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
