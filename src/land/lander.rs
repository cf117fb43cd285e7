//! The work of [`LandExec`](super::LandExec): appends outcomes to the journal, and turns full segments into parts.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, StringViewArray};
use arrow::record_batch::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::LandContext;
use crate::schema;
use crate::store::segment::Decisions;
use crate::store::{JournalFile, Part, SegmentWriter, StoreError};

/// Assumed ratio of a journal's bytes to those of its parts, until one was measured.
const FIRST_RATIO: f64 = 4.0;

/// The result of turning segments into parts: the bytes of those segments, the parts, the segments that are left, and
/// the error, if any are.
struct Turned {
    bytes: u64,
    parts: Vec<Part>,
    left: VecDeque<JournalFile>,
    failed: Option<StoreError>,
}

/// Writes outcomes to the journal, and turns the journal into parts.
pub(super) struct Lander {
    context: Arc<LandContext>,
    partition: usize,
    part_size: u64,
    journal: Option<SegmentWriter>,
    /// When the segment becomes parts even if it is not full.
    due: Option<Instant>,
    ratio: f64,
    /// Segments whose parts could not be written. They are retried with the next segment.
    left: VecDeque<JournalFile>,
    compactions: JoinSet<Turned>,
    /// The sync of the segment to the disk, in the background.
    sync: Option<SpawnedTask<Result<(), StoreError>>>,
    /// Cancels the writing of parts when the lander is dropped: another process may hold the run by then.
    abandon: CancellationToken,
    _abandoned: DropGuard,
    parts: Vec<Part>,
}

/// While as many parts as allowed are being written, a segment may grow to this many full ones: answers are safer in
/// it than in memory.
const OVERFULL: f64 = 4.0;

/// While as many parts as allowed are being written, a segment that is old is looked at again after this.
const BUSY: Duration = Duration::from_secs(1);

impl Lander {
    pub(super) fn new(context: Arc<LandContext>, partition: usize, part_size: u64) -> Self {
        let abandon = CancellationToken::new();
        Self {
            _abandoned: abandon.clone().drop_guard(),
            abandon,
            context,
            partition,
            part_size,
            journal: None,
            due: None,
            ratio: FIRST_RATIO,
            left: VecDeque::new(),
            compactions: JoinSet::new(),
            sync: None,
            parts: Vec::new(),
        }
    }

    /// Lands all of `input`, and returns what was published.
    pub(super) async fn land(
        mut self,
        mut input: SendableRecordBatchStream,
    ) -> Result<RecordBatch> {
        let mut ended = Ok(());
        let mut alarm = pin!(sleep_until(tokio::time::Instant::now()));
        loop {
            if let Some(due) = self.due
                && alarm.deadline() != due.into()
            {
                alarm.as_mut().reset(due.into());
            }
            let outcomes = tokio::select! {
                outcomes = input.next() => outcomes,
                () = &mut alarm, if self.due.is_some() => {
                    self.publish().await?;
                    continue;
                }
            };
            let Some(outcomes) = outcomes else { break };
            match outcomes {
                Ok(outcomes) => self.keep(outcomes).await?,
                // Earlier answers still land.
                Err(error) => {
                    ended = Err(error);
                    break;
                }
            }
        }
        self.join_sync().await?;
        self.rotate().await?;
        let mut failed = None;
        while let Some(joined) = self.compactions.join_next().await {
            failed = self.take(joined)?.or(failed);
        }
        ended?;
        match failed {
            Some(error) => Err(error.into()),
            None => landed(&self.parts),
        }
    }

    async fn keep(&mut self, outcomes: RecordBatch) -> Result<()> {
        let mut journal = match self.journal.take() {
            Some(journal) => journal,
            None => self.next_segment()?,
        };
        let append = move || journal.append(&outcomes).map(|()| (journal, outcomes));
        let appended = SpawnedTask::spawn_blocking(append).join().await;
        let (mut journal, outcomes) = appended.map_err(defect)??;
        self.context.progress.landed(&outcomes);
        let fill = journal.num_bytes() as f64 / (self.part_size as f64 * self.ratio);
        self.reap()?;
        let full = fill >= if self.is_busy() { OVERFULL } else { 1.0 };
        if let Some(unsynced) = journal.unsynced()? {
            self.join_sync().await?;
            self.sync = Some(SpawnedTask::spawn_blocking(unsynced));
        }
        self.journal = Some(journal);
        if full { self.rotate().await } else { Ok(()) }
    }

    fn next_segment(&mut self) -> Result<SegmentWriter> {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(self.context.began);
        // An interval beyond the range of the clock means no deadline.
        self.due = now.checked_add(self.context.oldest(elapsed));
        let name = self.context.writer.segment(self.partition);
        Ok(SegmentWriter::create(self.context.run.journal_dir(), name)?)
    }

    /// Whether as many parts as allowed are being written.
    fn is_busy(&self) -> bool {
        self.context.compactions.available_permits() == 0
    }

    /// Turns an old segment into parts, though it is not full.
    async fn publish(&mut self) -> Result<()> {
        if self.is_busy() {
            // New answers are safer in the journal than in memory.
            self.due = Some(Instant::now() + BUSY);
            return Ok(());
        }
        self.join_sync().await?;
        self.rotate().await
    }

    /// Seals the segment and turns it into parts in the background, few at a time: a store slower than the agents
    /// slows the sweep down, and does not fill the disk.
    async fn rotate(&mut self) -> Result<()> {
        self.due = None;
        if let Some(journal) = self.journal.take() {
            self.left.push_back(journal.seal());
        }
        self.reap()?;
        if self.left.is_empty() {
            return Ok(());
        }
        let permit = Arc::clone(&self.context.compactions).acquire_owned().await;
        self.reap()?;
        let (context, runtime) = (Arc::clone(&self.context), Handle::current());
        let segments = std::mem::take(&mut self.left);
        // Encoding is work for a core of its own: on a thread of the runtime it would hold up the calls in flight.
        let abandon = self.abandon.clone();
        self.compactions.spawn_blocking(move || {
            // Held until the work ends. `None` only if the semaphore were closed, which it never is.
            let _permit = permit.ok();
            runtime.block_on(compact_all(&context, segments, &abandon))
        });
        Ok(())
    }

    /// Waits until the sync under way is done.
    async fn join_sync(&mut self) -> Result<()> {
        match self.sync.take() {
            Some(sync) => Ok(sync.join().await.map_err(defect)??),
            None => Ok(()),
        }
    }

    /// Takes the parts of the background work that has ended.
    fn reap(&mut self) -> Result<()> {
        while let Some(joined) = self.compactions.try_join_next() {
            if let Some(error) = self.take(joined)? {
                self.context.progress.notice(format!(
                    "{error}. The answers stay in the journal, '{}'; retrying",
                    self.context.run.journal_dir().display()
                ));
            }
        }
        Ok(())
    }

    /// Takes the parts, and returns the error if some could not be written. Their answers stay safe in the journal.
    fn take(&mut self, joined: Result<Turned, JoinError>) -> Result<Option<StoreError>> {
        let joined = joined.map_err(defect)?;
        let rollouts = joined
            .parts
            .iter()
            .filter(|part| part.table == schema::ROLLOUTS);
        let encoded: u64 = rollouts.map(|part| part.num_bytes).sum();
        if encoded > 0 {
            self.ratio = (joined.bytes as f64 / encoded as f64).clamp(1.0, 16.0);
        }
        self.parts.extend(joined.parts);
        self.left.extend(joined.left);
        Ok(joined.failed)
    }
}

async fn compact_all(
    context: &LandContext,
    segments: VecDeque<JournalFile>,
    abandon: &CancellationToken,
) -> Turned {
    let mut compacted = Turned {
        bytes: 0,
        parts: Vec::new(),
        left: segments,
        failed: None,
    };
    while let Some(segment) = compacted.left.front() {
        let compacting = commit(context, segment);
        match abandon.run_until_cancelled(compacting).await {
            Some(Ok((bytes, parts))) => {
                compacted.bytes += bytes;
                compacted.parts.extend(parts);
                compacted.left.pop_front();
            }
            Some(Err(error)) => {
                compacted.failed = Some(error);
                break;
            }
            None => break,
        }
    }
    compacted
}

/// Commits a segment of this writer, whose rows nobody else has. Returns its bytes and its parts.
async fn commit(
    context: &LandContext,
    segment: &JournalFile,
) -> Result<(u64, Vec<Part>), StoreError> {
    segment.sync()?;
    let (open, name) = (segment.open()?, segment.name());
    let decisions = Decisions::default();
    let committed = context.sink.commit(&open, name, &decisions);
    let (parts, damages) = committed.await?;
    if damages.is_empty() {
        segment.remove()?;
        return Ok((open.num_bytes(), parts));
    }
    let kept = segment.set_aside()?;
    context.progress.notice(format!(
        "journal '{}' is damaged: the disk lost a part of what was written. All else in it has landed, and the file is \
         kept as '{}'",
        segment.path().display(),
        kept.display()
    ));
    Ok((open.num_bytes(), parts))
}

fn defect(error: JoinError) -> DataFusionError {
    exec_datafusion_err!("landing failed, a defect of rollstream: {error}")
}

fn landed(parts: &[Part]) -> Result<RecordBatch> {
    let integers = |of: fn(&Part) -> u64| -> ArrayRef {
        let numbers = parts.iter().map(|part| i64::try_from(of(part)).ok());
        Arc::new(numbers.collect::<Int64Array>())
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
