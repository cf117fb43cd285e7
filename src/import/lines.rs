//! The lines of a file, one at a time.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::error::ImportError;

/// Where a line ends and which lines count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineRule {
    /// LF, CRLF and CR end a line; every line counts.
    Text,
    /// LF ends a line; a blank one is passed over, though numbered.
    Shard,
}

/// A line with its place.
#[derive(Debug, PartialEq)]
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    /// Bytes before it in the file.
    pub(super) offset: u64,
    pub(super) text: String,
}

/// Calls `take` for every line of a file.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or `take` fails.
pub(super) fn for_each_line(
    path: &Path,
    shown: &str,
    rule: LineRule,
    mut take: impl FnMut(Line) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let failed = |source| ImportError::Read {
        path: shown.to_owned(),
        source,
    };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let (mut number, mut offset) = (0, 0);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = reader.read_until(b'\n', &mut bytes).map_err(failed)?;
        if read == 0 {
            return Ok(());
        }
        let text = std::str::from_utf8(&bytes).map_err(|_| ImportError::Encoding {
            path: shown.to_owned(),
            line: number + 1,
        })?;
        match rule {
            LineRule::Text => {
                let text = text.strip_suffix('\n').unwrap_or(text);
                let text = text.strip_suffix('\r').unwrap_or(text);
                let mut start = offset;
                for text in text.split('\r') {
                    number += 1;
                    let line = Line {
                        number,
                        offset: start,
                        text: text.to_owned(),
                    };
                    start += text.len() as u64 + 1;
                    take(line)?;
                }
            }
            LineRule::Shard => {
                number += 1;
                let start = text.len() - text.trim_ascii_start().len();
                let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
                if !text.is_empty() {
                    let offset = offset + start as u64;
                    take(Line {
                        number,
                        offset,
                        text: text.to_owned(),
                    })?;
                }
            }
        }
        offset += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(content: &str, rule: LineRule) -> Vec<(u64, u64, String)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        let mut lines = Vec::new();
        for_each_line(file.path(), "f", rule, |line| {
            lines.push((line.number, line.offset, line.text));
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
        assert!(matches!(error, Err(ImportError::Encoding { line: 2, .. })));
    }
}
