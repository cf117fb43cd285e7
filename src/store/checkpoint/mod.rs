//! Copies of a run's local journal on its object store, from which a run resumes where the machine that wrote the journal
//! is lost or far away.
//!
//! Files of a journal only grow. What a file `NAME` has grown by since the last time is put as a chunk
//! `journal/NAME/OFFSET`, and no chunk is ever written again. What can be read of a copy is what follows without a gap
//! from offset 0. A [`Checkpointer`] makes the copies and deletes those of files that have gone, [`list`] and [`fetch`]
//! read them, [`forget`] deletes one. A run on a local disk has none.

mod chunks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::SeekFrom;
use std::time::Duration;

use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::time::{Instant, MissedTickBehavior};

pub(super) use chunks::forget_all;
pub use chunks::{CheckpointedFile, fetch, forget, list};

use super::error::if_there;
use super::journal::JournalFile;
use super::{RunStore, StoreError};

/// Most bytes of a chunk, which is held in memory while it is put.
const CHUNK_BYTES: u64 = 4 * 1024 * 1024;

/// Copies what this process writes to its local journal to the run's object store.
#[derive(Debug)]
pub struct Checkpointer {
    run: RunStore,
    epoch: u64,
    /// Bytes of each own file that are on the store.
    copied: BTreeMap<String, u64>,
    has_listed: bool,
    chunk_bytes: u64,
}

impl Checkpointer {
    /// Copies the journal files of the writer of this epoch, and leaves the other files of the journal and their copies
    /// alone.
    ///
    /// To be made after [`fetch`] and before what an earlier process left is landed: the copy of a dispatch log is deleted
    /// only if the log was seen here and has gone.
    pub fn new(run: RunStore, epoch: u64) -> Result<Self, StoreError> {
        let mut new = Self {
            run,
            epoch,
            copied: BTreeMap::new(),
            has_listed: false,
            chunk_bytes: CHUNK_BYTES,
        };
        if new.run.local_path().is_none() {
            let present = new.present()?.unwrap_or_default();
            new.copied = present.into_iter().map(|name| (name, 0)).collect();
        }
        Ok(new)
    }

    #[cfg(test)]
    pub(super) fn with_chunk_bytes(self, chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            ..self
        }
    }

    /// Copies what own files have grown by, and deletes the copies of those that have gone. A segment has gone when it has
    /// become parts: the copy of one that just disappeared stays. Returns the bytes that were copied; none for a local
    /// run. May be dropped at any point, and called again.
    ///
    /// # Errors
    /// The first failure of the store or the disk. Other files are copied nevertheless, unless the store does not answer;
    /// the next call makes up for it.
    pub async fn checkpoint(&mut self) -> Result<u64, StoreError> {
        if self.run.local_path().is_some() {
            return Ok(0);
        }
        if !self.has_listed {
            self.find_copies().await?;
        }
        let present = self.present()?;
        for name in present.iter().flatten() {
            self.copied.entry(name.clone()).or_default();
        }
        let names: Vec<String> = self.copied.keys().cloned().collect();
        let (mut copied, mut failure) = (0, None);
        for name in names {
            let done = match &present {
                Some(present) if present.contains(&name) => self.copy(&name).await,
                _ => self.clean(&name, present.is_some()).await.map(|()| 0),
            };
            match done {
                Ok(bytes) => copied += bytes,
                Err(error) => {
                    let is_silent = matches!(error, StoreError::NoAnswer { .. });
                    failure.get_or_insert(error);
                    if is_silent {
                        break;
                    }
                }
            }
        }
        failure.map_or(Ok(copied), Err)
    }

    /// Calls [`Self::checkpoint`] every `interval` for as long as it is polled, to be polled beside the work. After each
    /// failure `on_failure` is told with [`StoreError::NotCheckpointed`].
    pub async fn keep(&mut self, interval: Duration, mut on_failure: impl FnMut(StoreError)) -> ! {
        let interval = interval.max(Duration::from_millis(1));
        let mut last = Instant::now();
        let mut ticks = tokio::time::interval_at(last + interval, interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let began = Instant::now();
            match self.checkpoint().await {
                Ok(_) => last = began,
                Err(source) => on_failure(StoreError::NotCheckpointed {
                    place: self.run.display(""),
                    silent: Duration::from_secs(last.elapsed().as_secs()),
                    source: Box::new(source),
                }),
            }
        }
    }

    /// Learns what earlier processes have copied.
    async fn find_copies(&mut self) -> Result<(), StoreError> {
        for copy in list(&self.run).await? {
            let is_known = self.copied.contains_key(&copy.file);
            if copy.name.epoch == self.epoch && (is_known || chunks::segment(&copy.file).is_some())
            {
                let num_bytes = copy.num_bytes();
                self.copied.insert(copy.file, num_bytes);
            }
        }
        self.has_listed = true;
        Ok(())
    }

    /// Lists the names of own files, `None` where there is no directory.
    fn present(&self) -> Result<Option<BTreeSet<String>>, StoreError> {
        let directory = self.run.journal_dir();
        let mut files = JournalFile::segments(directory)?;
        files.extend(JournalFile::dispatch_logs(directory)?);
        let own = files.iter().filter(|file| file.name().epoch == self.epoch);
        let names = own.filter_map(|file| file.path().file_name()?.to_str());
        let names = names.map(str::to_owned).collect();
        // Asked last: of a directory that goes meanwhile, not all was listed.
        Ok(directory.is_dir().then_some(names))
    }

    /// Puts what a file has grown by, as far as it is when this is called.
    async fn copy(&mut self, name: &str) -> Result<u64, StoreError> {
        let path = self.run.journal_dir().join(name);
        let failed = StoreError::file("read", &path);
        let Some(mut file) = if_there(File::open(&path).await).map_err(&failed)? else {
            // It has just gone; the next call sees to it.
            return Ok(0);
        };
        let len = file.metadata().await.map_err(&failed)?.len();
        let start = self.copied.get(name).copied().unwrap_or_default();
        let mut offset = start;
        while offset < len {
            let wanted = (len - offset).min(self.chunk_bytes);
            let mut content = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
            let from = SeekFrom::Start(offset);
            file.seek(from).await.map_err(&failed)?;
            let mut rest = (&mut file).take(wanted);
            rest.read_to_end(&mut content).await.map_err(&failed)?;
            if content.is_empty() {
                break;
            }
            offset += chunks::put(&self.run, name, offset, content).await?;
            self.copied.insert(name.to_owned(), offset);
        }
        Ok(offset - start)
    }

    /// Deletes the copy of a file that has gone.
    async fn clean(&mut self, name: &str, has_directory: bool) -> Result<(), StoreError> {
        // Who deletes the machine's state must not thereby delete the copies of it.
        let is_done = match chunks::segment(name) {
            Some(segment) => chunks::is_landed(&self.run, segment).await?,
            None => has_directory,
        };
        if is_done {
            chunks::forget(&self.run, name).await?;
            self.copied.remove(name);
        }
        Ok(())
    }
}
