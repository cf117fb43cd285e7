use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringViewArray};
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::runtime::Handle;

use super::compact::compact;
use super::context::LandContext;
use crate::schema;
use crate::store::{JournalSegment, JournalWriter, Part, StoreError};

/// Assumed ratio of a journal's bytes to those of its parts, until one was measured.
const FIRST_RATIO: f64 = 4.0;

/// Bytes of a segment, and the parts that it became.
type Compacted = Result<(u64, Vec<Part>), StoreError>;

/// Takes outcomes to the journal and the journal to parts.
pub(super) struct Lander {
    context: Arc<LandContext>,
    part_size: u64,
    journal: Option<JournalWriter>,
    segments: usize,
    ratio: f64,
    compaction: Option<SpawnedTask<Compacted>>,
    parts: Vec<Part>,
}

impl Lander {
    pub(super) fn new(context: Arc<LandContext>, part_size: u64) -> Self {
        Self {
            context,
            part_size,
            journal: None,
            segments: 0,
            ratio: FIRST_RATIO,
            compaction: None,
            parts: Vec::new(),
        }
    }

    /// Lands all of `input`; gives what was published.
    pub(super) async fn land(
        mut self,
        mut input: SendableRecordBatchStream,
    ) -> Result<RecordBatch> {
        while let Some(outcomes) = input.next().await {
            self.keep(outcomes?).await?;
        }
        self.rotate().await?;
        self.join_compaction().await?;
        landed(&self.parts)
    }

    async fn keep(&mut self, outcomes: RecordBatch) -> Result<()> {
        let mut journal = match self.journal.take() {
            Some(journal) => journal,
            None => self.next_segment()?,
        };
        let (journal, outcomes) = blocking(move || {
            journal.append(&outcomes)?;
            Ok((journal, outcomes))
        })
        .await?;
        self.context.tally.landed(&outcomes);
        let full = journal.num_bytes() as f64 >= self.part_size as f64 * self.ratio;
        self.journal = Some(journal);
        if full { self.rotate().await } else { Ok(()) }
    }

    fn next_segment(&mut self) -> Result<JournalWriter> {
        let name = format!("{}-{:05}", self.context.segments, self.segments);
        self.segments += 1;
        let directory = self.context.run.journal_dir();
        JournalWriter::create(directory, &name, &schema::outcomes()).map_err(external)
    }

    /// Ends the segment and has it made into parts, beside what goes on. One at a time: a store
    /// that is slower than the agents slows the sweep down, and not the disk up.
    async fn rotate(&mut self) -> Result<()> {
        let Some(journal) = self.journal.take() else {
            return Ok(());
        };
        self.join_compaction().await?;
        let bytes = journal.num_bytes();
        let segment: JournalSegment = blocking(move || journal.seal()).await?;
        let (context, runtime) = (Arc::clone(&self.context), Handle::current());
        // Encoding is work for a core of its own: on a thread of the runtime it would hold up
        // the calls in flight.
        self.compaction = Some(SpawnedTask::spawn_blocking(move || {
            let parts = runtime.block_on(compact(&context.run, &segment))?;
            Ok((bytes, parts))
        }));
        Ok(())
    }

    async fn join_compaction(&mut self) -> Result<()> {
        let Some(compaction) = self.compaction.take() else {
            return Ok(());
        };
        let joined = compaction
            .join()
            .await
            .map_err(|error| exec_datafusion_err!("landing ended in a defect: {error}"))?;
        let (bytes, parts) = joined.map_err(external)?;
        let encoded: u64 = parts
            .iter()
            .filter(|part| part.table == schema::ROLLOUTS)
            .map(|part| part.num_bytes)
            .sum();
        if encoded > 0 {
            self.ratio = (bytes as f64 / encoded as f64).clamp(1.0, 16.0);
        }
        self.parts.extend(parts);
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T> {
    let joined = SpawnedTask::spawn_blocking(work).join().await;
    joined
        .map_err(|error| exec_datafusion_err!("landing ended in a defect: {error}"))?
        .map_err(external)
}

fn external(error: StoreError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn landed(parts: &[Part]) -> Result<RecordBatch> {
    let integers = |of: fn(&Part) -> u64| -> ArrayRef {
        Arc::new(
            parts
                .iter()
                .map(|part| i64::try_from(of(part)).ok())
                .collect::<Int64Array>(),
        )
    };
    let text = |of: fn(&Part) -> &str| -> ArrayRef {
        Arc::new(
            parts
                .iter()
                .map(|part| Some(of(part)))
                .collect::<StringViewArray>(),
        )
    };
    let columns = vec![
        text(|part| &part.table),
        text(|part| &part.path),
        integers(|part| part.num_rows),
        integers(|part| part.num_bytes),
    ];
    Ok(RecordBatch::try_new(schema::landed(), columns)?)
}
