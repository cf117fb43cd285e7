use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;

use super::error::ExportError;
use super::target::Lines;

/// Task, rollout and attempt.
pub(super) type Key = (i64, i64, i64);

/// Lines that come in any order and are written by key. They wait in a temporary file; in memory is where each of
/// them stands. A sort of the lines themselves would hold a part of each of its runs, and answers are large.
pub(super) struct SortedLines {
    out: Lines,
    waiting: BufWriter<File>,
    places: Vec<(Key, u64, usize)>,
    end: u64,
}

impl SortedLines {
    /// Nothing yet, to be written to `out`.
    pub(super) fn new(out: Lines) -> Result<Self, ExportError> {
        let waiting = tempfile::tempfile_in(out.directory());
        let waiting = waiting.map_err(|source| out.failed(source))?;
        Ok(Self {
            waiting: BufWriter::with_capacity(1 << 18, waiting),
            out,
            places: Vec::new(),
            end: 0,
        })
    }

    pub(super) fn add(&mut self, key: Key, line: &str) -> Result<(), ExportError> {
        let written = self.waiting.write_all(line.as_bytes());
        written.map_err(|source| self.out.failed(source))?;
        self.places.push((key, self.end, line.len()));
        self.end += line.len() as u64;
        Ok(())
    }

    /// Writes them all.
    pub(super) fn finish(self) -> Result<Lines, ExportError> {
        let Self {
            mut out,
            waiting,
            mut places,
            ..
        } = self;
        let waiting = waiting.into_inner();
        let waiting = waiting.map_err(|error| out.failed(error.into_error()))?;
        places.sort_unstable();
        let mut line = Vec::new();
        for (_, offset, length) in places {
            line.resize(length, 0);
            let read = waiting.read_exact_at(&mut line, offset);
            read.map_err(|source| out.failed(source))?;
            out.write(&line)?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_by_key_and_those_of_one_key_as_they_came() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        let mut lines = SortedLines::new(Lines::create(&path).unwrap()).unwrap();
        for (key, line) in [
            ((1, 0, 0), "d"),
            ((-1, 5, 0), "a"),
            ((0, 2, 0), "c"),
            ((0, 1, 9), "b"),
            ((1, 0, 0), "e"),
        ] {
            lines.add(key, line).unwrap();
        }
        lines.finish().unwrap().finish(false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\nc\nd\ne\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
