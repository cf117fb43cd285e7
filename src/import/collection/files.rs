use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::error::ImportError;

/// How the names of the files end that stand beside rollouts.
pub(in crate::import) const FAILURES: &str = "_failures.jsonl";
pub(in crate::import) const INPUTS: &str = "_materialized_inputs.jsonl";

/// The files that NeMo Gym keeps of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionFiles {
    /// What is to be sent: a row per rollout.
    pub materialized_inputs: PathBuf,
    /// What was answered.
    pub rollouts: PathBuf,
    /// Answers that the agent flagged as failures; none where there is no such file.
    pub failures: Option<PathBuf>,
}

impl CollectionFiles {
    /// The files of the collection that `name` names: its rollouts, or the same without `.jsonl`. The other files
    /// stand beside them, unless they are named.
    ///
    /// # Errors
    /// A file is missing without which NeMo Gym would start over.
    pub fn find(
        name: &Path,
        materialized_inputs: Option<PathBuf>,
        failures: Option<PathBuf>,
    ) -> Result<Self, ImportError> {
        let is_whole = name.is_file() || name.extension() == Some(OsStr::new("jsonl"));
        let rollouts = match is_whole {
            true => name.to_owned(),
            false => with_suffix(name, ".jsonl"),
        };
        let stem = rollouts.with_extension("");
        let beside = with_suffix(&stem, FAILURES);
        let files = Self {
            materialized_inputs: materialized_inputs.unwrap_or_else(|| with_suffix(&stem, INPUTS)),
            failures: failures.or_else(|| beside.exists().then_some(beside)),
            rollouts,
        };
        for (path, option) in [
            (&files.rollouts, "the argument NAME.jsonl"),
            (&files.materialized_inputs, "--materialized-inputs"),
        ] {
            if !path.is_file() {
                return Err(ImportError::NoFile {
                    path: path.display().to_string(),
                    option,
                });
            }
        }
        Ok(files)
    }
}

pub(in crate::import) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_stand_side_by_side_unless_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["x.jsonl", "x_materialized_inputs.jsonl", "other.jsonl"] {
            std::fs::write(path(name), "").unwrap();
        }
        let found = CollectionFiles::find(&path("x"), None, None).unwrap();
        assert_eq!(found.rollouts, path("x.jsonl"));
        assert_eq!(found.failures, None);
        std::fs::write(path("x_failures.jsonl"), "").unwrap();
        let found = CollectionFiles::find(&path("x.jsonl"), None, None).unwrap();
        assert_eq!(found.failures, Some(path("x_failures.jsonl")));
        let other = Some(path("other.jsonl"));
        let found = CollectionFiles::find(&path("x"), other.clone(), other).unwrap();
        assert_eq!(found.materialized_inputs, path("other.jsonl"));
        assert_eq!(found.failures, Some(path("other.jsonl")));
    }

    #[test]
    fn a_missing_file_is_named_with_the_way_to_start_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.jsonl"), "").unwrap();
        let error = CollectionFiles::find(&folder.path().join("x"), None, None).unwrap_err();
        let text = error.to_string();
        for part in [
            "x_materialized_inputs.jsonl",
            "start over",
            "collect --input",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
