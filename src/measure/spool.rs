//! [`Spool`]: tables that are computed once and read several times.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::prelude::{DataFrame, SessionContext, col};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use url::Url;

use super::error::MeasureError;
use super::families::MetricTable;
use crate::store::Scratch;

/// Rows of a row group: few enough that one of them is no load, also where a row is a list of a
/// thousand scores.
const GROUP_ROWS: usize = 16 * 1024;

/// Temporary files that hold tables of a session. Dropping it removes them.
#[derive(Debug)]
pub struct Spool {
    directory: Scratch,
}

impl Spool {
    /// A spool without tables.
    ///
    /// # Errors
    /// There is no place for temporary files.
    pub fn new() -> Result<Self, MeasureError> {
        let directory = Scratch::new().map_err(MeasureError::Write)?;
        Ok(Self { directory })
    }

    /// Computes a table and makes it known to a session under its name, in the place of one that is
    /// called so. The session need not be the one that computes it. `order` are the columns that it
    /// is sorted by.
    ///
    /// # Errors
    /// The table cannot be computed, or the file not be written.
    pub async fn keep(
        &self,
        ctx: &SessionContext,
        table: MetricTable,
        order: &[&str],
    ) -> Result<(), MeasureError> {
        let name = table.name().to_owned();
        let schema = table.schema();
        let mut file = self.begin(&name, schema)?;
        let mut rows = table.stream().await?;
        while let Some(batch) = rows.try_next().await? {
            file.write(&batch)?;
        }
        file.register(ctx, order)
    }

    /// Computes a query's rows and makes them known to a session as a table.
    ///
    /// # Errors
    /// The rows cannot be computed, or the file not be written.
    pub async fn keep_frame(
        &self,
        ctx: &SessionContext,
        name: &str,
        frame: DataFrame,
    ) -> Result<(), MeasureError> {
        let table = MetricTable::built_in(name, frame);
        self.keep(ctx, table, &[]).await
    }

    /// Begins a table whose rows come as they are found.
    ///
    /// # Errors
    /// There is no place for the file.
    pub fn begin(&self, name: &str, schema: SchemaRef) -> Result<SpoolFile, MeasureError> {
        let mut file = tempfile::Builder::new();
        let file = file.prefix(name).suffix(".parquet").disable_cleanup(true);
        let file = file.tempfile_in(self.directory.path());
        let (file, path): (File, _) = file.map_err(MeasureError::Write)?.into_parts();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        Ok(SpoolFile {
            name: name.to_owned(),
            path: path.to_path_buf(),
            schema,
            writer: writer?,
        })
    }
}

/// A table of a [`Spool`] in the making.
#[derive(Debug)]
pub struct SpoolFile {
    name: String,
    path: PathBuf,
    schema: SchemaRef,
    writer: ArrowWriter<File>,
}

impl SpoolFile {
    /// Adds rows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<(), MeasureError> {
        Ok(self.writer.write(rows)?)
    }

    /// Makes the table known to a session, sorted by the columns `order`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn register(self, ctx: &SessionContext, order: &[&str]) -> Result<(), MeasureError> {
        let Self {
            name,
            path,
            schema,
            writer,
        } = self;
        writer.close()?;
        let order = order.iter().map(|name| col(*name).sort(true, false));
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
            .with_file_sort_order(vec![order.collect()]);
        // A path that is read as text could be taken for a pattern.
        let url = Url::from_file_path(&path).map_err(|()| {
            DataFusionError::Execution(format!("'{}' is not absolute", path.display()))
        })?;
        let config = ListingTableConfig::new(ListingTableUrl::try_new(url, None)?)
            .with_listing_options(options)
            .with_schema(schema);
        ctx.deregister_table(&name)?;
        ctx.register_table(&name, Arc::new(ListingTable::try_new(config)?))?;
        Ok(())
    }
}
