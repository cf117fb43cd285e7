//! What belongs to this user or this process alone: [`state_directory`], where the journals of remote runs are;
//! [`HeldFile`], which is locked while its process lives; [`Scratch`], a temporary directory that ends with the process.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::StoreError;

/// What the names of our temporary directories begin with.
const PREFIX: &str = "rollstream-";

/// The file in a temporary directory that its owner holds.
const HELD: &str = ".held";

/// Returns where this machine keeps what is of use to it alone: the directory `given`, or `$XDG_STATE_HOME/rollstream`, or
/// `~/.local/state/rollstream`. Where there is no home, it is a directory of this user in the temporary one.
///
/// # Errors
/// Others can write to that directory.
pub fn state_directory(given: Option<&Path>) -> Result<PathBuf, StoreError> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty());
    let home = || Some(PathBuf::from(set("HOME")?).join(".local/state"));
    match set("XDG_STATE_HOME").map(PathBuf::from).or_else(home) {
        Some(state) => Ok(state.join("rollstream")),
        None => shared_directory(&env::temp_dir()),
    }
}

/// The directory of this user where everybody may make directories, and may have made this one.
fn shared_directory(of_all: &Path) -> Result<PathBuf, StoreError> {
    let user = user(of_all).map_err(StoreError::file("create a file in", of_all))?;
    let path = of_all.join(format!("{PREFIX}{user}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(source) if source.kind() != ErrorKind::AlreadyExists => {
            return Err(StoreError::file("create", &path)(source));
        }
        _ => {}
    }
    // Of the link itself, if it is one.
    let found = fs::symlink_metadata(&path).map_err(StoreError::file("look at", &path))?;
    let reason = if !found.is_dir() {
        "it is not a directory"
    } else if found.uid() != user {
        "it belongs to another user"
    } else if found.mode() & 0o022 != 0 {
        "other users can write to it"
    } else {
        return Ok(path);
    };
    Err(StoreError::StateDirectory { path, reason })
}

/// The id of the user who owns what this process makes in a directory.
fn user(directory: &Path) -> io::Result<u32> {
    Ok(tempfile::tempfile_in(directory)?.metadata()?.uid())
}

/// Makes a directory, and those on the way to it, for this user alone.
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)
}

/// A temporary directory. It is removed when this is dropped, or, if the process is killed, by the next process that
/// makes one.
#[derive(Debug)]
pub(crate) struct Scratch {
    directory: TempDir,
    _held: HeldFile,
}

impl Scratch {
    /// Makes a directory, and removes those of processes that died.
    ///
    /// # Errors
    /// There is no place for temporary files.
    pub(crate) fn new() -> io::Result<Self> {
        let of_all = env::temp_dir();
        again(|| {
            let directory = TempDir::with_prefix_in(PREFIX, &of_all)?;
            remove_left(&of_all, directory.path().metadata()?.uid());
            let held = HeldFile::create(directory.path().join(HELD))?;
            Ok(Self {
                directory,
                _held: held,
            })
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories that processes of a user left when they died. One that can't be removed stays for the next
/// process.
fn remove_left(of_all: &Path, user: u32) {
    for entry in fs::read_dir(of_all).into_iter().flatten().flatten() {
        let is_named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        // Of the entry itself: a link is left alone.
        let is_own = |found: fs::Metadata| found.is_dir() && found.uid() == user;
        if is_named
            && entry.metadata().is_ok_and(is_own)
            && let Some(_held) = HeldFile::of_the_dead(&entry.path().join(HELD))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// How often a file is made anew that others remove.
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
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_could_have_made_is_refused() {
        let of_all = tempfile::tempdir().unwrap();
        let path = shared_directory(of_all.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(shared_directory(of_all.path()).unwrap(), path);

        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let error = shared_directory(of_all.path()).unwrap_err().to_string();
        assert!(error.contains("--state-dir"), "{error}");
        fs::remove_dir(&path).unwrap();
        symlink(of_all.path(), &path).unwrap();
        assert!(shared_directory(of_all.path()).is_err());
    }

    #[test]
    fn only_what_the_dead_left_is_removed() {
        let of_all = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = of_all.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (dead, live, other) = (
            directory("rollstream-1"),
            directory("rollstream-2"),
            directory("x"),
        );
        for left in [&dead, &other] {
            fs::write(left.join(HELD), "").unwrap();
        }
        let _held = HeldFile::create(live.join(HELD)).unwrap();
        let unknown = directory("rollstream-3");
        remove_left(of_all.path(), user(of_all.path()).unwrap() + 1);
        assert!(dead.exists());
        remove_left(of_all.path(), user(of_all.path()).unwrap());
        assert_eq!(
            [&dead, &live, &other, &unknown].map(|path| path.exists()),
            [false, true, true, true]
        );
    }

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
