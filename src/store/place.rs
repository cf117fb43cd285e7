use std::env;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use url::Url;

use super::address::{Address, Remote};
use super::compacted::Compacted;
use super::connect::{NamedUploads, connect};
use super::local::LocalStore;
use super::mount::{Mount, inside};
use super::multipart::abort_left;
use super::patient::{Patience, Patient, PatientUploads};
use super::private::{create_private, state_directory};
use super::upload::Upload;
use super::{StoreError, checkpoint};
use crate::gym::GymRules;
use crate::schema;

/// Directory of the journal within a local run.
const JOURNAL: &str = "journal";

/// Stands for the id of a run where that is not known. No run has it.
const UNIDENTIFIED: &str = "unidentified-run";

/// Directory of parts that were found damaged.
const DAMAGED: &str = "damaged";

/// Bytes at the end of a Parquet file that say where its metadata begins.
const FOOTER: u64 = 8;

/// Parts that are checked at once.
const MAX_CHECKS: usize = 32;

/// Directory, beside the journal of a run in an object store, of the names of uploads that are open.
const UPLOADS: &str = "uploads";

/// Scheme of the addresses under which sessions read runs.
const SCHEME: &str = "rollstream";

/// Bytes of a file that are read at a time.
const UPLOAD_BUFFER: usize = 256 * 1024;

/// The parts of a table.
#[derive(Debug, Default, Clone)]
pub struct CheckedParts {
    /// Those that can be read.
    pub whole: Vec<Path>,
    /// Those that can't.
    pub damaged: Vec<Path>,
}

/// Who is told what is odd about a run.
#[derive(Clone)]
struct Teller(Arc<dyn Fn(String) + Send + Sync>);

impl fmt::Debug for Teller {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("Teller")
    }
}

/// The directory or object-store prefix that holds a run.
#[derive(Debug, Clone)]
pub struct RunStore {
    store: Arc<dyn ObjectStore>,
    uploads: Option<Arc<dyn NamedUploads>>,
    /// What its paths begin with, of no characters but our own.
    name: Path,
    base: Url,
    /// As a person names it.
    shown: String,
    disk: Option<LocalStore>,
    run_id: Option<Arc<str>>,
    rules: Option<&'static GymRules>,
    /// Local directory of the journal.
    journal: PathBuf,
    /// Local directory that holds the journals of all runs that are or were at the place.
    state: PathBuf,
    uploads_dir: PathBuf,
    patience: Option<Patience>,
    teller: Option<Teller>,
}

impl RunStore {
    /// The place that `place` names: a path, `file://`, `s3://`, `gs://`, `az://` or `memory://`.
    /// Settings of object stores are taken from their usual environment variables. Nothing is
    /// asked yet. `state_dir` holds the journals of runs that are not on a local disk.
    ///
    /// # Errors
    /// The place is not an address, or its store can't be set up from the environment.
    pub fn open(place: &str, state_dir: Option<&FilePath>) -> Result<Self, StoreError> {
        match Address::parse(place)? {
            Address::Local(path) => Self::local(path),
            Address::Remote(remote) => Self::remote(&remote, state_dir),
        }
    }

    /// The directory at an absolute path.
    ///
    /// # Errors
    /// Its address for sessions is none, which does not happen.
    pub(crate) fn local(path: PathBuf) -> Result<Self, StoreError> {
        let name = name(path.as_os_str().as_bytes());
        let shown = env::current_dir().ok();
        let shown = shown.as_deref().and_then(|dir| path.strip_prefix(dir).ok());
        let shown = shown.unwrap_or(&path).display().to_string();
        let disk = LocalStore::new(path.clone());
        Ok(Self {
            store: Arc::new(Mount::new(name.clone(), Arc::new(disk.clone()))),
            uploads: None,
            base: base(&name, &shown)?,
            name,
            shown,
            run_id: None,
            rules: None,
            state: path.join(JOURNAL),
            uploads_dir: path.join(UPLOADS),
            journal: path.join(JOURNAL),
            disk: Some(disk),
            patience: None,
            teller: None,
        })
    }

    fn remote(address: &Remote, state_dir: Option<&FilePath>) -> Result<Self, StoreError> {
        let connected = connect(address)?;
        let name = name(address.shown.as_bytes());
        let state = state_directory(state_dir)?;
        Ok(Self {
            store: Arc::new(Mount::new(name.clone(), connected.store)),
            uploads: connected.uploads,
            base: base(&name, &address.shown)?,
            shown: address.shown.clone(),
            disk: None,
            run_id: None,
            rules: None,
            uploads_dir: state.join(UPLOADS).join(name.as_ref()),
            name,
            journal: state.join(UNIDENTIFIED).join(JOURNAL),
            state,
            patience: None,
            teller: None,
        })
    }

    /// The same place with the journal of the run of this id. Nobody writes to the journal of a place that is not
    /// identified.
    pub fn identified(&self, run_id: &str) -> Self {
        let journal = match self.disk {
            Some(_) => self.state.join(run_id),
            None => self.state.join(run_id).join(JOURNAL),
        };
        Self {
            run_id: Some(run_id.into()),
            journal,
            ..self.clone()
        }
    }

    /// The same place, whose rollouts are read by these rules, whatever its run says.
    pub fn following(&self, rules: &'static GymRules) -> Self {
        Self {
            rules: Some(rules),
            ..self.clone()
        }
    }

    /// The rules by which its rollouts are read, where that was decided.
    pub fn rules(&self) -> Option<&'static GymRules> {
        self.rules
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

    /// The same place for a writer, to whom it has answered once: when the store is gone, it is waited for as long as
    /// `longest`, or until `enough` is done, and `tell` is told. A disk is not waited for.
    #[must_use]
    pub fn waited_for(
        &self,
        longest: Duration,
        tell: impl Fn(String) + Send + Sync + 'static,
        enough: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        if self.disk.is_some() {
            return self.clone();
        }
        let patience = Patience::new(self.shown.clone(), longest, tell, enough);
        let uploads = self.uploads.clone();
        let uploads = uploads.map(|inner| PatientUploads::new(inner, patience.clone()));
        Self {
            store: Arc::new(Patient::new(Arc::clone(&self.store), patience.clone())),
            uploads: uploads.map(|uploads| Arc::new(uploads) as _),
            patience: Some(patience),
            ..self.clone()
        }
    }

    /// The same place for a reader, who is told what of the run can't be read.
    #[must_use]
    pub fn telling(self, tell: impl Fn(String) + Send + Sync + 'static) -> Self {
        let teller = Some(Teller(Arc::new(tell)));
        Self { teller, ..self }
    }

    /// Tells its reader, if somebody is to be told.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if let Some(Teller(tell)) = &self.teller {
            tell(text());
        }
    }

    /// A deadline for a request that takes `limit` while the store is there.
    pub(super) fn deadline(&self, limit: Duration) -> Duration {
        let patience = self.patience.as_ref().map(Patience::longest);
        limit.saturating_add(patience.unwrap_or_default())
    }

    /// The same place in another store.
    #[cfg(test)]
    pub(super) fn with_store(self, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, ..self }
    }

    /// The store behind the place. Its paths are those of [`Self::path`].
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The store again, where what it has of an unfinished upload must be removed by name. Its paths are names within
    /// the run.
    pub(super) fn named_uploads(&self) -> Option<&Arc<dyn NamedUploads>> {
        self.uploads.as_ref()
    }

    /// Local directory of the names of uploads that are open.
    pub(super) fn uploads_dir(&self) -> &FilePath {
        &self.uploads_dir
    }

    /// Makes the local directory of what is not in the store, for this user alone.
    ///
    /// # Errors
    /// The system refused.
    pub fn create_state(&self) -> Result<(), StoreError> {
        if self.disk.is_some() {
            return Ok(());
        }
        create_private(&self.journal).map_err(|source| StoreError::File {
            action: "create",
            path: self.journal.clone(),
            source,
        })
    }

    /// Address under which a session registers the store.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Local directory of the run, if it is on a local disk.
    pub fn local_path(&self) -> Option<&FilePath> {
        self.disk.as_ref().map(LocalStore::root)
    }

    /// The store of a run that is on a local disk.
    pub(super) fn disk(&self) -> Option<&LocalStore> {
        self.disk.as_ref()
    }

    /// Local directory of the journal.
    pub fn journal_dir(&self) -> &FilePath {
        &self.journal
    }

    /// Path of an object of the run within the store.
    pub fn path(&self, relative: &str) -> Path {
        let relative = relative_path(relative);
        self.name.parts().chain(relative.parts()).collect()
    }

    /// How a person names an object of the run: a path or an address.
    pub fn display(&self, relative: &str) -> String {
        if relative.is_empty() {
            return self.shown.clone();
        }
        match self.shown.as_str() {
            // The directory where we are.
            "" => relative.to_owned(),
            shown => format!("{}/{relative}", shown.trim_end_matches('/')),
        }
    }

    /// How a person names an object of the store.
    pub fn display_path(&self, path: &Path) -> String {
        self.display(inside(&self.name, path).as_ref())
    }

    /// Address of an object, as a session reads it.
    pub fn url(&self, path: &Path) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path.parts());
        }
        url
    }

    /// An object piece by piece, `None` where there is no such object.
    ///
    /// # Errors
    /// The store failed; so do the pieces.
    pub async fn stream(
        &self,
        relative: &str,
    ) -> Result<Option<BoxStream<'static, Result<Bytes, StoreError>>>, StoreError> {
        let object = self.display(relative);
        let failed = move |source| StoreError::Object {
            action: "read",
            object: object.clone(),
            source,
        };
        match self.store.get(&self.path(relative)).await {
            Ok(found) => Ok(Some(found.into_stream().map_err(failed).boxed())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
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
        let mut size = meta.size;
        loop {
            let found = match self.end_of(&meta.location, size).await {
                Ok(true) => return Ok(Some(true)),
                found => found,
            };
            // A collector may have put a new file in its place since it was listed.
            let now = match self.store.head(&meta.location).await {
                Ok(meta) => meta.size,
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(source) => return Err(self.unread(&meta.location, source)),
            };
            if now == size {
                return match found {
                    Ok(is_whole) => Ok(Some(is_whole)),
                    Err(source) => Err(self.unread(&meta.location, source)),
                };
            }
            size = now;
        }
    }

    /// Whether a file of a size ends as Parquet files do.
    async fn end_of(&self, path: &Path, size: u64) -> Result<bool, object_store::Error> {
        let Some(begin) = size.checked_sub(FOOTER) else {
            return Ok(false);
        };
        let end = self.store.get_range(path, begin..size).await?;
        let length = end.get(..4).and_then(|length| length.try_into().ok());
        let length = length.map_or(u32::MAX, u32::from_le_bytes);
        Ok(end.ends_with(b"PAR1") && u64::from(length) < size)
    }

    fn unread(&self, path: &Path, source: object_store::Error) -> StoreError {
        StoreError::Object {
            action: "read",
            object: self.display_path(path),
            source,
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
            object: self.display_path(part),
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
                return Ok(Some(self.display_path(part)));
            }
        }
        let journal = self.list(JOURNAL).await?;
        Ok(journal
            .first()
            .map(|object| self.display_path(&object.location)))
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
        if self.disk.is_some() || self.run_id.is_some() {
            let journal = match &self.disk {
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
        self.tidy().await
    }

    /// Removes what processes of this machine left that died while they wrote: uploads that they had not ended, and
    /// parts that were to take the place of others.
    ///
    /// # Errors
    /// The store failed.
    pub async fn tidy(&self) -> Result<(), StoreError> {
        drop(Compacted::begin(self)?);
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
                object: self.display_path(path),
                source,
            }),
        }
    }
}

/// Path of an object within the run: its name as it is, unless that is no path.
pub(super) fn relative_path(name: &str) -> Path {
    Path::parse(name).unwrap_or_else(|_| Path::from(name))
}

/// A name of no characters but our own.
fn name(place: &[u8]) -> Path {
    let hash = blake3::hash(place).to_hex();
    Path::from(hash.get(..16).unwrap_or_default())
}

fn base(name: &Path, place: &str) -> Result<Url, StoreError> {
    Url::parse(&format!("{SCHEME}://{name}")).map_err(|error| StoreError::Address {
        place: place.to_owned(),
        reason: error.to_string(),
    })
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
        assert_eq!(run.display("run.json"), "memory:///sweeps/a/run.json");
    }

    #[test]
    fn an_address_for_sessions_has_none_of_the_characters_of_the_place() {
        let run = RunStore::open("a#1?%41 \\", None).unwrap();
        let path = run.path("groups/b~c #2.parquet");
        let url = run.url(&path);
        let name = path.parts().next().unwrap();
        let expected = format!(
            "rollstream://{0}/{0}/groups/b~c%20%232.parquet",
            name.as_ref()
        );
        assert_eq!(url.as_str(), expected);
        assert_eq!(Path::from_url_path(url.path()).unwrap(), path);
    }

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
            assert_eq!(run.is_whole(&listed).await.unwrap(), Some(true));
        }
        run.put(
            "tasks/tasks.parquet",
            Bytes::from_static(b"torn by a power cut"),
        )
        .await
        .unwrap();
        let listed = run.list("tasks").await.unwrap().remove(0);
        assert_eq!(run.is_whole(&listed).await.unwrap(), Some(false));
    }
}
