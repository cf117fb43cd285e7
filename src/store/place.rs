use std::env;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use url::Url;

use super::connect::{NamedUploads, connect};
use super::multipart::abort_left;
use super::upload::Upload;
use super::{DispatchLogFile, JournalSegment, StoreError, checkpoint};

/// Directory of the journal within a local run.
const JOURNAL: &str = "journal";

/// Directory, beside the journal of a run in an object store, of the names of uploads that are open.
const UPLOADS: &str = "uploads";

/// Bytes of a file that are read at a time.
const UPLOAD_BUFFER: usize = 256 * 1024;

/// The directory or object-store prefix that holds a run.
#[derive(Debug, Clone)]
pub struct RunStore {
    store: Arc<dyn ObjectStore>,
    uploads: Option<Arc<dyn NamedUploads>>,
    base: Url,
    prefix: Path,
    local: Option<PathBuf>,
    journal: PathBuf,
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
                let state = state_directory(state_dir).join(name.get(..16).unwrap_or_default());
                let journal = state.join(JOURNAL);
                Ok(Self {
                    store: connected.store,
                    uploads: connected.uploads,
                    base,
                    prefix: connected.path,
                    local: None,
                    journal,
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
            journal,
        })
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
    pub(super) fn uploads_dir(&self) -> PathBuf {
        self.journal.with_file_name(UPLOADS)
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
        use crate::schema::TABLES;
        // While there is a run.json: else the next run could take these answers for its own.
        checkpoint::forget_all(self).await?;
        for table in TABLES.into_iter().chain(["groups", "metrics"]) {
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
        for segment in JournalSegment::list(self.journal_dir())? {
            segment.remove()?;
        }
        for log in DispatchLogFile::list(self.journal_dir())? {
            log.remove()?;
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
