use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use futures::FutureExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use tempfile::TempDir;

use crate::schema::ATTEMPTS;
use crate::store::checkpoint::{Checkpointer, fetch};
use crate::store::{RunStore, part_name};

pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A machine with a journal of a run that is on an object store. The journal is deleted when
/// dropped.
pub(super) struct Machine {
    _state: TempDir,
    pub run: RunStore,
}

impl Machine {
    /// One with a store of its own.
    pub(super) fn new() -> Self {
        Self::on(Arc::new(InMemory::new()))
    }

    pub(super) fn on(store: Arc<dyn ObjectStore>) -> Self {
        let state = tempfile::tempdir().unwrap();
        let run = RunStore::open("memory:///sweeps/a", Some(state.path())).unwrap();
        Self {
            run: run.with_store(store),
            _state: state,
        }
    }

    /// Another with the same run.
    pub(super) fn another(&self) -> Self {
        Self::on(Arc::clone(self.run.object_store()))
    }

    /// Of the writer of epoch 1, in chunks of 4 bytes.
    pub(super) fn checkpointer(&self) -> Checkpointer {
        let checkpointer = Checkpointer::new(self.run.clone(), 1).unwrap();
        checkpointer.with_chunk_bytes(4)
    }

    pub(super) fn append(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.run.journal_dir()).unwrap();
        let mut options = OpenOptions::new();
        let path = self.run.journal_dir().join(name);
        let mut file = options.create(true).append(true).open(path).unwrap();
        file.write_all(content).unwrap();
    }

    pub(super) fn remove(&self, name: &str) {
        fs::remove_file(self.run.journal_dir().join(name)).unwrap();
    }

    /// As if the segment had become parts.
    pub(super) async fn land(&self, segment: &str) {
        let part = part_name(ATTEMPTS, segment);
        self.run.put(&part, "rows").await.unwrap();
    }

    /// Everything in the directory of the journal.
    pub(super) fn files(&self) -> Files {
        let Ok(entries) = fs::read_dir(self.run.journal_dir()) else {
            return Files::new();
        };
        let paths = entries.map(|entry| entry.unwrap().path());
        let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        paths
            .map(|path| (name(&path), fs::read(&path).unwrap()))
            .collect()
    }

    /// What a machine that has nothing fetches.
    pub(super) async fn fetched_elsewhere(&self) -> Files {
        let other = self.another();
        let fetched = fetch(&other.run, other.run.journal_dir(), |_| true);
        // Boxed, as a task that may move between threads would hold it.
        let fetched = fetched.boxed().await;
        let files = other.files();
        assert_eq!(fetched.unwrap().len(), files.len());
        files
    }

    /// Names of the chunks on the store.
    pub(super) async fn chunks(&self) -> Vec<String> {
        let root = self.run.path("journal");
        let listed = self.run.list("journal").await.unwrap();
        let mut names: Vec<String> = listed
            .iter()
            .map(|meta| {
                let parts = meta.location.prefix_match(&root).unwrap();
                let parts: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
                parts.join("/")
            })
            .collect();
        names.sort();
        names
    }
}

pub(super) fn files<const N: usize>(files: [(&str, &[u8]); N]) -> Files {
    files
        .into_iter()
        .map(|(name, content)| (name.to_owned(), content.to_owned()))
        .collect()
}
