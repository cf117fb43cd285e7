use std::io::{self, Read};

use arrow::record_batch::RecordBatch;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    InputErrors, ReadError, ReadOptions, ReadSummary, SourceError, TaskBatchBuilder, TaskReader,
};
use crate::error::{Error, Fatal, USAGE};

/// Batches of [`crate::schema::tasks`] as they are read.
pub type Batches = Receiver<RecordBatch>;

/// An input that is open, with the name that errors call it by.
pub struct OpenSource {
    /// As given.
    pub name: String,
    /// Its lines, decompressed.
    pub reader: Box<dyn Read + Send>,
}

/// What was read of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceDigest {
    /// As given.
    pub name: String,
    /// Digest of the bytes that were read, after decompression.
    pub digest: String,
    /// How many.
    pub num_bytes: u64,
}

/// A channel for [`read_tasks`]: at most two batches wait in it.
pub fn batches() -> (Sender<RecordBatch>, Batches) {
    channel(2)
}

/// Reads all sources, in order, and sends their tasks as batches. Blocks: call it on a thread of
/// its own.
///
/// # Errors
/// A source can't be read to its end, or some of its lines are not tasks. Then what was sent must
/// not be used.
pub fn read_tasks(
    sources: impl IntoIterator<Item = Result<OpenSource, SourceError>>,
    options: ReadOptions,
    output: &Sender<RecordBatch>,
) -> Result<(ReadSummary, Vec<SourceDigest>), ReadTasksError> {
    let mut tasks = TaskReader::new(options);
    let mut batch = TaskBatchBuilder::default();
    let mut digests = Vec::new();
    for source in sources {
        if tasks.is_full() {
            break;
        }
        let OpenSource { name, reader } = source?;
        let mut reader = Digesting {
            reader,
            hasher: blake3::Hasher::new(),
            num_bytes: 0,
        };
        tasks.read(&name, &mut reader, |row| {
            batch.append(&row)?;
            if batch.is_full() {
                send(&mut batch, output)
            } else {
                Ok(())
            }
        })?;
        let digest = reader.hasher.finalize().to_hex().to_string();
        digests.push(SourceDigest {
            name,
            digest,
            num_bytes: reader.num_bytes,
        });
    }
    let summary = tasks.finish()?;
    if !batch.is_empty() {
        send(&mut batch, output)?;
    }
    Ok((summary, digests))
}

fn send(batch: &mut TaskBatchBuilder, output: &Sender<RecordBatch>) -> Result<(), ReadTasksError> {
    output
        .blocking_send(batch.finish()?)
        .map_err(|_| ReadTasksError::Abandoned)
}

/// Why an input was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadTasksError {
    /// A source can't be opened or read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A source ended in the middle.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Lines that are not tasks.
    #[error(transparent)]
    Input(#[from] InputErrors),
    /// A row that no column can hold.
    #[error("a task is too large for a table: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// Nobody takes the batches any more.
    #[error("reading was given up")]
    Abandoned,
}

impl Fatal for ReadTasksError {
    fn exit_code(&self) -> u8 {
        USAGE
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        ReadTasksError::from(error).into()
    }
}

struct Digesting<R> {
    reader: R,
    hasher: blake3::Hasher,
    num_bytes: u64,
}

impl<R: Read> Read for Digesting<R> {
    /// Fills the buffer where it can: what is read, and so the digest where a limit ends the reading
    /// early, must not depend on the pieces in which a network delivers.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.hasher.update(buffer.get(..filled).unwrap_or_default());
        self.num_bytes += filled as u64;
        Ok(filled)
    }
}
