//! The objects of a run: reading, writing, listing and removing them, and which Parquet parts of a table are whole.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetResult, ListResult, ObjectMeta, ObjectStoreExt, PutMode, PutPayload, Result as Stored,
};
use serde::Serialize;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::part::PartExchange;
use super::patient::Patience;
use super::place::{JOURNAL, RunStore};
use super::upload::{Upload, abort_left};
use super::{LockScope, SegmentName, StoreError, checkpoint, error};
use crate::schema;

/// Directory of parts that were found damaged.
const DAMAGED: &str = "damaged";

/// Bytes at the end of a Parquet file that say where its metadata begins.
const FOOTER: u64 = 8;

/// Parts that are checked at once.
const MAX_CHECKS: usize = 32;

/// Bytes of a file that are read at a time.
const UPLOAD_BUFFER: usize = 256 * 1024;

/// Directory of the objects by which a driver and the executors of a cluster talk.
pub(crate) const CLUSTER: &str = "cluster";

/// What each executor of a cluster does for the run.
pub(crate) const EXECUTORS: &str = "cluster/executors.json";

/// Files of a run beside its tables, its journal and its locks.
const DOCUMENTS: [&str; 6] = [
    "run.json",
    "aggregate_metrics.json",
    "reward_profiling.jsonl",
    "agent_metrics.json",
    "tracker_mlflow.json",
    "tracker_wandb.json",
];

/// The parts of a table.
#[derive(Debug, Default, Clone)]
pub struct CheckedParts {
    /// Those that can be read.
    pub whole: Vec<ObjectMeta>,
    /// Those that can't.
    pub damaged: Vec<Path>,
}

impl RunStore {
    /// Returns an object piece by piece, `None` where there is no such object.
    ///
    /// # Errors
    /// The store failed; so do the pieces.
    pub async fn stream(
        &self,
        relative: &str,
    ) -> Result<Option<BoxStream<'static, Result<Bytes, StoreError>>>, StoreError> {
        let object = self.display(relative);
        let found = self.find(relative).await?;
        Ok(found.map(|found| {
            let failed = move |source| StoreError::object("read", object.clone(), source);
            found.into_stream().map_err(failed).boxed()
        }))
    }

    /// Returns the content of an object, `None` where there is no such object.
    pub async fn get(&self, relative: &str) -> Result<Option<Bytes>, StoreError> {
        let Some(found) = self.find(relative).await? else {
            return Ok(None);
        };
        let bytes = found.bytes().await;
        bytes.map(Some).map_err(self.failed("read", relative))
    }

    async fn find(&self, relative: &str) -> Result<Option<GetResult>, StoreError> {
        let found = self.object_store().get(&self.path(relative)).await;
        if_there(found).map_err(self.failed("read", relative))
    }

    /// Returns the time at which a file directly in the run was written, `None` where there is no such file. The time is
    /// that of a list, as in [`Self::landed_at`]: the head of an object may tell it in whole seconds.
    pub async fn written_at(&self, name: &str) -> Result<Option<DateTime<Utc>>, StoreError> {
        let (path, listed) = (self.path(name), self.listed("").await?);
        let found = listed.objects.iter().find(|file| file.location == path);
        Ok(found.map(|file| file.last_modified))
    }

    /// Returns the time at which the newest part of rollouts or attempts was written, `None` where there is none.
    pub async fn landed_at(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut parts = self.list(schema::ROLLOUTS).await?;
        parts.append(&mut self.list(schema::ATTEMPTS).await?);
        Ok(parts.iter().map(|part| part.last_modified).max())
    }

    /// Whether there is an object.
    pub async fn exists(&self, relative: &str) -> Result<bool, StoreError> {
        let found = if_there(self.object_store().head(&self.path(relative)).await);
        let found = found.map_err(self.failed("look for", relative))?;
        Ok(found.is_some())
    }

    /// Writes an object whole.
    pub async fn put(
        &self,
        relative: &str,
        content: impl Into<PutPayload>,
    ) -> Result<(), StoreError> {
        let path = self.path(relative);
        let done = self.object_store().put(&path, content.into()).await;
        done.map(drop).map_err(self.failed("write", relative))
    }

    /// Writes an object whole unless it exists, and says whether it did. An answer that was lost on the way may make it
    /// say that it did not, or fail, though it did.
    pub async fn create(
        &self,
        relative: &str,
        content: impl Into<PutPayload>,
    ) -> Result<bool, StoreError> {
        let (path, mode) = (self.path(relative), PutMode::Create.into());
        let put = self.object_store().put_opts(&path, content.into(), mode);
        match put.await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(self.failed("create", relative)(source)),
        }
    }

    /// The text of a JSON object of the run.
    pub(crate) fn json(
        &self,
        relative: &str,
        value: &impl Serialize,
    ) -> Result<Vec<u8>, StoreError> {
        let text = serde_json::to_vec_pretty(value);
        let mut text = text.map_err(|source| StoreError::Record {
            object: self.display(relative),
            source: source.into(),
        })?;
        text.push(b'\n');
        Ok(text)
    }

    /// Writes an object whole from a file of any size.
    ///
    /// # Errors
    /// The store failed; then nothing is visible.
    pub async fn upload(&self, relative: &str, mut from: File) -> Result<(), StoreError> {
        let mut upload = Upload::new(self, relative);
        let failed = self.failed("write", relative);
        loop {
            let mut bytes = BytesMut::with_capacity(UPLOAD_BUFFER);
            match from.read_buf(&mut bytes).await {
                Ok(0) => break,
                Ok(_) => upload.push(bytes.freeze()).await.map_err(&failed)?,
                Err(source) => {
                    upload.abort().await;
                    let path = self.display(relative);
                    return Err(StoreError::file("read what is to become", &path)(source));
                }
            }
        }
        upload.finish().await.map_err(failed)
    }

    /// Lists every object below a directory of the run.
    pub async fn list(&self, relative: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let listed = self.object_store().list(Some(&self.path(relative)));
        let listed = listed.try_collect().await;
        listed.map_err(self.failed("list", relative))
    }

    /// Lists what is directly in a directory: the names of its files, and of its directories.
    pub async fn entries(&self, relative: &str) -> Result<(Vec<String>, Vec<String>), StoreError> {
        let listed = self.listed(relative).await?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let files = listed.objects.iter().map(|object| &object.location);
        let folders = listed.common_prefixes.iter();
        Ok((
            files.filter_map(name).collect(),
            folders.filter_map(name).collect(),
        ))
    }

    async fn listed(&self, relative: &str) -> Result<ListResult, StoreError> {
        let listed = self.object_store();
        let listed = listed.list_with_delimiter(Some(&self.path(relative))).await;
        listed.map_err(self.failed("list", relative))
    }

    /// Deletes an object, if it exists.
    pub async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        let deleted = if_there(self.object_store().delete(path).await);
        deleted.map(drop).map_err(self.failed_at("delete", path))
    }

    /// Lists the Parquet parts of a table, in the order of their names.
    pub async fn parts(&self, table: &str) -> Result<Vec<Path>, StoreError> {
        let listed = self.listed_parts(table).await?;
        Ok(listed.into_iter().map(|meta| meta.location).collect())
    }

    async fn listed_parts(&self, table: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let mut listed = self.list(table).await?;
        listed.retain(|meta| meta.location.extension() == Some("parquet"));
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        Ok(listed)
    }

    /// Tells the parts of a table that are whole from those that are damaged, both in the order of their names: a power
    /// cut or a copy that ended early left less of them than was written.
    pub async fn checked_parts(&self, table: &str) -> Result<CheckedParts, StoreError> {
        self.checked_parts_for(table, LockScope::Run).await
    }

    /// [`Self::checked_parts`] that may have rows of a share of the run.
    pub async fn checked_parts_for(
        &self,
        table: &str,
        share: LockScope,
    ) -> Result<CheckedParts, StoreError> {
        let mut listed = self.listed_parts(table).await?;
        listed.retain(|part| {
            let segment = SegmentName::of_part(part.location.as_ref());
            segment.is_none_or(|name| name.may_have_rows_of(share))
        });
        let checks = listed.into_iter().map(|meta| self.checked(meta));
        let mut parts = CheckedParts::default();
        let mut checks = stream::iter(checks.collect::<Vec<_>>()).buffered(MAX_CHECKS);
        while let Some(checked) = checks.try_next().await? {
            match checked {
                Some((meta, true)) => parts.whole.push(meta),
                Some((meta, false)) => parts.damaged.push(meta.location),
                None => {}
            }
        }
        Ok(parts)
    }

    /// Returns what a Parquet file is now, and whether it has its end; none where the file has gone.
    async fn checked(
        &self,
        mut meta: ObjectMeta,
    ) -> Result<Option<(ObjectMeta, bool)>, StoreError> {
        let location = meta.location.clone();
        let failed = self.failed_at("read", &location);
        loop {
            let found = match self.end_of(&location, meta.size).await {
                Ok(true) => return Ok(Some((meta, true))),
                found => found,
            };
            // A collector may have put a new file in its place since it was listed.
            let now = if_there(self.object_store().head(&location).await);
            match now.map_err(&failed)? {
                None => return Ok(None),
                Some(now) if now.size == meta.size => {
                    return found.map(|found| Some((meta, found))).map_err(failed);
                }
                Some(now) => meta = now,
            }
        }
    }

    /// Whether a file of a size ends as Parquet files do.
    async fn end_of(&self, path: &Path, size: u64) -> Stored<bool> {
        let Some(begin) = size.checked_sub(FOOTER) else {
            return Ok(false);
        };
        let end = self.object_store().get_range(path, begin..size).await?;
        let length = end
            .first_chunk()
            .copied()
            .map_or(u32::MAX, u32::from_le_bytes);
        Ok(end.ends_with(b"PAR1") && u64::from(length) < size)
    }

    /// Moves a damaged part to where nobody reads it, and returns its new name within the run.
    pub async fn set_aside(&self, part: &Path) -> Result<String, StoreError> {
        let parts: Vec<_> = part.parts().collect();
        let name = match parts.as_slice() {
            [.., table, file] => format!("{DAMAGED}/{}/{}", table.as_ref(), file.as_ref()),
            _ => format!("{DAMAGED}/{part}"),
        };
        let moved = self.object_store().rename(part, &self.path(&name)).await;
        moved.map_err(self.failed_at("set aside", part))?;
        Ok(name)
    }

    /// Whether damaged parts were set aside.
    pub async fn has_damaged(&self) -> Result<bool, StoreError> {
        Ok(!self.list(DAMAGED).await?.is_empty())
    }

    /// Names something that only a run leaves at its place, if there is any.
    pub async fn remains(&self) -> Result<Option<String>, StoreError> {
        for table in schema::TABLES {
            if let Some(part) = self.parts(table).await?.first() {
                return Ok(Some(self.display_path(part)));
            }
        }
        let journal = self.list(JOURNAL).await?;
        let first = journal.first();
        Ok(first.map(|object| self.display_path(&object.location)))
    }

    /// Returns the id of the run whose journal is at the place, where its record can't be read.
    pub async fn find_run_id(&self) -> Result<Option<String>, StoreError> {
        let root = self.path(JOURNAL);
        let journal = self.list(JOURNAL).await?;
        let id = |object: &ObjectMeta| {
            let mut parts = object.location.prefix_match(&root)?;
            let id = parts.next()?.as_ref().to_owned();
            parts.next().map(|_| id)
        };
        let mut ids: Vec<String> = journal.iter().filter_map(id).collect();
        ids.dedup();
        Ok(ids.pop().filter(|_| ids.is_empty()))
    }

    /// Removes everything that a run left at the place, and nothing else. The locks stay: who clears holds one.
    pub async fn clear(&self) -> Result<(), StoreError> {
        // While there is a run.json: else the next run could take these answers for its own.
        checkpoint::forget_all(self).await?;
        let tables = schema::TABLES.into_iter();
        for table in tables.chain(["groups", "metrics", DAMAGED]) {
            for path in self.parts(table).await? {
                self.delete(&path).await?;
            }
        }
        for object in DOCUMENTS {
            self.delete(&self.path(object)).await?;
        }
        self.clear_cluster().await?;
        if let Some(journal) = self.own_journals() {
            remove_all(journal)?;
        }
        self.tidy().await
    }

    /// Removes what a driver and executors told each other.
    pub(crate) async fn clear_cluster(&self) -> Result<(), StoreError> {
        for object in self.list(CLUSTER).await? {
            self.delete(&object.location).await?;
        }
        Ok(())
    }

    /// Removes what processes of this machine left that died while they wrote: uploads that they had not ended, and
    /// parts that were to take the place of others.
    pub async fn tidy(&self) -> Result<(), StoreError> {
        drop(PartExchange::begin(self)?);
        abort_left(self).await
    }

    /// Does `work` on an object, unless the store takes longer than `limit`, and as long again as it is waited for.
    ///
    /// # Errors
    /// Those of the work, or [`StoreError::NoAnswer`].
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        action: &'static str,
        relative: &str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let patience = self.patience().map(Patience::longest);
        let after = limit.saturating_add(patience.unwrap_or_default());
        let answered = tokio::time::timeout(after, work).await;
        answered.unwrap_or_else(|_| {
            Err(StoreError::NoAnswer {
                action,
                object: self.display(relative),
                after,
            })
        })
    }

    /// Makes an error of what the store says about an object of the run.
    pub(super) fn failed(
        &self,
        action: &'static str,
        relative: &str,
    ) -> impl Fn(Error) -> StoreError {
        move |source| StoreError::object(action, self.display(relative), source)
    }

    /// Makes an error of what the store says about the object at a path.
    pub(super) fn failed_at(
        &self,
        action: &'static str,
        path: &Path,
    ) -> impl Fn(Error) -> StoreError {
        move |source| StoreError::object(action, self.display_path(path), source)
    }
}

/// `None` in place of the error that there is no such object.
pub(super) fn if_there<T>(found: Stored<T>) -> Stored<Option<T>> {
    match found {
        Err(Error::NotFound { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Removes a local directory, if it exists, with all that is in it.
pub(super) fn remove_all(directory: &std::path::Path) -> Result<(), StoreError> {
    let removed = error::if_there(std::fs::remove_dir_all(directory));
    removed
        .map(drop)
        .map_err(StoreError::file("remove", directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_was_replaced_since_it_was_listed_is_not_damaged() {
        let whole = |padding: usize| {
            let mut bytes = vec![0; padding];
            bytes.extend([1, 0, 0, 0]);
            bytes.extend(*b"PAR1");
            Bytes::from(bytes)
        };
        let run = RunStore::open("memory:///replaced", None).unwrap();
        for (before, after) in [(100, 10), (10, 100)] {
            run.put("tasks/tasks.parquet", whole(before)).await.unwrap();
            let listed = run.list("tasks").await.unwrap().remove(0);
            run.put("tasks/tasks.parquet", whole(after)).await.unwrap();
            let (now, is_whole) = run.checked(listed).await.unwrap().unwrap();
            assert_eq!((now.size, is_whole), (whole(after).len() as u64, true));
        }
        run.put(
            "tasks/tasks.parquet",
            Bytes::from_static(b"torn by a power cut"),
        )
        .await
        .unwrap();
        let listed = run.list("tasks").await.unwrap().remove(0);
        let checked = run.checked(listed).await.unwrap();
        assert_eq!(checked.map(|(_, is_whole)| is_whole), Some(false));
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_not_waited_for() {
        let run = RunStore::open("memory:///silent", None).unwrap();
        let silent = std::future::pending::<Result<(), StoreError>>();
        let error = run.within(Duration::ZERO, "read", "run.json", silent).await;
        assert_eq!(
            error.unwrap_err().to_string(),
            "cannot read memory:///silent/run.json: the store did not answer within 0s"
        );
    }
}
