use std::fmt::Display;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parquet::arrow::AsyncArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::upload::Upload;
use super::{RunStore, StoreError};
use crate::schema;

/// A row group is closed at this many encoded bytes: what a writer holds in memory is bounded by
/// it, however large its part grows.
const ROW_GROUP_BYTES: usize = 4 * 1024 * 1024;

/// A row group is closed at this many rows, so that a reader who wants a few tasks can skip most.
const ROW_GROUP_ROWS: usize = 128 * 1024;

/// A part that is published.
#[derive(Debug, Clone)]
pub struct Part {
    /// Table that it belongs to.
    pub table: String,
    /// As a person names it.
    pub path: String,
    /// Rows.
    pub num_rows: u64,
    /// Bytes of the file.
    pub num_bytes: u64,
}

/// Name of the part of `table` that `segment` becomes, relative to the run.
pub fn part_name(table: &str, segment: impl Display) -> String {
    format!("{table}/{segment}.parquet")
}

/// Writes one Parquet file, which is visible when it is finished and not before.
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
        // Without the Arrow schema in the file every reader sees plain Parquet types; with it,
        // some fail on the views that we hold text in.
        let options = ArrowWriterOptions::new()
            .with_properties(properties())
            .with_skip_arrow_metadata(true);
        let writer =
            AsyncArrowWriter::try_new_with_options(sink, schema, options).map_err(|source| {
                StoreError::Parquet {
                    object: run.display(name),
                    source,
                }
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
    ///
    /// # Errors
    /// Encoding or the store failed.
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

    /// Gives the part up; nothing of it stays.
    pub async fn abandon(self) {
        self.writer.into_inner().abort().await;
    }

    fn failed(&self, source: ParquetError) -> StoreError {
        let object = self.run.display(&self.name);
        match of_store(source) {
            Ok(source) => StoreError::Object {
                action: "write",
                object,
                source,
            },
            Err(source) => StoreError::Parquet { object, source },
        }
    }
}

/// What the store said, where it was not the encoding that failed.
fn of_store(error: ParquetError) -> Result<object_store::Error, ParquetError> {
    match error {
        ParquetError::External(inner) => match inner.downcast::<object_store::Error>() {
            Ok(store) => Ok(*store),
            // The writer wraps what its sink says once more.
            Err(inner) => match inner.downcast::<ParquetError>() {
                Ok(inner) => of_store(*inner),
                Err(inner) => Err(ParquetError::External(inner)),
            },
        },
        other => Err(other),
    }
}

fn properties() -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(format!("rollstream {}", env!("CARGO_PKG_VERSION")))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS));
    for text in [schema::RESULT, schema::INFO, schema::REQUEST] {
        let column = ColumnPath::from(text);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_statistics_enabled(column, EnabledStatistics::None);
    }
    // Hardly two of these are equal: a dictionary would list them all, to be given up when it is full.
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
