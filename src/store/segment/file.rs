use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow::buffer::Buffer;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;

use super::SegmentName;
use super::frame::{self, Damage, Frames, Piece};
use crate::schema;
use crate::store::StoreError;

/// Extension of a segment: frames, each with a batch of outcomes as a message of Arrow IPC.
const EXTENSION: &str = "rows";

/// Directory beside the segments for those that were found damaged.
const DAMAGED: &str = "damaged";

/// How long rows may be with the system but not yet on the disk. A crash of the process loses
/// nothing either way; a power cut loses at most this much.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Writes one segment of a journal.
pub struct SegmentWriter {
    file: File,
    encoder: StreamWriter<Vec<u8>>,
    segment: Segment,
    bytes: u64,
    synced: Instant,
}

impl SegmentWriter {
    /// Begins a segment in `directory`, which is made if need be.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn create(directory: &Path, name: SegmentName) -> Result<Self, StoreError> {
        let path = directory.join(format!("{name}.{EXTENSION}"));
        let segment = Segment { path, name };
        let failed = |source| segment.file_failed("create", source);
        fs::create_dir_all(directory).map_err(failed)?;
        let file = File::create_new(&segment.path).map_err(failed)?;
        // Else a power cut could take the file with all that was synced in it.
        let directory = File::open(directory).and_then(|directory| directory.sync_all());
        directory.map_err(failed)?;
        let encoder = encoder().map_err(|source| segment.failed(source))?;
        Ok(Self {
            file,
            encoder,
            segment,
            bytes: 0,
            synced: Instant::now(),
        })
    }

    /// Appends rows. When this returns, they survive the end of the process.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<(), StoreError> {
        let Self {
            file,
            encoder,
            segment,
            bytes,
            ..
        } = self;
        encoder.get_mut().clear();
        encoder
            .write(batch)
            .map_err(|source| segment.failed(source))?;
        if let Err(source) = frame::write(file, encoder.get_ref()) {
            // What follows half a frame would be taken for damage.
            let _ = file.set_len(*bytes);
            return Err(segment.file_failed("write", source));
        }
        let length = file.metadata().map(|file| file.len());
        *bytes = length.map_err(|source| segment.file_failed("write", source))?;
        Ok(())
    }

    /// What should be on the disk by now and is not yet known to be.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn unsynced(&mut self) -> Result<Option<Unsynced>, StoreError> {
        if self.synced.elapsed() < SYNC_INTERVAL {
            return Ok(None);
        }
        self.synced = Instant::now();
        let file = self.file.try_clone();
        let file = file.map_err(|source| self.segment.file_failed("sync", source))?;
        Ok(Some(Unsynced {
            file,
            segment: self.segment.clone(),
        }))
    }

    /// Bytes of the file so far.
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the segment, whose last rows [`Segment::sync`] takes to the disk.
    pub fn seal(self) -> Segment {
        self.segment
    }
}

/// Writes messages without the schema, which is the same for all and known.
fn encoder() -> Result<StreamWriter<Vec<u8>>, ArrowError> {
    StreamWriter::try_new(Vec::new(), &schema::outcomes())
}

/// The message that tells a decoder the schema.
static SCHEMA_MESSAGE: LazyLock<Option<Buffer>> = LazyLock::new(|| {
    let mut encoder = encoder().ok()?;
    Some(Buffer::from_vec(std::mem::take(encoder.get_mut())))
});

/// Rows that are with the system but not yet on the disk.
#[derive(Debug)]
pub struct Unsynced {
    file: File,
    segment: Segment,
}

impl Unsynced {
    /// Waits until they are on the disk, which may take long.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn sync(&self) -> Result<(), StoreError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| self.segment.file_failed("sync", source))
    }
}

/// A segment of a journal: rows that are answered, but not yet in a part.
#[derive(Debug, Clone)]
pub struct Segment {
    path: PathBuf,
    name: SegmentName,
}

impl Segment {
    /// The segments in a directory, oldest first; none where there is no directory.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn list(directory: &Path) -> Result<Vec<Self>, StoreError> {
        let files = files(directory, EXTENSION)?;
        Ok(files
            .into_iter()
            .map(|(name, path)| Self { path, name })
            .collect())
    }

    /// Its name; the parts that it becomes carry the same.
    pub fn name(&self) -> SegmentName {
        self.name
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the segment is on the disk.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn sync(&self) -> Result<(), StoreError> {
        match File::open(&self.path).and_then(|file| file.sync_data()) {
            // Its parts are there already.
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced.map_err(|source| self.file_failed("sync", source)),
        }
    }

    /// Opens the segment as it is now. It can be read even if it is removed meanwhile.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn open(&self) -> Result<OpenSegment, StoreError> {
        let open = || {
            let file = File::open(&self.path)?;
            let len = file.metadata()?.len();
            Ok((file, len))
        };
        let (file, len) = open().map_err(|source| self.file_failed("open", source))?;
        Ok(OpenSegment {
            segment: self.clone(),
            file: Arc::new(file),
            len,
        })
    }

    /// Removes the file; no error if it has gone already.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove(&self) -> Result<(), StoreError> {
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(self.file_failed("remove", source))
            }
            _ => Ok(()),
        }
    }

    /// Moves the file to the directory of those that were found damaged, where nobody reads it again; gives its path.
    ///
    /// # Errors
    /// The system refused.
    pub fn set_aside(&self) -> Result<PathBuf, StoreError> {
        set_aside(&self.path)
    }

    fn failed(&self, source: ArrowError) -> StoreError {
        StoreError::Journal {
            path: self.path.clone(),
            source,
        }
    }

    fn file_failed(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::File {
            action,
            path: self.path.clone(),
            source,
        }
    }
}

/// Moves a file to the directory of those that were found damaged.
pub(in crate::store) fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let moved = || {
        let directory = path.with_file_name(DAMAGED);
        fs::create_dir_all(&directory)?;
        let to = directory.join(path.file_name().unwrap_or_default());
        fs::rename(path, &to)?;
        Ok(to)
    };
    moved().map_err(|source| StoreError::File {
        action: "set aside",
        path: path.to_owned(),
        source,
    })
}

/// Files of a journal that have an extension, in the order of their names; none where there is no directory.
pub(in crate::store) fn files(
    directory: &Path,
    extension: &str,
) -> Result<Vec<(SegmentName, PathBuf)>, StoreError> {
    let failed = |source| StoreError::File {
        action: "read",
        path: directory.to_owned(),
        source,
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|found| found == extension)
            && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            && let Ok(name) = stem.parse()
        {
            files.push((name, path.clone()));
        }
    }
    files.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok(files)
}

/// The rows that a segment held at one moment.
#[derive(Debug, Clone)]
pub struct OpenSegment {
    segment: Segment,
    file: Arc<File>,
    len: u64,
}

impl OpenSegment {
    /// Name of the segment.
    pub fn name(&self) -> SegmentName {
        self.segment.name
    }

    /// The file.
    pub fn file(&self) -> &Segment {
        &self.segment
    }

    /// Bytes that it held.
    pub fn num_bytes(&self) -> u64 {
        self.len
    }

    /// Its batches. The file may still be written to, or may have been cut off by a crash: what is
    /// not whole at its end is left out.
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
    segment: Segment,
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
                Err(source) => return Some(Err(self.segment.file_failed("read", source))),
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
