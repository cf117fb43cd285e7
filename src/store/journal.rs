use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;

use super::StoreError;

/// Extension of a segment: an Arrow IPC stream, which pyarrow reads as well.
const EXTENSION: &str = "arrows";

/// How long rows may be with the system but not yet on the disk. A crash of the process loses
/// nothing either way; a power cut loses at most this much.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Writes one segment of a journal.
pub struct JournalWriter {
    writer: StreamWriter<BufWriter<File>>,
    segment: JournalSegment,
    bytes: u64,
    synced: Instant,
}

impl JournalWriter {
    /// Begins the segment `name` in `directory`, which is made if need be.
    ///
    /// # Errors
    /// The file can't be made.
    pub fn create(directory: &Path, name: &str, schema: &SchemaRef) -> Result<Self, StoreError> {
        let path = directory.join(name).with_extension(EXTENSION);
        let failed = |source| StoreError::File {
            action: "create",
            path: path.clone(),
            source,
        };
        fs::create_dir_all(directory).map_err(failed)?;
        let file = File::create_new(&path).map_err(failed)?;
        let writer = StreamWriter::try_new(BufWriter::with_capacity(1 << 20, file), schema)
            .map_err(|source| StoreError::Journal {
                path: path.clone(),
                source,
            })?;
        let segment = JournalSegment {
            path,
            name: name.to_owned(),
        };
        Ok(Self {
            writer,
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
        let written = self.writer.write(batch).map_err(|source| match source {
            ArrowError::IoError(_, source) => self.segment.file_failed("write", source),
            source => self.segment.failed(source),
        });
        written?;
        let flushed = self.writer.get_mut().flush();
        flushed.map_err(|source| self.segment.file_failed("write", source))?;
        let written = self.writer.get_mut().get_mut().stream_position();
        self.bytes = written.map_err(|source| self.segment.file_failed("write", source))?;
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
        let file = self.writer.get_ref().get_ref().try_clone();
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

    /// Ends the segment, whose last rows [`JournalSegment::sync`] takes to the disk.
    ///
    /// # Errors
    /// The disk is full or broken.
    pub fn seal(mut self) -> Result<JournalSegment, StoreError> {
        self.writer
            .finish()
            .map_err(|source| self.segment.failed(source))?;
        Ok(self.segment)
    }
}

/// Rows that are with the system but not yet on the disk.
#[derive(Debug)]
pub struct Unsynced {
    file: File,
    segment: JournalSegment,
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
pub struct JournalSegment {
    path: PathBuf,
    name: String,
}

impl JournalSegment {
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
    pub fn name(&self) -> &str {
        &self.name
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
            name: self.name.clone(),
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

/// Names and paths of the files of a directory that have an extension, in the order of their names;
/// none where there is no directory.
pub(super) fn files(
    directory: &Path,
    extension: &str,
) -> Result<Vec<(String, PathBuf)>, StoreError> {
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
            && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
        {
            files.push((name.to_owned(), path.clone()));
        }
    }
    files.sort();
    Ok(files)
}

/// The rows that a segment held at one moment.
#[derive(Debug, Clone)]
pub struct OpenSegment {
    name: String,
    file: Arc<File>,
    len: u64,
}

impl OpenSegment {
    /// Name of the segment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it held.
    pub fn num_bytes(&self) -> u64 {
        self.len
    }

    /// Its batches. The file may still be written to, or may have been cut off by a crash: what is
    /// not whole at its end is left out.
    ///
    /// # Errors
    /// The disk failed; what follows is then not known.
    pub fn read(&self) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + use<> {
        let bytes = Bytes {
            file: Arc::clone(&self.file),
            position: 0,
            len: self.len,
        };
        let reader = StreamReader::try_new(BufReader::with_capacity(1 << 20, bytes), None).ok();
        let is_broken = |source: &io::Error| source.kind() != io::ErrorKind::UnexpectedEof;
        reader
            .into_iter()
            .flatten()
            .map_while(move |batch| match batch {
                Err(ArrowError::IoError(text, source)) if is_broken(&source) => {
                    Some(Err(ArrowError::IoError(text, source)))
                }
                batch => batch.ok().map(Ok),
            })
    }
}

/// The bytes of a file from its beginning; many can read the same file.
struct Bytes {
    file: Arc<File>,
    position: u64,
    len: u64,
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len - self.position).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let read = self
            .file
            .read_at(buffer.get_mut(..wanted).unwrap_or_default(), self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}
