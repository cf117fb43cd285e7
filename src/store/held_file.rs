//! [`HeldFile`]: a file that is locked for as long as the process lives that made it. The system gives the lock up
//! with the process, so what the dead left behind can be told from what is in use.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How often a file is made that others remove.
const MAX_ATTEMPTS: u32 = 100;

/// A file that this process holds.
#[derive(Debug)]
pub(super) struct HeldFile {
    file: File,
    path: PathBuf,
}

impl HeldFile {
    /// Creates a file and holds it until it is dropped. The file stays then.
    ///
    /// # Errors
    /// There is such a file, or none can be made. [`ErrorKind::NotFound`] if its directory is not there, or somebody
    /// removed the file before it was held: see [`again`].
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        // Where a file system has no locks, nobody can take the file for one of the dead either.
        let _ = file.lock();
        if is_removed(&file)? {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(Self { file, path })
    }

    /// Takes over the file of a process that died; `None` if its owner may still live.
    pub(super) fn of_the_dead(path: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path).ok()?;
        file.try_lock().ok()?;
        let path = path.to_owned();
        let is_gone = is_removed(&file).unwrap_or(true);
        (!is_gone).then_some(Self { file, path })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Does `work` again where something has gone that was just made: others remove what they take for left behind, and
/// directories that are empty.
pub(super) fn again<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut attempts = 1;
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::NotFound && attempts < MAX_ATTEMPTS => {
                attempts += 1;
            }
            done => return done,
        }
    }
}

fn is_removed(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_over_only_when_its_owner_has_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let held = HeldFile::create(path.clone()).unwrap();
        assert!(HeldFile::of_the_dead(&path).is_none());
        drop(held);
        assert!(HeldFile::of_the_dead(&path).is_some());
        std::fs::remove_file(&path).unwrap();
        assert!(HeldFile::of_the_dead(&path).is_none());
    }
}
