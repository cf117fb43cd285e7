//! [`RunTables`]: the tables of one run at one moment, from its parts and its journal.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DFSchemaRef, Result, ToDFSchema};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{EmptyRelation, LogicalPlan};
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{ParquetReadOptions, SessionContext, lit};
use futures::TryStreamExt;
use object_store::ObjectMeta;
use object_store::path::Path;

use super::register_store;
use crate::error::Error;
use crate::gym::GYM_05;
use crate::schema;
use crate::store::segment::{Committed, Decisions, Key, Ledger, Row};
use crate::store::{
    CheckedParts, JournalFile, LockScope, LoggedCalls, OpenSegment, RunRecord, RunStore, Scratch,
    SegmentName, StoreError, checkpoint,
};

/// The tables of one run at one moment: landed parts, and the further rows of the journal. Each rollout is
/// in them once, whatever collectors do meanwhile.
#[derive(Debug, Clone)]
pub struct RunTables {
    run: RunStore,
    parts: BTreeMap<&'static str, CheckedParts>,
    segments: Vec<JournalRows>,
}

/// A segment of the journal, and which of its rows count.
#[derive(Debug, Clone)]
pub struct JournalRows {
    /// The segment at that moment.
    pub segment: OpenSegment,
    /// The decisions which of its rows count.
    pub decisions: Arc<Decisions>,
}

impl RunTables {
    /// Looks at a run, which another machine may be collecting: its journal there is read from the
    /// copies that the collector makes from time to time.
    pub async fn look(run: &RunStore) -> Result<Self> {
        Self::look_for(run, LockScope::Run).await
    }

    /// Looks at what a share of a run may have rows in: without the journals and parts of other shares, which may be
    /// hundreds that are at work.
    pub async fn look_for(run: &RunStore, share: LockScope) -> Result<Self> {
        let run = RunRecord::identify(run).await?;
        // The journal comes first. A segment that becomes a part afterwards is seen as that part, and then left out here;
        // otherwise its rows would be missed.
        let own = JournalFile::segments(run.journal_dir())?;
        let mut names: Vec<SegmentName> = own.iter().map(JournalFile::name).collect();
        let has_copies = run.local_path().is_none();
        if has_copies {
            let listed = checkpoint::list(&run).await?;
            names.extend(listed.iter().map(|copy| copy.name));
        }
        // What a writer of more than this share left, those of other shares may have written again.
        let is_wider = |name: &SegmentName| name.scope != share && name.scope.overlaps(share);
        let share = if names.iter().any(is_wider) {
            LockScope::Run
        } else {
            share
        };
        let is_needed = |name: SegmentName| name.scope.overlaps(share);
        let needed = own.into_iter().filter(|segment| is_needed(segment.name()));
        let mut segments = open_all(needed)?;
        if has_copies {
            add_copies(&run, is_needed, &mut segments).await?;
        }
        // A segment's part of `attempts` is published last. So these are listed first: if it is there, all other parts
        // of the segment are found, too.
        let tables = [
            schema::ATTEMPTS,
            schema::CALLS,
            schema::ROLLOUTS,
            schema::TASKS,
        ];
        let mut tables = Self::without_journal(run, &tables, share).await?;
        tables.segments = tables.decide(segments).await?;
        Ok(tables)
    }

    /// Looks at the tasks of a run, and at nothing else.
    pub async fn tasks(run: &RunStore) -> Result<Self> {
        Self::without_journal(run.clone(), &[schema::TASKS], LockScope::Run).await
    }

    async fn without_journal(
        run: RunStore,
        tables: &[&'static str],
        share: LockScope,
    ) -> Result<Self> {
        let mut parts = BTreeMap::new();
        let mut known = Vec::new();
        for table in tables {
            let of_table = run.checked_parts_for(table, share).await?;
            for part in &of_table.damaged {
                run.tell(|| {
                    format!(
                        "{} is damaged, and its rows are missing; `rollstream resume {}` keeps it aside and repairs what \
                         it can",
                        run.display_path(part),
                        run.display("")
                    )
                });
            }
            // Tasks may be written anew.
            if *table != schema::TASKS {
                known.extend(of_table.whole.iter().cloned());
            }
            parts.insert(*table, of_table);
        }
        Ok(Self {
            run: run.knowing(known),
            parts,
            segments: Vec::new(),
        })
    }

    /// Returns the run.
    pub fn run(&self) -> &RunStore {
        &self.run
    }

    /// Returns the segments of the journal, landed or not.
    pub fn segments(&self) -> &[JournalRows] {
        &self.segments
    }

    /// Returns the parts of a table that can be read.
    pub fn parts(&self, table: &str) -> &[ObjectMeta] {
        self.parts.get(table).map_or(&[], |parts| &parts.whole)
    }

    /// Returns the damaged parts, whose rows are missing.
    pub fn damaged(&self) -> impl Iterator<Item = &Path> {
        self.parts.values().flat_map(|parts| &parts.damaged)
    }

    /// Whether any attempt is on record, or in the journal.
    pub fn has_attempts(&self) -> bool {
        !self.parts(schema::ATTEMPTS).is_empty() || !self.segments.is_empty()
    }

    /// Registers `tasks`, `rollouts`, `attempts` and `calls`.
    pub async fn register(&self, session: &SessionContext) -> Result<()> {
        for table in schema::TABLES {
            session.register_table(table, self.table(session, table).await?.into_view())?;
        }
        Ok(())
    }

    /// Plans one of the tables.
    pub async fn table(&self, session: &SessionContext, table: &'static str) -> Result<DataFrame> {
        register_store(session, &self.run);
        let schema = match table {
            schema::TASKS => schema::tasks(),
            schema::ROLLOUTS => schema::rollouts(),
            schema::CALLS => schema::calls(),
            _ => schema::attempts(),
        };
        if let (schema::TASKS, Some(parts)) = (table, self.parts.get(table))
            && let Some(part) = parts.damaged.first()
        {
            let place = self.run.display("");
            let part = self.run.display_path(part);
            return Err(StoreError::DamagedTasks { place, part }.into());
        }
        let parts = self.parts(table);
        let mut frames = Vec::new();
        if !parts.is_empty() {
            frames.push(scan(session, &self.run, paths(parts), &schema)?);
        }
        if table != schema::TASKS {
            let finished = self.parts(schema::ATTEMPTS).iter().chain(parts);
            let landed: HashSet<SegmentName> = names(finished).collect();
            let journal: Vec<Arc<dyn PartitionStream>> = self
                .segments
                .iter()
                .filter(|rows| !landed.contains(&rows.segment.name()))
                .map(|rows| {
                    let (rows, schema) = (rows.clone(), Arc::clone(&schema));
                    Arc::new(JournalStream {
                        rows,
                        table,
                        schema,
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
        let Some(all) = union_all(frames)? else {
            return Ok(no_rows(session, schema.to_dfschema_ref()?));
        };
        let masks = self.run.rules().unwrap_or(&GYM_05).masks;
        if table == schema::ROLLOUTS && !masks {
            return all.with_column(schema::MASKED, lit(false));
        }
        Ok(all)
    }

    /// Decides which rows of the segments count. A segment is checked against parts and segments of writers that took
    /// its writer's place, if any. Its writer knew all earlier ones.
    async fn decide(&self, mut segments: Vec<OpenSegment>) -> Result<Vec<JournalRows>> {
        // The newest writer's rows count first: it may be alive, and does not know the others.
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.name().epoch));
        let names: Vec<SegmentName> = segments.iter().map(OpenSegment::name).collect();
        let committed = self.committed();
        let is_doubtful = |name: &&SegmentName| committed.is_doubtful(**name, &names);
        let doubtful: HashSet<SegmentName> = names.iter().filter(is_doubtful).copied().collect();
        let mut ledger = Ledger::default();
        let mut rows: Vec<Vec<Row>> = vec![Vec::new(); segments.len()];
        if !doubtful.is_empty() {
            for (segment, rows) in segments.iter().zip(&mut rows) {
                let segment = segment.clone();
                let read = SpawnedTask::spawn_blocking(move || rows_of(&segment)).join();
                *rows = read
                    .await
                    .map_err(|error| DataFusionError::External(error.into()))??;
            }
            let of_all = names.iter().zip(&rows);
            let of_doubtful = of_all.filter(|(name, _)| doubtful.contains(name));
            let keys = of_doubtful.flat_map(|(_, rows)| rows).map(|row| row.key);
            let oldest = doubtful.iter().map(|name| name.epoch).min();
            ledger = self
                .ledger(&keys.collect(), oldest.unwrap_or_default())
                .await?;
        }
        let decided = segments.into_iter().zip(rows);
        let decided = decided.map(|(segment, rows)| JournalRows {
            decisions: Arc::new(ledger.decide(rows)),
            segment,
        });
        Ok(decided.collect())
    }

    /// Returns the segments from which the parts were made.
    pub fn committed(&self) -> Committed {
        let answers = self.parts(schema::ROLLOUTS).iter();
        Committed::new(
            names(answers.chain(self.parts(schema::CALLS))),
            names(self.parts(schema::ATTEMPTS)),
        )
    }

    /// Reads the rows of some rollouts from the parts that writers of epoch `oldest` or later committed.
    pub async fn ledger(&self, keys: &HashSet<Key>, oldest: u64) -> Result<Ledger> {
        let session = SessionContext::new_with_config(super::config());
        register_store(&session, &self.run);
        let mut ledger = Ledger::default();
        for (table, schema, at) in [
            (schema::ROLLOUTS, schema::rollouts(), schema::STARTED_AT),
            (schema::ATTEMPTS, schema::attempts(), schema::DISPATCHED_AT),
        ] {
            let is_late = |path: &&Path| {
                let name = SegmentName::of_part(path.as_ref());
                name.map_or(0, |name| name.epoch) >= oldest
            };
            let parts: Vec<&Path> = paths(self.parts(table)).filter(is_late).collect();
            if parts.is_empty() {
                continue;
            }
            let mut columns = vec![
                schema::TASK_INDEX,
                schema::ROLLOUT_INDEX,
                schema::ATTEMPT,
                at,
            ];
            if table == schema::ATTEMPTS {
                columns.push(schema::OUTCOME);
            }
            let frame = scan(&session, &self.run, parts, &schema)?.select_columns(&columns)?;
            let mut batches = frame.execute_stream().await?;
            while let Some(batch) = batches.try_next().await? {
                let rows = Row::of(&batch)?.into_iter();
                let rows = rows.filter(|row| keys.contains(&row.key));
                match table {
                    schema::ROLLOUTS => ledger.add_rollouts(rows),
                    _ => ledger.add_attempts(rows),
                }
            }
        }
        Ok(ledger)
    }
}

/// A table without rows, in words by which the planner leaves out what depends on it.
pub(crate) fn no_rows(session: &SessionContext, schema: DFSchemaRef) -> DataFrame {
    let none = EmptyRelation {
        produce_one_row: false,
        schema,
    };
    DataFrame::new(session.state(), LogicalPlan::EmptyRelation(none))
}

/// Returns the rows of all frames; none if there are no frames.
pub(super) fn union_all(frames: Vec<DataFrame>) -> Result<Option<DataFrame>> {
    let mut frames = frames.into_iter();
    let first = frames.next();
    first
        .map(|first| frames.try_fold(first, DataFrame::union))
        .transpose()
}

fn paths(parts: &[ObjectMeta]) -> impl Iterator<Item = &Path> {
    parts.iter().map(|part| &part.location)
}

fn names<'a>(parts: impl IntoIterator<Item = &'a ObjectMeta>) -> impl Iterator<Item = SegmentName> {
    let names = parts.into_iter();
    names.filter_map(|part| SegmentName::of_part(part.location.as_ref()))
}

fn rows_of(segment: &OpenSegment) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for outcomes in segment.read() {
        rows.extend(Row::of(&outcomes?)?);
    }
    Ok(rows)
}

/// How often a run is read whose parts are replaced meanwhile.
const LOOKS: usize = 4;

/// Reads a run that another process may be finishing: again, if parts that were listed are replaced meanwhile. Whoever reads
/// them then may fail, or miss their rows.
pub(crate) async fn unless_replaced<T, F: Future<Output = Result<T, Error>>>(
    run: &RunStore,
    read: impl Fn() -> F,
) -> Result<T, Error> {
    // In an object store nothing is replaced.
    let looks = run.local_path().map_or(1, |_| LOOKS);
    for _ in 1..looks {
        let before = published(run).await?;
        let read = read().await;
        if before.is_subset(&published(run).await?) {
            return read;
        }
    }
    read().await
}

async fn published(run: &RunStore) -> Result<HashSet<Path>, StoreError> {
    let mut parts = HashSet::new();
    for table in schema::TABLES {
        parts.extend(run.parts(table).await?);
    }
    Ok(parts)
}

/// Opens segments on this machine. A segment that disappears meanwhile has become parts.
fn open_all(
    segments: impl IntoIterator<Item = JournalFile>,
) -> Result<Vec<OpenSegment>, StoreError> {
    let mut opened = Vec::new();
    for segment in segments {
        match segment.open() {
            Ok(open) => opened.push(open),
            Err(_) if !segment.path().exists() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}

/// Adds the copies in the store that are longer than the segments of this machine.
async fn add_copies(
    run: &RunStore,
    is_needed: impl Fn(SegmentName) -> bool,
    segments: &mut Vec<OpenSegment>,
) -> Result<(), StoreError> {
    // An open file can be read after its directory is removed.
    let of_all = std::env::temp_dir();
    let copies = Scratch::new().map_err(StoreError::file("create a directory in", &of_all))?;
    checkpoint::fetch(run, copies.path(), is_needed).await?;
    for copy in JournalFile::segments(copies.path())? {
        let copy = copy.open()?;
        let own = segments
            .iter_mut()
            .find(|segment| segment.name() == copy.name());
        match own {
            Some(own) if own.num_bytes() >= copy.num_bytes() => {}
            Some(own) => *own = copy,
            None => segments.push(copy),
        }
    }
    Ok(())
}

/// Reads the calls that the collectors of this machine noted before they sent them; none if there are no such
/// collectors. Read them before the tables, so that no ended call counts as in flight.
pub async fn dispatches(run: &RunStore) -> Result<Option<MemTable>> {
    let run = RunRecord::identify(run).await?;
    let logs = JournalFile::dispatch_logs(run.journal_dir())?;
    let mut batches = Vec::new();
    for log in &logs {
        batches.extend(LoggedCalls::read(log)?.dispatches);
    }
    if logs.is_empty() {
        return Ok(None);
    }
    MemTable::try_new(schema::dispatches(), vec![batches]).map(Some)
}

/// Plans to read one Parquet file of a run, whose schema is known.
pub fn part(
    session: &SessionContext,
    run: &RunStore,
    name: &str,
    schema: &SchemaRef,
) -> Result<DataFrame> {
    register_store(session, run);
    scan(session, run, [&run.path(name)], schema)
}

/// Plans to read one Parquet file of a run, whose schema is its own.
pub async fn any_part(session: &SessionContext, run: &RunStore, name: &str) -> Result<DataFrame> {
    register_store(session, run);
    let url = run.url(&run.path(name));
    session
        .read_parquet(url.as_str(), ParquetReadOptions::default())
        .await
}

pub(super) fn scan<'a>(
    session: &SessionContext,
    run: &RunStore,
    parts: impl IntoIterator<Item = &'a Path>,
    schema: &SchemaRef,
) -> Result<DataFrame> {
    let urls: Result<Vec<_>> = parts
        .into_iter()
        .map(|path| ListingTableUrl::try_new(run.url(path), None))
        .collect();
    let options =
        ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
    let config = ListingTableConfig::new_with_multi_paths(urls?)
        .with_listing_options(options)
        .with_schema(Arc::clone(schema));
    session.read_table(Arc::new(ListingTable::try_new(config)?))
}

/// Rows of a journal segment, as rows of the table that they will land in.
#[derive(Debug)]
struct JournalStream {
    rows: JournalRows,
    table: &'static str,
    schema: SchemaRef,
}

impl PartitionStream for JournalStream {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (rows, table) = (self.rows.clone(), self.table);
        let mut builder = RecordBatchReceiverStream::builder(Arc::clone(&self.schema), 2);
        let output = builder.tx();
        builder.spawn_blocking(move || {
            for outcomes in rows.segment.read() {
                let rows = outcomes
                    .map_err(DataFusionError::from)
                    .and_then(|outcomes| Ok(rows.decisions.rows_of(table, &outcomes)?));
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
