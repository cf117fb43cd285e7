use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, Int64Array, StringViewArray};
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::compact::compact;
use super::context::LandContext;
use crate::schema;
use crate::store::{JournalSegment, JournalWriter, Part, StoreError};

/// Assumed ratio of a journal's bytes to those of its parts, until one was measured.
const FIRST_RATIO: f64 = 4.0;

/// What became of segments: the bytes of those that are parts now, the parts, and where it stopped,
/// if it did.
struct Compacted {
    bytes: u64,
    parts: Vec<Part>,
    left: VecDeque<Sealed>,
    failed: Option<StoreError>,
}

/// A segment that is to become parts.
struct Sealed {
    segment: JournalSegment,
    bytes: u64,
}

/// Takes outcomes to the journal and the journal to parts.
pub(super) struct Lander {
    context: Arc<LandContext>,
    part_size: u64,
    journal: Option<JournalWriter>,
    segments: usize,
    ratio: f64,
    /// Segments whose parts could not be written; the store may be back next time.
    left: VecDeque<Sealed>,
    compaction: Option<SpawnedTask<Compacted>>,
    /// The last compaction has ended.
    is_idle: Arc<AtomicBool>,
    /// Ends a compaction that nobody waits for any more: the run may be another's by then.
    abandon: CancellationToken,
    _abandoned: DropGuard,
    parts: Vec<Part>,
}

/// While parts are being written, a segment may grow to this many times its size: what is answered
/// is better in it than in memory.
const OVERFULL: f64 = 4.0;

impl Lander {
    pub(super) fn new(context: Arc<LandContext>, part_size: u64) -> Self {
        let abandon = CancellationToken::new();
        Self {
            is_idle: Arc::new(AtomicBool::new(true)),
            _abandoned: abandon.clone().drop_guard(),
            abandon,
            context,
            part_size,
            journal: None,
            segments: 0,
            ratio: FIRST_RATIO,
            left: VecDeque::new(),
            compaction: None,
            parts: Vec::new(),
        }
    }

    /// Lands all of `input`; gives what was published.
    pub(super) async fn land(
        mut self,
        mut input: SendableRecordBatchStream,
    ) -> Result<RecordBatch> {
        let mut ended = Ok(());
        while let Some(outcomes) = input.next().await {
            match outcomes {
                Ok(outcomes) => self.keep(outcomes).await?,
                // What was answered before is landed all the same.
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        self.rotate().await?;
        let failed = self.join_compaction().await?;
        ended?;
        match failed {
            Some(error) => Err(external(error)),
            None => landed(&self.parts),
        }
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
        let fill = journal.num_bytes() as f64 / (self.part_size as f64 * self.ratio);
        let full = match self.is_idle.load(Ordering::Acquire) {
            true => fill >= 1.0,
            false => fill >= OVERFULL,
        };
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
        let failed = self.join_compaction().await?;
        if let Some(error) = failed {
            self.context.tally.notice(format!(
                "{error}. The answers stay in the journal, '{}'; it is tried again",
                self.context.run.journal_dir().display()
            ));
        }
        if let Some(journal) = self.journal.take() {
            let bytes = journal.num_bytes();
            let segment = blocking(move || journal.seal()).await?;
            self.left.push_back(Sealed { segment, bytes });
        }
        if self.left.is_empty() {
            return Ok(());
        }
        let (context, runtime) = (Arc::clone(&self.context), Handle::current());
        let segments = std::mem::take(&mut self.left);
        // Encoding is work for a core of its own: on a thread of the runtime it would hold up
        // the calls in flight.
        let (is_idle, abandon) = (Arc::clone(&self.is_idle), self.abandon.clone());
        is_idle.store(false, Ordering::Release);
        self.compaction = Some(SpawnedTask::spawn_blocking(move || {
            let compacted = runtime.block_on(compact_all(&context, segments, &abandon));
            is_idle.store(true, Ordering::Release);
            compacted
        }));
        Ok(())
    }

    /// Waits for the parts; gives why not all could be written, if so. The answers are safe then.
    async fn join_compaction(&mut self) -> Result<Option<StoreError>> {
        let Some(compaction) = self.compaction.take() else {
            return Ok(None);
        };
        let joined = compaction
            .join()
            .await
            .map_err(|error| exec_datafusion_err!("landing ended in a defect: {error}"))?;
        let encoded: u64 = joined
            .parts
            .iter()
            .filter(|part| part.table == schema::ROLLOUTS)
            .map(|part| part.num_bytes)
            .sum();
        if encoded > 0 {
            self.ratio = (joined.bytes as f64 / encoded as f64).clamp(1.0, 16.0);
        }
        self.parts.extend(joined.parts);
        self.left = joined.left;
        Ok(joined.failed)
    }
}

async fn compact_all(
    context: &LandContext,
    segments: VecDeque<Sealed>,
    abandon: &CancellationToken,
) -> Compacted {
    let mut compacted = Compacted {
        bytes: 0,
        parts: Vec::new(),
        left: segments,
        failed: None,
    };
    while let Some(sealed) = compacted.left.front() {
        let compacting = compact(&context.run, &sealed.segment);
        let Some(done) = abandon.run_until_cancelled(compacting).await else {
            break;
        };
        match done {
            Ok(parts) => {
                compacted.bytes += sealed.bytes;
                compacted.parts.extend(parts);
                compacted.left.pop_front();
            }
            Err(error) => {
                compacted.failed = Some(error);
                break;
            }
        }
    }
    compacted
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
