//! [`RunStore`]: the place of a run, its names for people and for sessions, and its directories on this machine.

use std::env;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use url::Url;

use super::StoreError;
use super::address::{Address, NamedUploads, Remote, connect};
use super::local::LocalStore;
use super::mount::{Mount, inside};
use super::patient::Patience;
use super::private::{create_private, state_directory};
use crate::gym::GymRules;

/// Directory of the journal within a run.
pub(super) const JOURNAL: &str = "journal";

/// Stands for the id of a run that is not known. No run has this id.
const UNIDENTIFIED: &str = "unidentified-run";

/// Directory, within the state directory, for the names of open uploads to object stores.
const UPLOADS: &str = "uploads";

/// Scheme of the addresses under which sessions read runs.
const SCHEME: &str = "rollstream";

/// The callback that gets notices about a run.
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
    /// The first component of its paths: a hash of the place, in plain hexadecimal.
    name: Path,
    base: Url,
    /// The place as a person names it.
    shown: String,
    disk: Option<LocalStore>,
    run_id: Option<Arc<str>>,
    rules: Option<&'static GymRules>,
    /// Local directory of the journal.
    journal: PathBuf,
    /// Local directory of journals: of all runs at this place on a disk, or else of all runs in object stores.
    state: PathBuf,
    patience: Option<Patience>,
    teller: Option<Teller>,
}

impl RunStore {
    /// Opens the place that `place` names: a path, `file://`, `s3://`, `gs://`, `az://` or `memory://`. Settings of object
    /// stores come from their usual environment variables. No request is sent. `state_dir` holds the journals of runs
    /// that are not on a local disk.
    ///
    /// # Errors
    /// The place is not an address, or its store can't be set up from the environment.
    pub fn open(place: &str, state_dir: Option<&FilePath>) -> Result<Self, StoreError> {
        match Address::parse(place)? {
            Address::Local(path) => Self::local(path),
            Address::Remote(remote) => Self::remote(&remote, state_dir),
        }
    }

    /// Opens the directory at an absolute path.
    ///
    /// # Errors
    /// Its address for sessions is invalid, which does not happen.
    pub(crate) fn local(path: PathBuf) -> Result<Self, StoreError> {
        let name = name(path.as_os_str().as_bytes());
        let shown = env::current_dir().ok();
        let shown = shown.as_deref().and_then(|dir| path.strip_prefix(dir).ok());
        let shown = shown.unwrap_or(&path).display().to_string();
        let disk = LocalStore::new(path.clone());
        let store = Mount::new(name.clone(), Arc::new(disk.clone()));
        Ok(Self {
            disk: Some(disk),
            journal: path.join(JOURNAL),
            ..Self::new(store, name, shown, path.join(JOURNAL))?
        })
    }

    fn remote(address: &Remote, state_dir: Option<&FilePath>) -> Result<Self, StoreError> {
        let connected = connect(address)?;
        let name = name(address.shown.as_bytes());
        let state = state_directory(state_dir)?;
        let store = Mount::new(name.clone(), connected.store);
        Ok(Self {
            uploads: connected.uploads,
            ..Self::new(store, name, address.shown.clone(), state)?
        })
    }

    fn new(store: Mount, name: Path, shown: String, state: PathBuf) -> Result<Self, StoreError> {
        let base = Url::parse(&format!("{SCHEME}://{name}"));
        let base = base.map_err(|error| StoreError::Address {
            place: shown.clone(),
            source: error.into(),
        })?;
        Ok(Self {
            store: Arc::new(store),
            uploads: None,
            base,
            shown,
            disk: None,
            run_id: None,
            rules: None,
            journal: state.join(UNIDENTIFIED).join(JOURNAL),
            name,
            state,
            patience: None,
            teller: None,
        })
    }

    /// Returns the same place with the journal of the run `run_id`. Nobody writes to the journal of one that is not
    /// identified.
    pub fn identified(&self, run_id: &str) -> Self {
        let mut journal = self.state.join(run_id);
        if self.disk.is_none() {
            journal.push(JOURNAL);
        }
        Self {
            run_id: Some(run_id.into()),
            journal,
            ..self.clone()
        }
    }

    /// Returns the same place, with its rollouts read by `rules`, whatever `run.json` says.
    pub fn following(&self, rules: &'static GymRules) -> Self {
        Self {
            rules: Some(rules),
            ..self.clone()
        }
    }

    /// Returns the rules by which its rollouts are read, if they were set.
    pub fn rules(&self) -> Option<&'static GymRules> {
        self.rules
    }

    /// Whether the id of its run is known.
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

    /// Returns the same place for a writer, which waits while the store fails: at most `longest`, or until `enough` is
    /// done. `tell` gets a notice. The store must have answered once before. Nobody waits for a local disk.
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
        Self {
            store: Arc::new(Mount::patient(Arc::clone(&self.store), patience.clone())),
            patience: Some(patience),
            ..self.clone()
        }
    }

    /// Returns the same place for a reader that has listed these parts: it asks for their size no more. Only a resume that
    /// retries answers of judges writes a part anew.
    pub(crate) fn knowing(&self, parts: impl IntoIterator<Item = ObjectMeta>) -> Self {
        if self.disk.is_some() {
            return self.clone();
        }
        Self {
            store: Arc::new(Mount::knowing(Arc::clone(&self.store), parts)),
            ..self.clone()
        }
    }

    /// Returns the same place for a reader. `tell` gets a notice of what can't be read.
    #[must_use]
    pub fn telling(self, tell: impl Fn(String) + Send + Sync + 'static) -> Self {
        let teller = Some(Teller(Arc::new(tell)));
        Self { teller, ..self }
    }

    /// Sends a notice to its reader, if it has one.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if let Some(Teller(tell)) = &self.teller {
            tell(text());
        }
    }

    /// Returns how long to wait while the store fails, if at all.
    pub(super) fn patience(&self) -> Option<&Patience> {
        self.patience.as_ref()
    }

    /// Returns the same place in another store.
    #[cfg(test)]
    pub(super) fn with_store(self, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, ..self }
    }

    /// The store behind the place. Its paths are those of [`Self::path`].
    pub fn object_store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Returns the store if it keeps an unfinished upload until that is aborted by name. Its paths are names within
    /// the run.
    pub(super) fn named_uploads(&self) -> Option<&Arc<dyn NamedUploads>> {
        self.uploads.as_ref()
    }

    /// Local directory for the names of open uploads to this place.
    pub(super) fn uploads_dir(&self) -> PathBuf {
        self.state.join(UPLOADS).join(self.name.as_ref())
    }

    /// Creates the local directory of the journal, private to this user, if the run is not on a local disk.
    pub fn create_state(&self) -> Result<(), StoreError> {
        if self.disk.is_some() {
            return Ok(());
        }
        create_private(&self.journal).map_err(StoreError::file("create", &self.journal))
    }

    /// Local directory of the journals that belong to this place, if known.
    pub(super) fn own_journals(&self) -> Option<&FilePath> {
        match self.disk {
            Some(_) => Some(&self.state),
            None => self.is_identified().then_some(&self.journal),
        }
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
            // The current directory.
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
}

/// Returns the path of an object within the run: its name as it is, or escaped if that is no valid path.
pub(super) fn relative_path(name: &str) -> Path {
    Path::parse(name).unwrap_or_else(|_| Path::from(name))
}

/// Hashes a place to a name in plain hexadecimal.
fn name(place: &[u8]) -> Path {
    let hash = blake3::hash(place).to_hex();
    Path::from(hash.get(..16).unwrap_or_default())
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
}
