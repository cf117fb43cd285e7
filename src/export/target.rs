use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::error::ExportError;

/// The files of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportTarget {
    /// What is to be sent: a row per rollout.
    pub materialized_inputs: PathBuf,
    /// What was answered.
    pub rollouts: PathBuf,
    /// What failed.
    pub failures: PathBuf,
    /// What was measured.
    pub aggregate_metrics: PathBuf,
}

impl ExportTarget {
    /// The files that `output` stands for: `NAME.jsonl` and its neighbours, or, in a directory, those that are called
    /// as the run is.
    ///
    /// # Errors
    /// No name can be made of that.
    pub fn new(output: &Path, run: &str) -> Result<Self, ExportError> {
        let rollouts = match output.extension() == Some(OsStr::new("jsonl")) {
            true => output.to_owned(),
            false => {
                let name = run.trim_end_matches('/').rsplit('/').next();
                let name = name.filter(|name| !matches!(*name, "" | "." | ".."));
                output.join(format!("{}.jsonl", name.unwrap_or("rollouts")))
            }
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

    /// Removes what was measured of other rollouts than those that are written, and says so.
    ///
    /// # Errors
    /// It can't be removed.
    pub(super) fn remove_metrics(&self) -> Result<Option<String>, ExportError> {
        let path = &self.aggregate_metrics;
        match std::fs::remove_file(path) {
            Ok(()) => Ok(Some(format!(
                "'{}' is removed: it was of other rollouts, and these were not measured",
                path.display()
            ))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ExportError::Write {
                path: path.clone(),
                source,
            }),
        }
    }

    /// Refuses to replace a file.
    ///
    /// # Errors
    /// One is there.
    pub(super) fn refuse_existing(&self) -> Result<(), ExportError> {
        match self.existing() {
            Some(path) => Err(ExportError::Exists(path.clone())),
            None => Ok(()),
        }
    }

    /// One of the files that is there already.
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

/// A file of lines that is there when it is whole, and not before.
pub(super) struct Lines {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
    count: u64,
}

impl Lines {
    pub(super) fn create(path: &Path) -> Result<Self, ExportError> {
        let failed = |source| ExportError::Write {
            path: path.to_owned(),
            source,
        };
        let directory = directory(path);
        std::fs::create_dir_all(directory).map_err(failed)?;
        let file = tempfile::Builder::new()
            .prefix(".rollstream-")
            // Less what the process's umask takes away, as with any file.
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

    /// Adds a part of the file, of the one line that it is.
    pub(super) fn write_piece(&mut self, piece: &[u8]) -> Result<(), ExportError> {
        self.count = 1;
        let written = self.file.write_all(piece);
        written.map_err(|source| self.failed(source))
    }

    /// Where the file goes.
    pub(super) fn directory(&self) -> &Path {
        directory(&self.path)
    }

    /// The error that the file can't be written.
    pub(super) fn failed(&self, source: io::Error) -> ExportError {
        ExportError::Write {
            path: self.path.clone(),
            source,
        }
    }

    /// Puts the file in its place; `replaces` one that is there.
    pub(super) fn finish(self, replaces: bool) -> Result<(PathBuf, u64), ExportError> {
        let path = self.path;
        let failed = |source| ExportError::Write {
            path: path.clone(),
            source,
        };
        let file = self.file.into_inner();
        let file = file.map_err(|error| failed(error.into_error()))?;
        file.as_file().sync_all().map_err(failed)?;
        let kept = match replaces {
            true => file.persist(&path),
            false => file.persist_noclobber(&path),
        };
        match kept {
            Ok(_) => Ok((path, self.count)),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ExportError::Exists(path))
            }
            Err(error) => Err(failed(error.error)),
        }
    }
}

fn directory(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
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
}
