use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use object_store::path::Path;

use super::register_store;
use crate::outcome::{attempts_of, rollouts_of, turns_of};
use crate::schema;
use crate::store::{
    DispatchLogFile, JournalSegment, OpenSegment, RunStore, Scratch, StoreError, checkpoint,
};

/// The tables of one run as they are at one moment: landed parts, and what the journal holds
/// beyond them. Each rollout is there once, whatever a collector does meanwhile.
#[derive(Debug, Clone)]
pub struct RunTables {
    run: RunStore,
    segments: Vec<OpenSegment>,
}

impl RunTables {
    /// Looks at a run.
    ///
    /// # Errors
    /// The journal can't be read.
    pub fn open(run: &RunStore) -> Result<Self> {
        // The journal comes first. A segment that becomes a part afterwards is seen as that part,
        // and then left out here; the other way round its rows would be missed.
        let segments = JournalSegment::list(run.journal_dir()).map_err(external)?;
        let segments = segments
            .iter()
            .filter_map(|segment| segment.open().ok())
            .collect();
        Ok(Self {
            run: run.clone(),
            segments,
        })
    }

    /// Looks at a run that may be collected on another machine: what its journal holds is then read
    /// from the copies that the collector makes from time to time.
    ///
    /// # Errors
    /// A journal can't be read, or the store failed.
    pub async fn look(run: &RunStore) -> Result<Self> {
        if run.local_path().is_some() {
            return Self::open(run);
        }
        // What is open can be read after the directory has gone.
        let copies = Scratch::new().map_err(|source| {
            external(StoreError::File {
                action: "create a directory in",
                path: std::env::temp_dir(),
                source,
            })
        })?;
        let fetched = checkpoint::fetch(run, copies.path(), |_| true).await;
        fetched.map_err(external)?;
        let mut tables = Self::open(run)?;
        for copy in JournalSegment::list(copies.path()).map_err(external)? {
            let Ok(copy) = copy.open() else { continue };
            let own = tables
                .segments
                .iter_mut()
                .find(|segment| segment.name() == copy.name());
            match own {
                Some(own) if own.num_bytes() >= copy.num_bytes() => {}
                Some(own) => *own = copy,
                None => tables.segments.push(copy),
            }
        }
        Ok(tables)
    }

    /// The run.
    pub(super) fn run(&self) -> &RunStore {
        &self.run
    }

    /// What its journal holds, landed or not.
    pub(super) fn segments(&self) -> &[OpenSegment] {
        &self.segments
    }

    /// Registers `tasks`, `rollouts`, `attempts` and `turns`.
    ///
    /// # Errors
    /// The store can't be listed.
    pub async fn register(&self, session: &SessionContext) -> Result<()> {
        for table in schema::TABLES {
            session.register_table(table, self.table(session, table).await?.into_view())?;
        }
        Ok(())
    }

    /// One of the tables.
    ///
    /// # Errors
    /// The store can't be listed.
    pub async fn table(&self, session: &SessionContext, table: &'static str) -> Result<DataFrame> {
        register_store(session, &self.run);
        let (schema, of_outcomes): (SchemaRef, Option<OfOutcomes>) = match table {
            schema::TASKS => (schema::tasks(), None),
            schema::ROLLOUTS => (schema::rollouts(), Some(rollouts_of)),
            schema::TURNS => (schema::turns(), Some(turns_of)),
            _ => (schema::attempts(), Some(attempts_of)),
        };
        // A segment's part of `attempts` is published last. So these are listed first: where it is
        // there, what else became of the segment is found too.
        let finished = match table {
            schema::ROLLOUTS | schema::TURNS => {
                self.run.parts(schema::ATTEMPTS).await.map_err(external)?
            }
            _ => Vec::new(),
        };
        let parts = self.run.parts(table).await.map_err(external)?;
        let landed: HashSet<&str> = finished
            .iter()
            .chain(&parts)
            .filter_map(|path| path.filename()?.strip_suffix(".parquet"))
            .collect();
        let mut frames = Vec::new();
        if !parts.is_empty() {
            frames.push(scan(session, &self.run, &parts, &schema)?);
        }
        if let Some(of_outcomes) = of_outcomes {
            let journal: Vec<Arc<dyn PartitionStream>> = self
                .segments
                .iter()
                .filter(|segment| !landed.contains(segment.name()))
                .map(|segment| {
                    let (segment, schema) = (segment.clone(), Arc::clone(&schema));
                    Arc::new(JournalStream {
                        segment,
                        schema,
                        of_outcomes,
                    }) as _
                })
                .collect();
            if !journal.is_empty() {
                frames.push(session.read_table(Arc::new(StreamingTable::try_new(
                    Arc::clone(&schema),
                    journal,
                )?))?);
            }
        }
        let mut frames = frames.into_iter();
        let Some(first) = frames.next() else {
            return session.read_batch(RecordBatch::new_empty(schema));
        };
        frames.try_fold(first, DataFrame::union)
    }
}

/// The calls that the collectors of this machine noted before they sent them; none where there are
/// no such collectors. To be read before the tables, so that none counts as in flight that had ended.
///
/// # Errors
/// A log can't be read.
pub fn dispatches(run: &RunStore) -> Result<Option<MemTable>> {
    let logs = DispatchLogFile::list(run.journal_dir()).map_err(external)?;
    let mut batches = Vec::new();
    for log in &logs {
        batches.extend(log.read().map_err(external)?.0);
    }
    match logs.is_empty() {
        true => Ok(None),
        false => MemTable::try_new(schema::dispatches(), vec![batches]).map(Some),
    }
}

/// One Parquet file of a run, whose schema is known.
///
/// # Errors
/// There is no such file.
pub fn part(
    session: &SessionContext,
    run: &RunStore,
    name: &str,
    schema: &SchemaRef,
) -> Result<DataFrame> {
    register_store(session, run);
    scan(session, run, &[run.path(name)], schema)
}

/// One Parquet file of a run, whose schema is its own.
///
/// # Errors
/// There is no such file.
pub async fn any_part(session: &SessionContext, run: &RunStore, name: &str) -> Result<DataFrame> {
    register_store(session, run);
    let url = run.url(&run.path(name));
    session
        .read_parquet(url.as_str(), ParquetReadOptions::default())
        .await
}

pub(super) fn scan(
    session: &SessionContext,
    run: &RunStore,
    parts: &[Path],
    schema: &SchemaRef,
) -> Result<DataFrame> {
    let urls: Result<Vec<_>> = parts
        .iter()
        .map(|path| ListingTableUrl::try_new(run.url(path), None))
        .collect();
    let options =
        ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
    let config = ListingTableConfig::new_with_multi_paths(urls?)
        .with_listing_options(options)
        .with_schema(Arc::clone(schema));
    session.read_table(Arc::new(ListingTable::try_new(config)?))
}

type OfOutcomes = fn(&RecordBatch) -> Result<RecordBatch, ArrowError>;

/// Rows of a journal segment, as rows of the table that they will land in.
#[derive(Debug)]
struct JournalStream {
    segment: OpenSegment,
    schema: SchemaRef,
    of_outcomes: OfOutcomes,
}

impl PartitionStream for JournalStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (segment, of_outcomes) = (self.segment.clone(), self.of_outcomes);
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 2);
        let output = builder.tx();
        builder.spawn_blocking(move || {
            for outcomes in segment.read() {
                let rows = outcomes.and_then(|outcomes| of_outcomes(&outcomes));
                let rows = rows.map_err(DataFusionError::from);
                // A receiver that is gone means that nobody wants the rest.
                if output.blocking_send(rows).is_err() {
                    break;
                }
            }
            Ok(())
        });
        builder.build()
    }
}

pub(super) fn external(error: StoreError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
