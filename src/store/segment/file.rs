use std::fs::File;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::{StreamEncoder, StreamWriter};
use arrow::record_batch::RecordBatch;

use super::SegmentName;
use super::frame::{self, Damage, Frames, Piece};
use crate::schema;
use crate::store::StoreError;
use crate::store::error::if_there;
use crate::store::journal::{JournalFile, in_directory};

/// Extension of a segment: frames, each with a batch of outcomes as a message of Arrow IPC.
pub(in crate::store) const SEGMENT: &str = "rows";

/// How long rows may be with the system but not yet on the disk. A crash of the process loses nothing either way; a power
/// cut loses at most this much.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Writes one segment of a journal.
pub struct SegmentWriter {
    file: File,
    encoder: StreamEncoder,
    segment: JournalFile,
    bytes: u64,
    synced: Instant,
}

impl SegmentWriter {
    /// Begins a segment in `directory`, which is made if need be.
    pub fn create(directory: &Path, name: SegmentName) -> Result<Self, StoreError> {
        let segment = JournalFile::new(directory, name, SEGMENT);
        let created = in_directory(directory, || {
            let file = File::create_new(segment.path())?;
            // Else a power cut could take the file with all that was synced in it.
            File::open(directory)?.sync_all()?;
            Ok(file)
        });
        let file = created.map_err(StoreError::file("create", segment.path()))?;
        let encoder = schemaless().map_err(encoding(&segment))?;
        Ok(Self {
            file,
            encoder,
            segment,
            bytes: 0,
            synced: Instant::now(),
        })
    }

    /// Appends rows. When this returns, they survive the end of the process.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<(), StoreError> {
        let encoded = self.encoder.encode(batch);
        let encoded = encoded.map_err(encoding(&self.segment))?;
        let failed = StoreError::file("write", self.segment.path());
        if let Err(source) = frame::write(&mut self.file, &encoded) {
            // What follows half a frame would be taken for damage.
            let _ = self.file.set_len(self.bytes);
            return Err(failed(source));
        }
        self.bytes = self.file.metadata().map_err(failed)?.len();
        Ok(())
    }

    /// Returns what takes to the disk the rows that should be there by now, which may take long; none where they are there.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn unsynced(
        &mut self,
    ) -> Result<Option<impl FnOnce() -> Result<(), StoreError> + use<>>, StoreError> {
        if self.synced.elapsed() < SYNC_INTERVAL {
            return Ok(None);
        }
        self.synced = Instant::now();
        let segment = self.segment.clone();
        let failed = move |source| StoreError::file("sync", segment.path())(source);
        let file = self.file.try_clone().map_err(&failed)?;
        Ok(Some(move || file.sync_data().map_err(failed)))
    }

    /// Bytes of the file so far.
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the segment, whose last rows [`JournalFile::sync`] takes to the disk.
    pub fn seal(self) -> JournalFile {
        self.segment
    }
}

/// Returns an encoder of messages without the schema, which is the same for all and known: it is encoded before them.
fn schemaless() -> Result<StreamEncoder, ArrowError> {
    let mut encoder = StreamEncoder::try_new(&schema::outcomes())?;
    encoder.encode(&RecordBatch::new_empty(schema::outcomes()))?;
    Ok(encoder)
}

fn encoding(segment: &JournalFile) -> impl Fn(ArrowError) -> StoreError {
    |source| StoreError::Journal {
        path: segment.path().to_owned(),
        source,
    }
}

/// The message that tells a decoder the schema.
static SCHEMA_MESSAGE: LazyLock<Option<Buffer>> = LazyLock::new(|| {
    let mut encoder = StreamWriter::try_new(Vec::new(), &schema::outcomes()).ok()?;
    Some(Buffer::from_vec(std::mem::take(encoder.get_mut())))
});

/// A segment: rows that are answered, but not yet in a part.
impl JournalFile {
    /// Waits until the segment is on the disk.
    pub fn sync(&self) -> Result<(), StoreError> {
        // Where it has gone, its parts are there already.
        let synced = if_there(File::open(self.path()).and_then(|file| file.sync_data()));
        synced
            .map(drop)
            .map_err(StoreError::file("sync", self.path()))
    }

    /// Opens the segment as it is now. It can be read even if it is removed meanwhile.
    pub fn open(&self) -> Result<OpenSegment, StoreError> {
        let open = || {
            let file = File::open(self.path())?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        let (file, len) = open().map_err(StoreError::file("open", self.path()))?;
        Ok(OpenSegment {
            segment: self.clone(),
            file: Arc::new(file),
            len,
        })
    }
}

/// The rows that a segment held at one moment.
#[derive(Debug, Clone)]
pub struct OpenSegment {
    segment: JournalFile,
    file: Arc<File>,
    len: u64,
}

impl OpenSegment {
    /// Name of the segment.
    pub fn name(&self) -> SegmentName {
        self.segment.name()
    }

    /// The file.
    pub fn file(&self) -> &JournalFile {
        &self.segment
    }

    /// Bytes that it held.
    pub fn num_bytes(&self) -> u64 {
        self.len
    }

    /// Reads its batches. The file may still be written to, or may have been cut off by a crash: what is not whole at its
    /// end is left out.
    pub fn read(&self) -> Batches {
        Batches {
            frames: Frames::new(Arc::clone(&self.file), self.len),
            decoder: decoder(),
            segment: self.segment.clone(),
            damages: Vec::new(),
        }
    }
}

fn decoder() -> StreamDecoder {
    let mut decoder = StreamDecoder::new();
    if let Some(schema) = &*SCHEMA_MESSAGE {
        // The message is our own, and no batch.
        let _ = decoder.decode(&mut schema.clone());
    }
    decoder
}

/// The batches of a segment, and what of it is damaged.
#[derive(Debug)]
pub struct Batches {
    frames: Frames,
    decoder: StreamDecoder,
    segment: JournalFile,
    damages: Vec<Damage>,
}

impl Batches {
    /// What was passed over so far since it is damaged.
    pub fn damages(&self) -> &[Damage] {
        &self.damages
    }

    fn decode(&mut self, payload: Vec<u8>) -> Option<RecordBatch> {
        let decoded = self.decoder.decode(&mut Buffer::from_vec(payload));
        let batch = decoded.ok().flatten();
        if batch.is_none() {
            self.decoder = decoder();
        }
        batch
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, StoreError>;

    /// # Errors
    /// The disk failed; what follows is then not known.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (offset, payload) = match self.frames.next() {
                Ok(Some(Piece::Payload { offset, payload })) => (offset, payload),
                Ok(Some(Piece::Damage(damage))) => {
                    self.damages.push(damage);
                    continue;
                }
                Ok(None) => return None,
                Err(source) => {
                    return Some(Err(StoreError::file("read", self.segment.path())(source)));
                }
            };
            let length = payload.len() as u64;
            match self.decode(payload) {
                Some(batch) => return Some(Ok(batch)),
                // Its checksum is right, so another version wrote it.
                None => self.damages.push(Damage { offset, length }),
            }
        }
    }
}
