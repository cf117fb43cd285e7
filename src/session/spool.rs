//! [`Spool`]: tables that are computed once and read several times.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::logical_expr::SortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{DataFrame, SessionContext, ident};
use futures::TryStreamExt;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use url::Url;

use crate::store::Scratch;

/// Rows of a row group: few enough that one of them is no load, also where a row is a list of a
/// thousand scores.
const GROUP_ROWS: usize = 16 * 1024;
/// Bytes of a row group, for rows that are long texts.
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// Batches that a query computes ahead of its reader, at most.
pub(crate) const AHEAD: usize = 2;

/// Returns the columns that the rows of a plan are sorted by; none if it has several partitions.
fn order(plan: &dyn ExecutionPlan) -> Vec<SortExpr> {
    let sorted = plan.output_ordering().into_iter().flatten();
    let columns = sorted.map_while(|key| {
        let column = key.expr.downcast_ref::<Column>()?;
        let options = key.options;
        Some(ident(column.name()).sort(!options.descending, options.nulls_first))
    });
    match plan.output_partitioning().partition_count() {
        1 => columns.collect(),
        _ => Vec::new(),
    }
}

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
    pub fn new() -> Result<Self> {
        let directory = Scratch::new()?;
        Ok(Self { directory })
    }

    /// Computes a query's rows and makes them known to a session as a table, in the place of one that is
    /// called so. The session need not be the one that computes them. It knows by what columns they are sorted.
    ///
    /// # Errors
    /// The rows cannot be computed, or the file not be written.
    pub async fn keep(&self, ctx: &SessionContext, name: &str, rows: DataFrame) -> Result<()> {
        let mut file = self.begin(name, Arc::new(rows.schema().as_arrow().clone()))?;
        let context = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await?;
        let order = order(plan.as_ref());
        // The next rows are computed while some are written.
        let mut rows = spawn_buffered(execute_stream(plan, context)?, AHEAD);
        while let Some(batch) = rows.try_next().await? {
            file.write(&batch)?;
        }
        file.register_sorted(ctx, order)
    }

    /// Begins a table whose rows come as they are found.
    ///
    /// # Errors
    /// There is no place for the file.
    pub fn begin(&self, name: &str, schema: SchemaRef) -> Result<SpoolFile> {
        let mut file = tempfile::Builder::new();
        let file = file.prefix(name).suffix(".parquet").disable_cleanup(true);
        let (file, path) = file.tempfile_in(self.directory.path())?.into_parts();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_max_row_group_bytes(Some(GROUP_BYTES))
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
    pub fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.writer.write(rows)?)
    }

    /// Makes the table known to a session.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn register(self, ctx: &SessionContext) -> Result<()> {
        self.register_sorted(ctx, Vec::new())
    }

    fn register_sorted(self, ctx: &SessionContext, order: Vec<SortExpr>) -> Result<()> {
        let Self {
            name,
            path,
            schema,
            writer,
        } = self;
        writer.close()?;
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
            .with_file_sort_order(vec![order]);
        // A path that is read as text could be taken for a pattern.
        let url = Url::from_file_path(&path)
            .map_err(|()| exec_datafusion_err!("'{}' is not absolute", path.display()))?;
        let config = ListingTableConfig::new(ListingTableUrl::try_new(url, None)?)
            .with_listing_options(options)
            .with_schema(schema);
        ctx.deregister_table(&name)?;
        ctx.register_table(&name, Arc::new(ListingTable::try_new(config)?))?;
        Ok(())
    }
}
