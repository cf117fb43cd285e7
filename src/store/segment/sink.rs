//! [`ParquetSink`]: puts the rows of segments into the tables of a run.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use super::{Damage, Decisions, OpenSegment, SegmentName};
use crate::schema;
use crate::store::{Part, PartWriter, RunStore, StoreError, Writer, part_name};

/// The tables that a segment has parts of, in the order in which they are published.
pub const TABLES: [&str; 3] = [schema::ROLLOUTS, schema::CALLS, schema::ATTEMPTS];

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

    /// Commits the rows of a segment under the name `to`, as `decisions` say, and returns what was published and what of
    /// the segment is damaged. The file stays.
    ///
    /// # Errors
    /// The segment can't be read, or the store failed. To commit it again completes it.
    pub async fn commit(
        &self,
        segment: &OpenSegment,
        to: SegmentName,
        decisions: &Decisions,
    ) -> Result<(Vec<Part>, Vec<Damage>), StoreError> {
        let mut transaction = self.begin(to).await?;
        let mut batches = segment.read();
        for outcomes in &mut batches {
            let written = match outcomes {
                Ok(outcomes) => transaction.write(&outcomes, decisions).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                abandon(transaction.tables).await;
                return Err(error);
            }
        }
        let parts = transaction.commit().await?;
        Ok((parts, batches.damages().to_vec()))
    }

    /// Begins to write the rows of a segment. Nothing is visible before they are committed.
    pub async fn begin(&self, segment: SegmentName) -> Result<Transaction, StoreError> {
        let mut tables = Vec::new();
        for table in TABLES {
            let is_published = self.run.exists(&part_name(table, segment)).await?;
            tables.push(if is_published {
                Table::Published
            } else {
                Table::Empty
            });
        }
        Ok(Transaction {
            sink: self.clone(),
            segment,
            tables,
        })
    }

    /// Whether all that a segment holds is committed.
    pub async fn is_committed(&self, segment: SegmentName) -> Result<bool, StoreError> {
        self.run.exists(&part_name(schema::ATTEMPTS, segment)).await
    }
}

/// The rows of one segment on their way into the tables.
pub struct Transaction {
    sink: ParquetSink,
    segment: SegmentName,
    /// In the order of [`TABLES`].
    tables: Vec<Table>,
}

/// A part that a segment becomes.
enum Table {
    /// It was there before.
    Published,
    Empty,
    Open(Box<PartWriter>),
}

impl Transaction {
    /// Adds the outcomes that count, and returns how many attempts these are.
    pub async fn write(
        &mut self,
        outcomes: &RecordBatch,
        decisions: &Decisions,
    ) -> Result<usize, StoreError> {
        let segment = self.segment;
        let mut num_rows = 0;
        for (table, name) in self.tables.iter_mut().zip(TABLES) {
            let rows = decisions.rows_of(name, outcomes);
            let rows = rows.map_err(|source| StoreError::Rows { segment, source })?;
            // Those of `attempts` come last.
            num_rows = rows.num_rows();
            if num_rows == 0 {
                continue;
            }
            if let Table::Empty = table {
                let part = part_name(name, segment);
                let writer = PartWriter::new(&self.sink.run, name, &part, rows.schema())?;
                *table = Table::Open(Box::new(writer));
            }
            if let Table::Open(writer) = table {
                writer.write(&rows).await?;
            }
        }
        Ok(num_rows)
    }

    /// Makes the rows count, and returns what was published.
    ///
    /// # Errors
    /// The store failed. What is published by then stays; to begin and commit the same segment again completes it.
    pub async fn commit(self) -> Result<Vec<Part>, StoreError> {
        let writer = &self.sink.writer;
        let _permit = writer.permit().await;
        let mut parts = Vec::new();
        let mut tables = self.tables.into_iter();
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
}

async fn abandon(tables: impl IntoIterator<Item = Table>) {
    for table in tables {
        if let Table::Open(writer) = table {
            writer.abandon().await;
        }
    }
}
