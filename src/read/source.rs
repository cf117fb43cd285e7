//! Opening inputs, packed or not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// Why an input file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Nothing is there.
    #[error("Input file not found: '{0}' (--input). Check the path is spelled correctly.")]
    NotFound(String),
    /// A directory is there.
    #[error(
        "Input is a directory, not a file: '{0}' (--input). Name the files in it, for example '{0}/*.jsonl'."
    )]
    Directory(String),
    /// Something is there that cannot be read.
    #[error("Input file cannot be read: '{path}' (--input): {source}. Check its permissions.")]
    Unreadable {
        /// The path as given.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

/// Opens a local file and unpacks it if its name ends in `.gz` or `.zst`.
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

/// Unpacks what `input` gives if `name` ends in `.gz` or `.zst`; several packed files one after another are one.
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
