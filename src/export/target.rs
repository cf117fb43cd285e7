//! Where an export goes: [`ExportTarget`] names its files, [`Lines`] writes one of them, [`SortedLines`] one whose lines
//! come in any order, and [`Waiting`] keeps texts in a temporary file until they are asked for.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::ExportError;

/// The files of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTarget {
    /// The planned rollouts, one row each.
    pub materialized_inputs: PathBuf,
    /// The answers.
    pub rollouts: PathBuf,
    /// The failed attempts.
    pub failures: PathBuf,
    /// The metrics.
    pub aggregate_metrics: PathBuf,
}

impl ExportTarget {
    /// Returns the files that `output` stands for: `NAME.jsonl` and its neighbours, or, in a directory, files with the
    /// name of the run.
    ///
    /// # Errors
    /// `output` names no file.
    pub fn new(output: &Path, run: &str) -> Result<Self, ExportError> {
        let rollouts = if output.extension() == Some(OsStr::new("jsonl")) {
            output.to_owned()
        } else {
            let name = run.trim_end_matches('/').rsplit('/').next();
            let name = name.filter(|name| !matches!(*name, "" | "." | ".."));
            output.join(format!("{}.jsonl", name.unwrap_or("rollouts")))
        };
        let Some(stem) = rollouts.file_stem().filter(|_| output != Path::new("")) else {
            return Err(ExportError::Target(output.to_owned()));
        };
        let beside = |what: &str| {
            let mut name = stem.to_owned();
            name.push(what);
            rollouts.with_file_name(name)
        };
        Ok(Self {
            materialized_inputs: beside("_materialized_inputs.jsonl"),
            failures: beside("_failures.jsonl"),
            aggregate_metrics: beside("_aggregate_metrics.json"),
            rollouts,
        })
    }

    /// Removes metrics of other rollouts than those that are written; returns a warning if there were any.
    ///
    /// # Errors
    /// They can't be removed.
    pub(super) fn remove_metrics(&self) -> Result<Option<String>, ExportError> {
        let path = &self.aggregate_metrics;
        match std::fs::remove_file(path) {
            Ok(()) => Ok(Some(format!(
                "removed '{}': it belonged to other rollouts, and these have no metrics",
                path.display()
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ExportError::write(path)(source)),
        }
    }

    /// Returns the first of the files that exists already.
    pub fn existing(&self) -> Option<&PathBuf> {
        let files = [
            &self.materialized_inputs,
            &self.rollouts,
            &self.failures,
            &self.aggregate_metrics,
        ];
        files.into_iter().find(|path| path.exists())
    }
}

/// A file of lines that appears only when it is complete.
pub(super) struct Lines {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    count: u64,
}

impl Lines {
    pub(super) fn create(path: &Path) -> Result<Self, ExportError> {
        let failed = ExportError::write(path);
        let directory = directory(path);
        std::fs::create_dir_all(directory).map_err(&failed)?;
        let file = tempfile::Builder::new()
            .prefix(".rollstream-")
            // The process's umask applies, as with any file.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
            count: 0,
        })
    }

    pub(super) fn write(&mut self, line: &[u8]) -> Result<(), ExportError> {
        self.count += 1;
        let written = self.file.write_all(line);
        let written = written.and_then(|()| self.file.write_all(b"\n"));
        written.map_err(|source| self.failed(source))
    }

    /// Adds a piece of a file that has only one line.
    pub(super) fn write_piece(&mut self, piece: &[u8]) -> Result<(), ExportError> {
        self.count = 1;
        let written = self.file.write_all(piece);
        written.map_err(|source| self.failed(source))
    }

    /// Returns the error that the file can't be written.
    pub(super) fn failed(&self, source: io::Error) -> ExportError {
        ExportError::write(&self.path)(source)
    }

    /// Moves the file into place; `replaces` says whether an existing one may be replaced.
    pub(super) fn finish(self, replaces: bool) -> Result<(PathBuf, u64), ExportError> {
        let path = self.path;
        let failed = ExportError::write(&path);
        let file = self.file.into_inner();
        let file = file.map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(&failed)?;
        let kept = if replaces {
            file.persist(&path)
        } else {
            file.persist_noclobber(&path)
        };
        match kept {
            Ok(_) => Ok((path.clone(), self.count)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ExportError::Exists(path.clone()))
            }
            Err(error) => Err(failed(error.error)),
        }
    }
}

fn directory(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
}

/// Task, rollout and attempt.
pub(super) type Key = (i64, i64, i64);

/// Texts that wait in a temporary file. Memory holds only their keys and places.
pub(super) struct Waiting {
    file: BufWriter<File>,
    places: Vec<(Key, u64, usize)>,
    end: u64,
}

impl Waiting {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(directory)?;
        Ok(Self {
            file: BufWriter::with_capacity(1 << 18, file),
            places: Vec::new(),
            end: 0,
        })
    }

    pub(super) fn add(&mut self, key: Key, text: &[u8]) -> io::Result<()> {
        self.places.push((key, self.end, text.len()));
        self.end += text.len() as u64;
        self.file.write_all(text)
    }

    /// Returns the texts in the order of their keys, those of one key as they came.
    pub(super) fn sorted(mut self) -> io::Result<SortedTexts> {
        self.places.sort_unstable();
        let file = self.file.into_inner().map_err(|error| error.into_error())?;
        Ok(SortedTexts {
            file,
            places: self.places,
        })
    }
}

/// Texts of a temporary file by their keys.
pub(super) struct SortedTexts {
    file: File,
    places: Vec<(Key, u64, usize)>,
}

impl SortedTexts {
    /// Returns the text of a key, if there is one.
    pub(super) fn get(&self, key: Key) -> io::Result<Option<Vec<u8>>> {
        let place = self.places.binary_search_by_key(&key, |place| place.0);
        let Some((_, offset, length)) = place.ok().and_then(|place| self.places.get(place)) else {
            return Ok(None);
        };
        let mut text = vec![0; *length];
        self.file.read_exact_at(&mut text, *offset)?;
        Ok(Some(text))
    }
}

/// Lines that come in any order and are written by key. A sort of the lines themselves would hold a part of each of its
/// runs in memory, and answers are large.
pub(super) struct SortedLines {
    out: Lines,
    waiting: Waiting,
}

impl SortedLines {
    /// Creates a sorter without lines, which writes to `out`.
    pub(super) fn new(out: Lines) -> Result<Self, ExportError> {
        let waiting = Waiting::new(directory(&out.path));
        let waiting = waiting.map_err(|source| out.failed(source))?;
        Ok(Self { out, waiting })
    }

    pub(super) fn add(&mut self, key: Key, line: &str) -> Result<(), ExportError> {
        let added = self.waiting.add(key, line.as_bytes());
        added.map_err(|source| self.out.failed(source))
    }

    /// Writes all lines.
    pub(super) fn finish(self) -> Result<Lines, ExportError> {
        let Self { mut out, waiting } = self;
        let texts = waiting.sorted().map_err(|source| out.failed(source))?;
        let mut line = Vec::new();
        for (_, offset, length) in texts.places {
            line.resize(length, 0);
            let read = texts.file.read_exact_at(&mut line, offset);
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
    fn a_name_or_a_directory_stands_for_all_files() {
        let target = |output: &str, run: &str| ExportTarget::new(Path::new(output), run).unwrap();
        let named = target("out/x.jsonl", "runs/a");
        assert_eq!(named.rollouts, Path::new("out/x.jsonl"));
        assert_eq!(named.failures, Path::new("out/x_failures.jsonl"));
        assert_eq!(
            named.materialized_inputs,
            Path::new("out/x_materialized_inputs.jsonl")
        );
        assert_eq!(
            target("out", "s3://b/runs/a/").rollouts,
            Path::new("out/a.jsonl")
        );
        assert_eq!(
            target("out/", ".").rollouts,
            Path::new("out/rollouts.jsonl")
        );
        assert!(ExportTarget::new(Path::new(""), "a").is_err());
    }

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
