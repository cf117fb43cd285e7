//! [`JournalFile`]: a file of a run's journal, whose [`SegmentName`] says who wrote it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::dispatch_record::DISPATCHES;
use super::error::if_there;
use super::local::create_directory;
use super::segment::SEGMENT;
use super::{LockScope, StoreError};

/// Directory within a journal for its damaged files.
const DAMAGED: &str = "damaged";

/// A file of a journal: a segment, or a dispatch log.
#[derive(Debug, Clone)]
pub struct JournalFile {
    path: PathBuf,
    name: SegmentName,
}

impl JournalFile {
    pub(super) fn new(directory: &Path, name: SegmentName, extension: &str) -> Self {
        let path = directory.join(format!("{name}.{extension}"));
        Self { path, name }
    }

    /// Lists the files in a directory that have an extension, oldest first; none if the directory does not exist.
    fn list(directory: &Path, extension: &str) -> Result<Vec<Self>, StoreError> {
        let failed = StoreError::file("read", directory);
        let entries = if_there(fs::read_dir(directory)).map_err(&failed)?;
        let mut files = Vec::new();
        for entry in entries.into_iter().flatten() {
            let path = entry.map_err(&failed)?.path();
            if path.extension().is_some_and(|found| found == extension)
                && let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
                && let Ok(name) = stem.parse()
            {
                files.push(Self { path, name });
            }
        }
        files.sort_by_key(|file| file.name);
        Ok(files)
    }

    /// Lists the segments in a directory, oldest first; none if the directory does not exist.
    pub fn segments(directory: &Path) -> Result<Vec<Self>, StoreError> {
        Self::list(directory, SEGMENT)
    }

    /// Lists the dispatch logs in a directory, oldest first; none if the directory does not exist.
    pub fn dispatch_logs(directory: &Path) -> Result<Vec<Self>, StoreError> {
        Self::list(directory, DISPATCHES)
    }

    /// Its name, without the extension. The parts that a segment becomes have the same.
    pub fn name(&self) -> SegmentName {
        self.name
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file; no error if it is already gone.
    pub fn remove(&self) -> Result<(), StoreError> {
        let removed = if_there(fs::remove_file(&self.path));
        removed
            .map(drop)
            .map_err(StoreError::file("remove", &self.path))
    }

    /// Moves the file to the directory of those that were found damaged, where nobody reads it again, and returns its new
    /// path.
    pub fn set_aside(&self) -> Result<PathBuf, StoreError> {
        let moved = || {
            let directory = self.path.with_file_name(DAMAGED);
            fs::create_dir_all(&directory)?;
            let to = directory.join(self.path.file_name().unwrap_or_default());
            fs::rename(&self.path, &to)?;
            Ok(to)
        };
        moved().map_err(StoreError::file("set aside", &self.path))
    }
}

/// How often a directory of a journal is made before it is given up.
const ATTEMPTS: usize = 100;

/// Does `work` in the directory of a journal, which is made if it is not there. If it goes meanwhile, both are done again: a
/// shard that ends removes the directory when it is empty.
pub(crate) fn in_directory<T>(
    directory: &Path,
    mut work: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut attempt = || create_directory(directory).and_then(|()| work());
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    attempt()
}

/// Name of a file of a journal, `EPOCH-SCOPE-ORIGIN-NUMBER`. The parts that a segment becomes have the same name.
///
/// Names sort by epoch. No two writers of a run have the same epoch, so no two ever write the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Epoch of the writer.
    pub epoch: u64,
    /// Share of the run that the writer's lock covers.
    pub scope: LockScope,
    /// Where its rows come from.
    pub origin: Origin,
    /// Number of the file, unique within its writer.
    pub number: u32,
}

/// Where the rows of a segment come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A partition of the writer's plan, `pNUMBER`.
    Partition(usize),
    /// A writer of another share, `recovered`: rows of any share.
    Recovered,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Partition(number) => write!(formatter, "p{number:02}"),
            Self::Recovered => formatter.write_str("recovered"),
        }
    }
}

impl SegmentName {
    /// Returns the segment that the part at this path comes from; `None` if it has another origin, such as an import.
    pub fn of_part(path: &str) -> Option<Self> {
        let (_, file) = path.rsplit_once('/').unwrap_or(("", path));
        file.strip_suffix(".parquet")?.parse().ok()
    }

    /// Whether it may have rows of a share of the run.
    pub fn may_have_rows_of(&self, share: LockScope) -> bool {
        self.origin == Origin::Recovered || self.scope.overlaps(share)
    }

    /// Whether the writer of `other` could have taken over and written rows of this segment again: it came later,
    /// and its share of the run overlaps.
    pub fn may_be_superseded_by(&self, other: &Self) -> bool {
        other.epoch > self.epoch && other.scope.overlaps(self.scope)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            epoch,
            scope,
            origin,
            number,
        } = self;
        write!(formatter, "{epoch:010}-")?;
        match scope {
            LockScope::Run => formatter.write_str("run")?,
            LockScope::Shard { index, count } => write!(formatter, "s{index}of{count}")?,
        }
        write!(formatter, "-{origin}-{number:05}")
    }
}

/// The error for a text that is not the name of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a segment")]
pub struct NotASegment;

impl FromStr for SegmentName {
    type Err = NotASegment;

    fn from_str(text: &str) -> Result<Self, NotASegment> {
        let parse = || {
            let mut fields = text.split('-');
            let epoch = fields.next()?.parse().ok()?;
            let scope = match fields.next()? {
                "run" => LockScope::Run,
                shard => {
                    let (index, count) = shard.strip_prefix('s')?.split_once("of")?;
                    LockScope::Shard {
                        index: index.parse().ok()?,
                        count: count.parse().ok()?,
                    }
                }
            };
            let origin = match fields.next()? {
                "recovered" => Origin::Recovered,
                partition => Origin::Partition(partition.strip_prefix('p')?.parse().ok()?),
            };
            let number = fields.next()?.parse().ok()?;
            let name = Self {
                epoch,
                scope,
                origin,
                number,
            };
            // Accepts the canonical spelling only: two spellings of one name would count as two segments.
            (fields.next().is_none() && name.to_string() == text).then_some(name)
        };
        parse().ok_or(NotASegment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_remove_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("run/journal");
        let mut removals = 0..3;
        let created = in_directory(&directory, || {
            if removals.next().is_some() {
                for removed in directory.ancestors().take(2) {
                    fs::remove_dir(removed)?;
                }
            }
            fs::File::create_new(directory.join("segment"))
        });
        created.unwrap();
        assert_eq!(removals.next(), None);
    }

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let shard = LockScope::Shard { index: 2, count: 8 };
        let first = Origin::Partition(1);
        for (scope, origin, text) in [
            (LockScope::Run, first, "0000000003-run-p01-00007"),
            (shard, first, "0000000003-s2of8-p01-00007"),
            (shard, Origin::Recovered, "0000000003-s2of8-recovered-00007"),
        ] {
            let name = SegmentName {
                epoch: 3,
                scope,
                origin,
                number: 7,
            };
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
            let part = format!("rollouts/{text}.parquet");
            assert_eq!(SegmentName::of_part(&part), Some(name));
        }
        for other in ["tasks", "3-run-p01-00007", "0000000003-run-p01-00007-x"] {
            assert_eq!(other.parse::<SegmentName>(), Err(NotASegment), "{other}");
        }
    }

    #[test]
    fn only_a_later_writer_of_the_same_share_supersedes() {
        let name = |text: &str| text.parse::<SegmentName>().unwrap();
        let one = name("0000000003-s1of2-p00-00000");
        for (other, expected) in [
            ("0000000004-run-p00-00000", true),
            ("0000000004-s1of2-p00-00000", true),
            ("0000000004-s2of2-p00-00000", false),
            ("0000000003-s1of2-p01-00001", false),
            ("0000000002-run-p00-00000", false),
        ] {
            assert_eq!(one.may_be_superseded_by(&name(other)), expected, "{other}");
        }
    }
}
