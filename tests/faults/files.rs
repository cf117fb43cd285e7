//! The files of a run as others find them: what a crash or a disk did to them.

use std::fs;
use std::path::{Path, PathBuf};

use super::ledger::{batches, keys};

/// Extensions of a segment of the journal.
const SEGMENTS: [&str; 2] = ["rows", "arrows"];

/// Directory of what is kept because it is damaged.
pub const DAMAGED: &str = "damaged";

/// Every file below a directory, in the order of their paths; none where there is no directory.
pub fn below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(below(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The segments of the journals below a directory that are in use.
pub fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut found = below(directory);
    found.retain(|path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| SEGMENTS.contains(&extension)) && !is_kept(path)
    });
    found
}

/// The largest of them.
#[track_caller]
pub fn largest_segment(directory: &Path) -> PathBuf {
    let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
    segments(directory).into_iter().max_by_key(size).unwrap()
}

/// Whether the file is kept because it is damaged.
pub fn is_kept(path: &Path) -> bool {
    let mut directories = path.ancestors().skip(1);
    directories.any(|directory| directory.file_name().is_some_and(|name| name == DAMAGED))
}

/// The last part of a path.
pub fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Copies a directory with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    for file in below(from) {
        let copy = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(&file, copy).unwrap();
    }
}

/// Rows of a part.
pub fn rows(part: &Path) -> usize {
    let batches = batches(part, &["task_index", "rollout_index"]);
    batches.iter().map(|batch| keys(batch).len()).sum()
}
