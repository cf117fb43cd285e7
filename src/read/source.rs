//! From inputs, packed or not, to batches of tasks: [`open()`] opens one, [`read_tasks`] reads all of them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use arrow::record_batch::RecordBatch;
use flate2::read::MultiGzDecoder;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::errors::InputErrors;
use super::task::{ReadError, ReadOptions, ReadSummary, TaskBatchBuilder};
use super::tasks::TaskReader;
use crate::error::{Error, Fatal, USAGE};
use crate::store::InputRecord;

/// Why an input file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The file does not exist.
    #[error("Input file not found: '{0}' (--input). Check the path is spelled correctly.")]
    NotFound(String),
    /// It is a directory.
    #[error(
        "Input is a directory, not a file: '{0}' (--input). Name the files in it, for example '{0}/*.jsonl'."
    )]
    Directory(String),
    /// It cannot be read.
    #[error("Input file cannot be read: '{path}' (--input): {source}. Check its permissions.")]
    Unreadable {
        /// The path as given.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

/// Opens a local file, and unpacks it as [`decoded`] does.
///
/// # Errors
/// If there is no such file, it is a directory, or it cannot be read.
pub fn open(path: &Path) -> Result<Box<dyn Read + Send>, SourceError> {
    let shown = || path.display().to_string();
    let unreadable = |source| SourceError::Unreadable {
        path: shown(),
        source,
    };
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => SourceError::NotFound(shown()),
        _ => unreadable(source),
    })?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(SourceError::Directory(shown()));
    }
    decoded(&path.to_string_lossy(), file).map_err(unreadable)
}

/// Unpacks `input` by the extension of `name`: gz, gzip, zst or zstd. Concatenated packed files are read as one.
///
/// # Errors
/// If the decoder cannot be set up.
pub fn decoded<R: Read + Send + 'static>(name: &str, input: R) -> io::Result<Box<dyn Read + Send>> {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    Ok(match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("gz" | "gzip") => Box::new(MultiGzDecoder::new(BufReader::new(input))),
        Some("zst" | "zstd") => Box::new(zstd::Decoder::new(input)?),
        _ => Box::new(input),
    })
}

/// Receives batches of [`crate::schema::tasks`] as they are read.
pub type Batches = Receiver<RecordBatch>;

/// An open input, with its name in error messages.
pub struct OpenSource {
    /// The name as given.
    pub name: String,
    /// Its lines, decompressed.
    pub reader: Box<dyn Read + Send>,
}

/// Creates a channel for [`read_tasks`], which holds at most two batches.
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
) -> Result<(ReadSummary, Vec<InputRecord>), ReadTasksError> {
    let mut tasks = TaskReader::new(options);
    let mut batch = TaskBatchBuilder::default();
    let mut records = Vec::new();
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
        records.push(InputRecord {
            path: name,
            digest,
            num_bytes: reader.num_bytes,
        });
    }
    let summary = tasks.finish()?;
    if !batch.is_empty() {
        send(&mut batch, output)?;
    }
    Ok((summary, records))
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
    /// A source cannot be read to its end.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Some lines are not tasks.
    #[error(transparent)]
    Input(#[from] InputErrors),
    /// A row is too large for a column.
    #[error("a task is too large for a table: {0}")]
    Arrow(#[from] arrow::error::ArrowError),
    /// The receiver of the batches is gone.
    #[error("reading was abandoned")]
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
    /// Fills the buffer as far as possible: if a limit ends the reading early, the digest must not depend on how
    /// the network splits the data.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn text(path: &Path) -> String {
        let mut text = String::new();
        open(path).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn files_are_unpacked_by_their_extension() {
        let folder = tempfile::tempdir().unwrap();
        let gzip = |text: &str| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(text.as_bytes()).unwrap();
            packer.finish().unwrap()
        };
        let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        assert_eq!(text(&write("a.jsonl", b"{}\n")), "{}\n");
        assert_eq!(
            text(&write("a.jsonl.gz", &[gzip("1\n"), gzip("2\n")].concat())),
            "1\n2\n"
        );
        assert_eq!(
            text(&write("a.jsonl.ZST", &[zstd("1\n"), zstd("2\n")].concat())),
            "1\n2\n"
        );
    }

    #[test]
    fn what_cannot_be_opened_says_what_to_do() {
        let error = |path: &Path| open(path).map(|_| ()).unwrap_err();
        let missing = error(Path::new("no/such.jsonl"));
        assert_eq!(
            missing.to_string(),
            "Input file not found: 'no/such.jsonl' (--input). Check the path is spelled correctly."
        );
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(error(folder.path()), SourceError::Directory(_)));
    }
}
