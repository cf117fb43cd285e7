//! [`commit`]: puts the rows of a segment into the tables of a run, through a [`TableSink`].

use std::fmt::Debug;
use std::sync::Arc;

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;

use super::{Batches, Damage, Decisions, OpenSegment, SegmentName};
use crate::outcome::{attempts_of, calls_of, rollouts_of};
use crate::schema;
use crate::store::{Part, PartWriter, RunStore, StoreError, Writer, part_name};

/// Commits the rows of a segment under the name `to`, as `decisions` say, and returns what was published and what of the
/// segment is damaged. The file stays.
///
/// # Errors
/// The segment can't be read, or the store failed. To commit it again completes it.
pub async fn commit(
    sink: &dyn TableSink,
    segment: &OpenSegment,
    to: SegmentName,
    decisions: &Decisions,
) -> Result<(Vec<Part>, Vec<Damage>), StoreError> {
    let mut transaction = sink.begin(to).await?;
    let mut batches = segment.read();
    let copied = copy(&mut batches, transaction.as_mut(), to, decisions).await;
    if let Err(error) = copied {
        transaction.abandon().await;
        return Err(error);
    }
    let parts = transaction.commit().await?;
    Ok((parts, batches.damages().to_vec()))
}

async fn copy(
    batches: &mut Batches,
    transaction: &mut dyn Transaction,
    segment: SegmentName,
    decisions: &Decisions,
) -> Result<(), StoreError> {
    let malformed = |source| StoreError::Rows { segment, source };
    for outcomes in batches {
        let outcomes = outcomes?;
        let answers = decisions.answers(&outcomes).map_err(malformed)?;
        let attempts = decisions.attempts(&outcomes).map_err(malformed)?;
        transaction.write(&answers, &attempts).await?;
    }
    Ok(())
}

/// The tables that a segment has parts of, in the order in which they are published.
pub const TABLES: [&str; 3] = [schema::ROLLOUTS, schema::CALLS, schema::ATTEMPTS];

/// Puts rows into the tables of a run, a segment at a time: all of a segment's rows count, or none.
#[async_trait]
pub trait TableSink: Debug + Send + Sync {
    /// Begins to write what a segment holds. Nothing is visible before it is committed.
    async fn begin(&self, segment: SegmentName) -> Result<Box<dyn Transaction>, StoreError>;

    /// Whether all that a segment holds is committed.
    async fn is_committed(&self, segment: SegmentName) -> Result<bool, StoreError>;
}

/// The rows of one segment on their way into the tables.
#[async_trait]
pub trait Transaction: Send {
    /// Adds outcomes: those of `answers` that are `ok` to `rollouts`, all of `attempts` to `attempts` and `calls`.
    ///
    /// # Errors
    /// Encoding or the store failed.
    async fn write(
        &mut self,
        answers: &RecordBatch,
        attempts: &RecordBatch,
    ) -> Result<(), StoreError>;

    /// Makes the rows count, and returns what was published.
    ///
    /// # Errors
    /// The store failed. What is published by then stays; to begin and commit the same segment again completes it.
    async fn commit(self: Box<Self>) -> Result<Vec<Part>, StoreError>;

    /// Abandons the rows; nothing of them is visible.
    async fn abandon(self: Box<Self>);
}

/// Tables of Parquet parts, which bear the name of their segment.
///
/// An answer counts when its part of `rollouts` is there. The part of `attempts` comes last: where it is there, the
/// segment is committed whole. A part is never written twice, but by a resume that makes failed attempts of answers.
#[derive(Debug, Clone)]
pub struct ParquetSink {
    run: RunStore,
    writer: Arc<Writer>,
}

impl ParquetSink {
    /// The tables of a run, for one of its writers.
    pub fn new(run: RunStore, writer: Arc<Writer>) -> Self {
        Self { run, writer }
    }
}

#[async_trait]
impl TableSink for ParquetSink {
    async fn begin(&self, segment: SegmentName) -> Result<Box<dyn Transaction>, StoreError> {
        let mut tables = Vec::new();
        for table in TABLES {
            let part = part_name(table, segment);
            let is_published = self.run.exists(&part).await?;
            tables.push(if is_published {
                Table::Published
            } else {
                Table::Empty(table)
            });
        }
        Ok(Box::new(Parts {
            run: self.run.clone(),
            writer: Arc::clone(&self.writer),
            segment,
            tables,
        }))
    }

    async fn is_committed(&self, segment: SegmentName) -> Result<bool, StoreError> {
        self.run.exists(&part_name(schema::ATTEMPTS, segment)).await
    }
}

struct Parts {
    run: RunStore,
    writer: Arc<Writer>,
    segment: SegmentName,
    tables: Vec<Table>,
}

/// A part that a segment becomes.
enum Table {
    /// It was there before.
    Published,
    Empty(&'static str),
    Open(Box<PartWriter>),
}

#[async_trait]
impl Transaction for Parts {
    async fn write(
        &mut self,
        answers: &RecordBatch,
        attempts: &RecordBatch,
    ) -> Result<(), StoreError> {
        let segment = self.segment;
        let malformed = |source: ArrowError| StoreError::Rows { segment, source };
        let rows = [
            rollouts_of(answers).map_err(malformed)?,
            calls_of(attempts).map_err(malformed)?,
            attempts_of(attempts).map_err(malformed)?,
        ];
        for (table, rows) in self.tables.iter_mut().zip(rows) {
            if rows.num_rows() == 0 {
                continue;
            }
            if let Table::Empty(name) = *table {
                let part = part_name(name, segment);
                let writer = PartWriter::new(&self.run, name, &part, rows.schema())?;
                *table = Table::Open(Box::new(writer));
            }
            if let Table::Open(writer) = table {
                writer.write(&rows).await?;
            }
        }
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<Vec<Part>, StoreError> {
        let Self { writer, tables, .. } = *self;
        let _permit = writer.permit().await;
        let mut parts = Vec::new();
        let mut tables = tables.into_iter();
        while let Some(table) = tables.next() {
            let Table::Open(part) = table else { continue };
            writer.held().await;
            match part.finish().await {
                Ok(part) => parts.push(part),
                Err(error) => {
                    abandon(tables).await;
                    return Err(error);
                }
            }
        }
        Ok(parts)
    }

    async fn abandon(self: Box<Self>) {
        abandon(self.tables.into_iter()).await;
    }
}

async fn abandon(tables: impl Iterator<Item = Table>) {
    for table in tables {
        if let Table::Open(writer) = table {
            writer.abandon().await;
        }
    }
}
