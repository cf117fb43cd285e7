//! The life of a segment: open (a writer appends rows to its file), sealed (nothing is added any more), committed
//! (its rows are in the tables, and the file goes).
//!
//! A rollout counts once its row is in a segment. [`SegmentName`] says who wrote a segment, and is the only parser of
//! such names; [`SegmentWriter`], [`Segment`] and [`OpenSegment`] are its file; a [`TableSink`] commits it;
//! [`commit`] joins them. The [`Ledger`] decides which rows count where several writers may have
//! written the same rollouts: landing, recovery, checkpoints and readers all ask here.

mod committed;
mod file;
mod frame;
mod ledger;
mod name;
mod sink;
#[cfg(test)]
mod tests;

pub use committed::Committed;
pub use file::{Batches, OpenSegment, Segment, SegmentWriter, Unsynced};
pub(in crate::store) use file::{files, set_aside};
pub use frame::Damage;
pub use ledger::{Decisions, Key, Ledger, Row, only};
pub use name::{NotASegment, SegmentName};
pub use sink::{ParquetSink, TABLES, TableSink, Transaction};

use super::{Part, StoreError};

/// Commits the rows of a segment under the name `to`, as `decisions` say; gives what was published and what of the
/// segment is damaged. The file stays.
///
/// # Errors
/// The segment can't be read, or the store failed. To do it again completes it.
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
