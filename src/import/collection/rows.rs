//! The lines of a file that another program may have been cut off in writing.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::super::error::{ImportError, RowProblem};
use crate::json::{Object, ObjectError, SyntaxError};
use crate::store::InputRecord;

/// The longest line that is read, in bytes: a column holds no more than twice that.
const LONGEST: u64 = 1 << 30;

/// A line with its place.
pub(super) struct Line<'a> {
    pub(super) file: &'a str,
    /// From 1.
    pub(super) number: u64,
    /// Without its line end.
    pub(super) text: &'a str,
}

impl Line<'_> {
    /// The line as a row.
    pub(super) fn row(&self) -> Result<Object<'_>, ImportError> {
        Object::parse(self.text).map_err(|error| match error {
            ObjectError::Syntax(source) => self.malformed(source),
            ObjectError::NotAnObject(_) => self.problem(RowProblem::NotAnObject),
        })
    }

    pub(super) fn malformed(&self, source: SyntaxError) -> ImportError {
        ImportError::Malformed {
            path: self.file.to_owned(),
            line: self.number,
            source,
        }
    }

    pub(super) fn problem(&self, problem: RowProblem) -> ImportError {
        ImportError::Row {
            path: self.file.to_owned(),
            line: self.number,
            problem,
        }
    }
}

/// A last line that is not whole.
#[derive(Debug, PartialEq)]
pub(super) struct Torn {
    pub(super) number: u64,
    pub(super) why: SyntaxError,
}

/// Calls `take` for every line of a file, but for a last one that was not written to its end: it has no line end,
/// and is no JSON. Only LF ends a line.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or `take` fails.
pub(super) fn for_each_line(
    path: &Path,
    mut take: impl FnMut(Line<'_>) -> Result<(), ImportError>,
) -> Result<(InputRecord, Option<Torn>), ImportError> {
    let shown = path.display().to_string();
    let failed = |source| ImportError::Read {
        path: shown.clone(),
        source,
    };
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(failed)?);
    let mut hasher = blake3::Hasher::new();
    let (mut number, mut num_bytes) = (0, 0);
    let mut bytes = Vec::new();
    let mut torn = None;
    loop {
        bytes.clear();
        let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut bytes);
        let read = read.map_err(failed)? as u64;
        if read == 0 {
            break;
        }
        hasher.update(&bytes);
        num_bytes += read;
        number += 1;
        let whole = bytes.strip_suffix(b"\n");
        if read == LONGEST && whole.is_none() {
            return Err(ImportError::TooLong {
                path: shown,
                line: number,
            });
        }
        let line = whole.unwrap_or(&bytes);
        let text = match std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(text) => text,
            // Cut off, perhaps within a character.
            Err(error) if whole.is_none() => {
                let valid = line.get(..error.valid_up_to()).unwrap_or_default();
                std::str::from_utf8(valid).unwrap_or_default()
            }
            Err(_) => {
                return Err(ImportError::Encoding {
                    path: shown,
                    line: number,
                });
            }
        };
        if whole.is_none()
            && let Err(ObjectError::Syntax(why)) = Object::parse(text)
        {
            torn = Some(Torn { number, why });
            break;
        }
        take(Line {
            file: &shown,
            number,
            text,
        })?;
    }
    let record = InputRecord {
        digest: hasher.finalize().to_hex().to_string(),
        num_bytes,
        path: shown,
    };
    Ok((record, torn))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &[u8]) -> (Vec<String>, Option<u64>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut lines = Vec::new();
        let (record, torn) = for_each_line(file.path(), |line| {
            lines.push(line.text.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(record.num_bytes, content.len() as u64);
        assert_eq!(record.digest, blake3::hash(content).to_hex().as_str());
        (lines, torn.map(|torn| torn.number))
    }

    #[test]
    fn a_last_line_without_end_counts_if_it_is_whole() {
        let row = |text: &str| text.to_owned();
        assert_eq!(
            lines(b"{}\r\n\nx\n{\"a\":1}"),
            (vec![row("{}"), row(""), row("x"), row("{\"a\":1}")], None)
        );
        assert_eq!(lines(b"{}\n{\"a\":"), (vec![row("{}")], Some(2)));
        assert_eq!(
            lines("{}\n{\"é".as_bytes().strip_suffix(b"\xa9").unwrap()),
            (vec![row("{}")], Some(2))
        );
        assert_eq!(lines(b"{}\n{\"\xff"), (vec![row("{}")], Some(2)));
        assert_eq!(lines(b"{}\n5"), (vec![row("{}"), row("5")], None));
        assert_eq!(lines(b""), (vec![], None));
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"{}\n\xff\n").unwrap();
        let error = for_each_line(file.path(), |_| Ok(()));
        assert!(matches!(error, Err(ImportError::Encoding { line: 2, .. })));
    }
}
