//! The lines of a file, one at a time: [`for_each_line`], and [`for_each_whole_line`] for a file whose last line
//! another program may not have finished.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::error::{ImportError, RowProblem};
use crate::json::{Object, ObjectError, SyntaxError};
use crate::store::InputRecord;

/// The longest line that is read, in bytes: a column holds no more than twice that.
const LONGEST: u64 = 1 << 30;

/// Where a line ends and which lines count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineRule {
    /// LF, CRLF and CR end a line; every line counts.
    Text,
    /// LF ends a line; blank lines are numbered, but skipped.
    Shard,
}

/// A line with its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// The file, as messages call it.
    pub(super) file: &'a str,
    /// Its number in the file, from 1.
    pub(super) number: u64,
    /// Bytes before it in the file.
    pub(super) offset: u64,
    /// Its text without the line end.
    pub(super) text: &'a str,
}

impl<'a> Line<'a> {
    /// Parses the line as a row.
    pub(super) fn row(&self) -> Result<Object<'a>, ImportError> {
        Object::parse(self.text).map_err(|error| match error {
            ObjectError::Syntax(source) => self.problem(RowProblem::Malformed(source)),
            ObjectError::NotAnObject(_) => self.problem(RowProblem::NotAnObject),
        })
    }

    /// Returns the error about a problem of the line.
    pub(super) fn problem(&self, problem: RowProblem) -> ImportError {
        failed(self.file, self.number, problem)
    }
}

fn failed(file: &str, line: u64, problem: RowProblem) -> ImportError {
    ImportError::Row {
        path: file.to_owned(),
        line,
        problem,
    }
}

/// Calls `take` for every line of a file.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or `take` fails.
pub(super) fn for_each_line(
    path: &Path,
    file: &str,
    rule: LineRule,
    mut take: impl FnMut(Line<'_>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let (mut number, mut offset) = (0, 0);
    for_each_piece(path, file, |bytes| {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| failed(file, number + 1, RowProblem::Encoding))?;
        match rule {
            LineRule::Text => {
                let text = text.strip_suffix('\n').unwrap_or(text);
                let mut offset = offset;
                for text in text.strip_suffix('\r').unwrap_or(text).split('\r') {
                    number += 1;
                    take(Line {
                        file,
                        number,
                        offset,
                        text,
                    })?;
                    offset += text.len() as u64 + 1;
                }
            }
            LineRule::Shard => {
                number += 1;
                let offset = offset + (text.len() - text.trim_ascii_start().len()) as u64;
                let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
                if !text.is_empty() {
                    take(Line {
                        file,
                        number,
                        offset,
                        text,
                    })?;
                }
            }
        }
        offset += bytes.len() as u64;
        Ok(())
    })
}

/// A last line that is not whole.
#[derive(Debug, PartialEq)]
pub(super) struct Torn {
    pub(super) number: u64,
    pub(super) why: SyntaxError,
}

/// Calls `take` for every line of a file, except a torn last one, which has no line end and is not JSON. Only LF ends a
/// line.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or `take` fails.
pub(super) fn for_each_whole_line(
    path: &Path,
    mut take: impl FnMut(Line<'_>) -> Result<(), ImportError>,
) -> Result<(InputRecord, Option<Torn>), ImportError> {
    let file = path.display().to_string();
    let mut hasher = blake3::Hasher::new();
    let (mut number, mut offset) = (0, 0);
    let mut torn = None;
    for_each_piece(path, &file, |bytes| {
        hasher.update(bytes);
        number += 1;
        let whole = bytes.strip_suffix(b"\n");
        let line = whole.unwrap_or(bytes);
        let text = match std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)) {
            Ok(text) => text,
            // Cut off, perhaps within a character.
            Err(error) if whole.is_none() => {
                let valid = line.get(..error.valid_up_to()).unwrap_or_default();
                std::str::from_utf8(valid).unwrap_or_default()
            }
            Err(_) => return Err(failed(&file, number, RowProblem::Encoding)),
        };
        if whole.is_none()
            && let Err(ObjectError::Syntax(why)) = Object::parse(text)
        {
            torn = Some(Torn { number, why });
        } else {
            take(Line {
                file: &file,
                number,
                offset,
                text,
            })?;
        }
        offset += bytes.len() as u64;
        Ok(())
    })?;
    let record = InputRecord {
        digest: hasher.finalize().to_hex().to_string(),
        num_bytes: offset,
        path: file,
    };
    Ok((record, torn))
}

/// Calls `take` for the bytes of every line that LF ends, with its line end.
fn for_each_piece(
    path: &Path,
    file: &str,
    mut take: impl FnMut(&[u8]) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let unreadable = |source| ImportError::Read {
        path: file.to_owned(),
        source,
    };
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(unreadable)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let mut longest = reader.by_ref().take(LONGEST);
        let read = longest.read_until(b'\n', &mut bytes).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        if read as u64 == LONGEST && !bytes.ends_with(b"\n") {
            return Err(failed(file, line, RowProblem::TooLong));
        }
        take(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &str, rule: LineRule) -> Vec<(u64, u64, String)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut lines = Vec::new();
        for_each_line(file.path(), "f", rule, |line| {
            lines.push((line.number, line.offset, line.text.to_owned()));
            Ok(())
        })
        .unwrap();
        lines
    }

    fn texts(content: &str) -> Vec<String> {
        let lines = lines(content, LineRule::Text);
        lines.into_iter().map(|(.., text)| text).collect()
    }

    #[test]
    fn text_ends_lines_in_three_ways() {
        assert_eq!(texts("a\nb\r\nc\rd"), ["a", "b", "c", "d"]);
        assert_eq!(texts("a\r"), ["a"]);
        assert_eq!(texts("a\n\nb\n"), ["a", "", "b"]);
        assert!(texts("").is_empty());
    }

    #[test]
    fn a_shard_s_blank_lines_are_numbered_only() {
        let content = "\n  {\"a\": 1} \r\n \t\n{\"b\": 2}";
        let lines = lines(content, LineRule::Shard);
        assert_eq!(lines.len(), 2);
        for (number, offset, text) in lines {
            assert!(content[offset as usize..].starts_with(&text));
            assert_eq!(number, if text.contains('a') { 2 } else { 4 });
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_placed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"{}\n\xff\n").unwrap();
        let error = for_each_line(file.path(), "f", LineRule::Text, |_| Ok(()));
        let is_placed = |error| {
            matches!(
                error,
                Err(ImportError::Row {
                    line: 2,
                    problem: RowProblem::Encoding,
                    ..
                })
            )
        };
        assert!(is_placed(error));
        let error = for_each_whole_line(file.path(), |_| Ok(()));
        assert!(is_placed(error.map(drop)));
    }

    fn whole_lines(content: &[u8]) -> (Vec<String>, Option<u64>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut lines = Vec::new();
        let (record, torn) = for_each_whole_line(file.path(), |line| {
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
            whole_lines(b"{}\r\n\nx\n{\"a\":1}"),
            (vec![row("{}"), row(""), row("x"), row("{\"a\":1}")], None)
        );
        assert_eq!(whole_lines(b"{}\n{\"a\":"), (vec![row("{}")], Some(2)));
        assert_eq!(
            whole_lines("{}\n{\"é".as_bytes().strip_suffix(b"\xa9").unwrap()),
            (vec![row("{}")], Some(2))
        );
        assert_eq!(whole_lines(b"{}\n{\"\xff"), (vec![row("{}")], Some(2)));
        assert_eq!(whole_lines(b"{}\n5"), (vec![row("{}"), row("5")], None));
        assert_eq!(whole_lines(b""), (vec![], None));
    }
}
