//! [`Compacted`]: parts that take the place of others, all of a table at once for whoever lists its directory.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::local::{COMPACTED, LocalStore, sync_directory};
use super::{RunStore, SegmentName, StoreError, Writer, part_name};

/// Parts on their way to take the place of others.
///
/// A table's directory is made anew beside it, with the new parts and all that stays, and then the two change places in
/// one step: nobody who lists it finds a row twice, or misses one. What was replaced can still be read by those who
/// listed it before, until this is dropped. Needs a lock of the whole run, and a local disk: an object store has no
/// such step.
#[derive(Debug)]
pub struct Compacted {
    disk: LocalStore,
}

impl Compacted {
    /// Begins to replace parts of a run; `None` where it is not on a local disk.
    ///
    /// # Errors
    /// What a process that died left can't be removed.
    pub fn begin(run: &RunStore) -> Result<Option<Self>, StoreError> {
        let Some(disk) = run.disk().cloned() else {
            return Ok(None);
        };
        let compacted = Self { disk };
        compacted.clear()?;
        Ok(Some(compacted))
    }

    /// Name of a new part, relative to the run, until it is published.
    pub fn name(&self, table: &str, segment: SegmentName) -> String {
        format!("{COMPACTED}/{}", part_name(table, segment))
    }

    /// Puts the new parts of a table in the place of those of some segments. Says whether it did: not every file system
    /// can do this, and then all stays as it is.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn publish(
        &self,
        table: &str,
        replaced: &[SegmentName],
        writer: &Writer,
    ) -> Result<bool, StoreError> {
        let replaced = replaced.iter().map(|segment| part_name(table, segment));
        let root = self.disk.root();
        let replaced: HashSet<PathBuf> = replaced.map(|name| root.join(name)).collect();
        let (old, new) = (root.join(table), root.join(COMPACTED).join(table));
        let _permit = writer.permit().await;
        let exchange = || {
            fs::set_permissions(&new, fs::metadata(&old)?.permissions())?;
            for entry in fs::read_dir(&old)? {
                let entry = entry?;
                if !replaced.contains(&entry.path()) {
                    fs::hard_link(entry.path(), new.join(entry.file_name()))?;
                }
            }
            sync_directory(&new)?;
            renameat_with(CWD, &old, CWD, &new, RenameFlags::EXCHANGE)?;
            sync_directory(root)
        };
        match exchange() {
            Ok(()) => Ok(true),
            // No hard links, or nothing that changes places.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput
                        | ErrorKind::Unsupported
                        | ErrorKind::PermissionDenied
                        | ErrorKind::CrossesDevices
                ) =>
            {
                Ok(false)
            }
            Err(source) => Err(StoreError::File {
                action: "replace small parts in",
                path: old.clone(),
                source,
            }),
        }
    }

    /// Removes what was replaced, or not published.
    fn clear(&self) -> Result<(), StoreError> {
        let path = self.disk.root().join(COMPACTED);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(StoreError::File {
                action: "remove",
                path,
                source,
            }),
            _ => {
                // One that is not empty stays.
                let _ = path.parent().map(fs::remove_dir);
                Ok(())
            }
        }
    }
}

impl Drop for Compacted {
    fn drop(&mut self) {
        // The next writer removes what is left.
        let _ = self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ROLLOUTS;

    #[tokio::test]
    async fn what_was_listed_can_be_read_until_the_end_and_is_not_listed_again() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
        let writer = Writer::unlocked(1);
        let segments: Vec<SegmentName> = (0..4).map(|_| writer.segment(0)).collect();
        let parts: Vec<String> = segments
            .iter()
            .map(|segment| part_name(ROLLOUTS, segment))
            .collect();
        for part in &parts[..3] {
            run.put(part, part.clone()).await.unwrap();
        }
        let listed = async || {
            let listed = run.parts(ROLLOUTS).await.unwrap();
            let names = listed.iter().map(|path| run.display_path(path));
            names.collect::<Vec<_>>()
        };
        let shown = |parts: &[&String]| {
            let shown = parts.iter().map(|part| run.display(part));
            shown.collect::<Vec<_>>()
        };

        let compacted = Compacted::begin(&run).unwrap().unwrap();
        let new = compacted.name(ROLLOUTS, segments[3]);
        run.put(&new, "new").await.unwrap();
        assert_eq!(listed().await, shown(&[&parts[0], &parts[1], &parts[2]]));
        let replaced = compacted.publish(ROLLOUTS, &segments[..2], &writer);
        assert!(replaced.await.unwrap());
        assert_eq!(listed().await, shown(&[&parts[2], &parts[3]]));
        for part in &parts[..3] {
            assert_eq!(run.get(part).await.unwrap().unwrap(), part.as_bytes());
        }
        assert_eq!(run.get(&parts[3]).await.unwrap().unwrap(), "new");

        drop(compacted);
        assert_eq!(listed().await, shown(&[&parts[2], &parts[3]]));
        assert_eq!(run.get(&parts[0]).await.unwrap(), None);
        assert_eq!(
            run.get(&parts[2]).await.unwrap().unwrap(),
            parts[2].as_bytes()
        );
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
