use std::env;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use url::Url;

use super::connect::{NamedUploads, connect};
use super::multipart::abort_left;
use super::upload::Upload;
use super::{StoreError, checkpoint};
use crate::schema;

/// Directory of the journal within a local run.
const JOURNAL: &str = "journal";

/// Stands for the id of a run where that is not known. No run has it.
const UNIDENTIFIED: &str = "unidentified-run";

/// Directory, beside the journal of a run in an object store, of the names of uploads that are open.
const UPLOADS: &str = "uploads";

/// Bytes of a file that are read at a time.
const UPLOAD_BUFFER: usize = 256 * 1024;

/// Directory of parts that were found damaged.
pub(super) const DAMAGED: &str = "damaged";

/// Bytes at the end of a Parquet file that say where its metadata begins.
const FOOTER: u64 = 8;

/// Parts that are checked at once.
const MAX_CHECKS: usize = 32;

/// The parts of a table.
#[derive(Debug, Default, Clone)]
pub struct CheckedParts {
    /// Those that can be read.
    pub whole: Vec<Path>,
    /// Those that can't.
    pub damaged: Vec<Path>,
}

/// The directory or object-store prefix that holds a run.
#[derive(Debug, Clone)]
pub struct RunStore {
    store: Arc<dyn ObjectStore>,
    uploads: Option<Arc<dyn NamedUploads>>,
    base: Url,
    prefix: Path,
    local: Option<PathBuf>,
    run_id: Option<Arc<str>>,
    /// Local directory of the journal.
    journal: PathBuf,
    /// Local directory that holds the journals of all runs that are or were at the place.
    state: PathBuf,
    uploads_dir: PathBuf,
}

impl RunStore {
    /// The place that `place` names: a path, `file://`, `s3://`, `gs://`, `az://` or `memory://`.
    /// Settings of object stores are taken from their usual environment variables. Nothing is
    /// created or asked yet. `state_dir` holds the journals of runs that are not on a local disk.
    ///
    /// # Errors
    /// The place is not an address, or its store can't be set up from the environment.
    pub fn open(place: &str, state_dir: Option<&FilePath>) -> Result<Self, StoreError> {
        let refuse = |reason: String| StoreError::Address {
            place: without_secrets(place),
            reason,
        };
        match Url::parse(place) {
            Ok(url) if url.scheme() == "file" => {
                let path = url
                    .to_file_path()
                    .map_err(|()| refuse("not an absolute file address".into()))?;
                Self::local(&path, refuse)
            }
            Ok(url) if place.contains("://") => {
                if !url.username().is_empty() || url.password().is_some() {
                    return Err(refuse(
                        "it holds a secret; put keys into environment variables".into(),
                    ));
                }
                let connected = connect(&url, &without_secrets(place))?;
                let mut base = url.clone();
                base.set_path("");
                let name = blake3::hash(place.trim_end_matches('/').as_bytes()).to_hex();
                let state = state_directory(state_dir);
                let uploads = state.join(name.get(..16).unwrap_or_default());
                let journal = state.join(UNIDENTIFIED).join(JOURNAL);
                Ok(Self {
                    store: connected.store,
                    uploads: connected.uploads,
                    base,
                    prefix: connected.path,
                    local: None,
                    run_id: None,
                    journal,
                    state,
                    uploads_dir: uploads.join(UPLOADS),
                })
            }
            Ok(url) if !url.cannot_be_a_base() && !FilePath::new(place).exists() => {
                let scheme = url.scheme();
                Err(refuse(format!(
                    "it begins like an address; write {scheme}:// or ./{place}"
                )))
            }
            _ => Self::local(FilePath::new(place), refuse),
        }
    }

    fn local(path: &FilePath, refuse: impl Fn(String) -> StoreError) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|source| refuse(source.to_string()))?;
        let prefix =
            Path::from_absolute_path(&path).map_err(|source| refuse(source.to_string()))?;
        let base = Url::parse("file:///").map_err(|source| refuse(source.to_string()))?;
        let store = Arc::new(LocalFileSystem::new());
        let journal = path.join(JOURNAL);
        Ok(Self {
            store,
            uploads: None,
            base,
            prefix,
            local: Some(path),
            run_id: None,
            state: journal.clone(),
            uploads_dir: journal.with_file_name(UPLOADS),
            journal,
        })
    }

    /// The same place with the journal of the run of this id. Nobody writes to the journal of a place that is not
    /// identified.
    pub fn identified(&self, run_id: &str) -> Self {
        let journal = match self.local {
            Some(_) => self.state.join(run_id),
            None => self.state.join(run_id).join(JOURNAL),
        };
        Self {
            run_id: Some(run_id.into()),
            journal,
            ..self.clone()
        }
    }

    /// Whether it is known which run's journal is meant.
    pub fn is_identified(&self) -> bool {
        self.run_id.is_some()
    }

    /// Directory of the copies of the journal within the run.
    pub(super) fn journal_copies(&self) -> String {
        match &self.run_id {
            Some(run_id) => format!("{JOURNAL}/{run_id}"),
            None => JOURNAL.to_owned(),
        }
    }

    /// The same place in another store.
    #[cfg(test)]
    pub(super) fn with_store(self, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, ..self }
    }

    /// The store behind the place.
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The store again, where what it has of an unfinished upload must be removed by name.
    pub(super) fn named_uploads(&self) -> Option<&Arc<dyn NamedUploads>> {
        self.uploads.as_ref()
    }

    /// Local directory of the names of uploads that are open.
    pub(super) fn uploads_dir(&self) -> &FilePath {
        &self.uploads_dir
    }

    /// Scheme and host, under which a session registers the store.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Local directory of the run, if it is on a local disk.
    pub fn local_path(&self) -> Option<&FilePath> {
        self.local.as_deref()
    }

    /// Local directory of the journal.
    pub fn journal_dir(&self) -> &FilePath {
        &self.journal
    }

    /// Path of an object of the run within the store.
    pub fn path(&self, relative: &str) -> Path {
        relative
            .split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// How a person names an object of the run: a path or an address.
    pub fn display(&self, relative: &str) -> String {
        match &self.local {
            Some(path) => {
                let shown = env::current_dir()
                    .ok()
                    .and_then(|dir| path.strip_prefix(dir).ok())
                    .unwrap_or(path);
                let shown = if relative.is_empty() {
                    shown.to_owned()
                } else {
                    shown.join(relative)
                };
                shown.display().to_string()
            }
            None => self.url(&self.path(relative)),
        }
    }

    /// Address of an object, as a session reads it.
    pub fn url(&self, path: &Path) -> String {
        // Where there is no host, all of `://` is to stay.
        let root = self.base.as_str();
        let root = root.strip_suffix(self.base.path()).unwrap_or(root);
        format!("{root}/{path}")
    }

    /// Text or bytes of an object, `None` where there is no such object.
    ///
    /// # Errors
    /// The store failed.
    pub async fn get(&self, relative: &str) -> Result<Option<Bytes>, StoreError> {
        let failed = |source| StoreError::Object {
            action: "read",
            object: self.display(relative),
            source,
        };
        match self.store.get(&self.path(relative)).await {
            Ok(found) => found.bytes().await.map(Some).map_err(failed),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    /// When an object was written; none where there is no such object.
    ///
    /// # Errors
    /// The store failed.
    pub async fn written_at(&self, relative: &str) -> Result<Option<DateTime<Utc>>, StoreError> {
        match self.store.head(&self.path(relative)).await {
            Ok(object) => Ok(Some(object.last_modified)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(StoreError::Object {
                action: "look for",
                object: self.display(relative),
                source,
            }),
        }
    }

    /// Whether there is an object.
    ///
    /// # Errors
    /// The store failed.
    pub async fn exists(&self, relative: &str) -> Result<bool, StoreError> {
        Ok(self.written_at(relative).await?.is_some())
    }

    /// Writes an object whole.
    ///
    /// # Errors
    /// The store failed.
    pub async fn put(
        &self,
        relative: &str,
        content: impl Into<PutPayload>,
    ) -> Result<(), StoreError> {
        let done = self.store.put(&self.path(relative), content.into()).await;
        done.map(|_| ()).map_err(|source| StoreError::Object {
            action: "write",
            object: self.display(relative),
            source,
        })
    }

    /// Writes an object whole unless it is there already. Says whether it did. An answer that was
    /// lost on the way may make it say that it did not, or fail, though it did.
    ///
    /// # Errors
    /// The store failed.
    pub async fn create(
        &self,
        relative: &str,
        content: impl Into<PutPayload>,
    ) -> Result<bool, StoreError> {
        let path = self.path(relative);
        let options = PutMode::Create.into();
        match self.store.put_opts(&path, content.into(), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(source) => Err(StoreError::Object {
                action: "create",
                object: self.display(relative),
                source,
            }),
        }
    }

    /// Writes an object whole from a file of any size.
    ///
    /// # Errors
    /// The store failed; then nothing is visible.
    pub async fn upload(&self, relative: &str, mut from: File) -> Result<(), StoreError> {
        let mut upload = Upload::new(self, relative);
        let failed = |source| StoreError::Object {
            action: "write",
            object: self.display(relative),
            source,
        };
        loop {
            let mut bytes = BytesMut::with_capacity(UPLOAD_BUFFER);
            match from.read_buf(&mut bytes).await {
                Ok(0) => break,
                Ok(_) => upload.push(bytes.freeze()).await.map_err(failed)?,
                Err(source) => {
                    upload.abort().await;
                    return Err(StoreError::File {
                        action: "read what is to become",
                        path: self.display(relative).into(),
                        source,
                    });
                }
            }
        }
        upload.finish().await.map_err(failed)
    }

    /// Paths of the Parquet parts of a table, in the order of their names.
    ///
    /// # Errors
    /// The store failed.
    pub async fn parts(&self, table: &str) -> Result<Vec<Path>, StoreError> {
        let mut paths: Vec<Path> = self
            .list(table)
            .await?
            .into_iter()
            .map(|meta| meta.location)
            .filter(|path| path.extension() == Some("parquet"))
            .collect();
        paths.sort();
        Ok(paths)
    }

    /// The parts of a table that are whole, in the order of their names, and those that are damaged: a power cut or a
    /// copy that ended early left less of them than was written.
    ///
    /// # Errors
    /// The store failed.
    pub async fn checked_parts(&self, table: &str) -> Result<CheckedParts, StoreError> {
        let mut listed = self.list(table).await?;
        listed.retain(|meta| meta.location.extension() == Some("parquet"));
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        let checks = listed.into_iter().map(|meta| async move {
            let is_whole = self.is_whole(&meta).await?;
            Ok((meta.location, is_whole))
        });
        let mut parts = CheckedParts::default();
        let mut checks = stream::iter(checks.collect::<Vec<_>>()).buffered(MAX_CHECKS);
        while let Some((path, is_whole)) = checks.try_next().await? {
            match is_whole {
                Some(true) => parts.whole.push(path),
                Some(false) => parts.damaged.push(path),
                None => {}
            }
        }
        Ok(parts)
    }

    /// Whether a Parquet file has its end; none where it has gone.
    async fn is_whole(&self, meta: &ObjectMeta) -> Result<Option<bool>, StoreError> {
        let Some(begin) = meta.size.checked_sub(FOOTER) else {
            return Ok(Some(false));
        };
        let end = self.store.get_range(&meta.location, begin..meta.size).await;
        match end {
            Ok(end) => {
                let length = end.get(..4).and_then(|length| length.try_into().ok());
                let length = length.map_or(u32::MAX, u32::from_le_bytes);
                Ok(Some(
                    end.ends_with(b"PAR1") && u64::from(length) < meta.size,
                ))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(StoreError::Object {
                action: "read",
                object: self.url(&meta.location),
                source,
            }),
        }
    }

    /// Moves a damaged part to where nobody reads it; gives its new name within the run.
    ///
    /// # Errors
    /// The store failed.
    pub async fn set_aside(&self, part: &Path) -> Result<String, StoreError> {
        let parts: Vec<_> = part.parts().collect();
        let name: Vec<&str> = parts.iter().map(|part| part.as_ref()).collect();
        let name = match name.as_slice() {
            [.., table, file] => format!("{DAMAGED}/{table}/{file}"),
            _ => format!("{DAMAGED}/{part}"),
        };
        let moved = self.store.rename(part, &self.path(&name)).await;
        moved.map_err(|source| StoreError::Object {
            action: "set aside",
            object: self.url(part),
            source,
        })?;
        Ok(name)
    }

    /// Whether parts were set aside since they are damaged.
    ///
    /// # Errors
    /// The store failed.
    pub async fn has_damaged(&self) -> Result<bool, StoreError> {
        Ok(!self.list(DAMAGED).await?.is_empty())
    }

    /// Something that only a run leaves at its place, if there is any.
    ///
    /// # Errors
    /// The store failed.
    pub async fn remains(&self) -> Result<Option<String>, StoreError> {
        for table in schema::TABLES {
            if let Some(part) = self.parts(table).await?.first() {
                return Ok(Some(self.url(part)));
            }
        }
        let journal = self.list(JOURNAL).await?;
        Ok(journal.first().map(|object| self.url(&object.location)))
    }

    /// The id of the run whose journal is at the place, where its record can't be read.
    ///
    /// # Errors
    /// The store failed.
    pub async fn find_run_id(&self) -> Result<Option<String>, StoreError> {
        let root = self.path(JOURNAL);
        let journal = self.list(JOURNAL).await?;
        let mut ids: Vec<String> = journal
            .iter()
            .filter_map(|object| {
                let mut parts = object.location.prefix_match(&root)?;
                let id = parts.next()?.as_ref().to_owned();
                parts.next().map(|_| id)
            })
            .collect();
        ids.dedup();
        Ok(ids.pop().filter(|_| ids.is_empty()))
    }

    /// Every object below a directory of the run.
    ///
    /// # Errors
    /// The store failed.
    pub async fn list(&self, relative: &str) -> Result<Vec<ObjectMeta>, StoreError> {
        let listed = self.store.list(Some(&self.path(relative))).try_collect();
        listed.await.map_err(|source| StoreError::Object {
            action: "list",
            object: self.display(relative),
            source,
        })
    }

    /// Removes everything that a run left at the place, and nothing else. The locks stay: who
    /// clears holds one.
    ///
    /// # Errors
    /// The store failed.
    pub async fn clear(&self) -> Result<(), StoreError> {
        // While there is a run.json: else the next run could take these answers for its own.
        checkpoint::forget_all(self).await?;
        for table in schema::TABLES
            .into_iter()
            .chain(["groups", "metrics", DAMAGED])
        {
            for path in self.parts(table).await? {
                self.delete(&path).await?;
            }
        }
        for object in [
            "run.json",
            "aggregate_metrics.json",
            "reward_profiling.jsonl",
            "agent_metrics.json",
        ] {
            self.delete(&self.path(object)).await?;
        }
        if self.local.is_some() || self.run_id.is_some() {
            let journal = match &self.local {
                Some(_) => &self.state,
                None => &self.journal,
            };
            let removed = std::fs::remove_dir_all(journal);
            if let Err(source) = removed
                && source.kind() != std::io::ErrorKind::NotFound
            {
                return Err(StoreError::File {
                    action: "remove",
                    path: journal.clone(),
                    source,
                });
            }
        }
        abort_left(self).await
    }

    /// Deletes an object, if it is there.
    ///
    /// # Errors
    /// The store failed.
    pub async fn delete(&self, path: &Path) -> Result<(), StoreError> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(StoreError::Object {
                action: "delete",
                object: self.url(path),
                source,
            }),
        }
    }
}

/// Where this machine keeps what is of use to it alone: the directory `given`, or
/// `$XDG_STATE_HOME/rollstream`, or `~/.local/state/rollstream`.
pub fn state_directory(given: Option<&FilePath>) -> PathBuf {
    if let Some(given) = given {
        return given.to_owned();
    }
    let home = || {
        env::var_os("HOME").map_or_else(env::temp_dir, |home| {
            PathBuf::from(home).join(".local/state")
        })
    };
    env::var_os("XDG_STATE_HOME")
        .map_or_else(home, PathBuf::from)
        .join("rollstream")
}

fn without_secrets(place: &str) -> String {
    match (place.find("://"), place.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!(
                "{}://{}",
                place.get(..scheme).unwrap_or_default(),
                place.get(at + 1..).unwrap_or_default()
            )
        }
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_local_place_and_keeps_its_journal_inside() {
        let run = RunStore::open("some/run", None).unwrap();
        let path = run.local_path().unwrap();
        assert!(path.is_absolute() && path.ends_with("some/run"));
        assert_eq!(run.journal_dir(), path.join("journal"));
        assert_eq!(run.display("run.json"), "some/run/run.json");
    }

    #[test]
    fn an_object_store_keeps_its_journal_in_the_state_directory() {
        let state = FilePath::new("/state");
        let run = RunStore::open("memory:///sweeps/a", Some(state)).unwrap();
        assert!(run.local_path().is_none());
        assert!(run.journal_dir().starts_with(state));
        assert_eq!(
            run.path("rollouts/x.parquet").as_ref(),
            "sweeps/a/rollouts/x.parquet"
        );
        assert_eq!(run.display("run.json"), "memory:///sweeps/a/run.json");
    }

    #[test]
    fn what_is_no_place_is_refused_without_repeating_a_secret() {
        let error = RunStore::open("ftp://user:hunter2@host/x", None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("ftp://host/x") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
