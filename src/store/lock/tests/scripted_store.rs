use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use tokio::sync::Notify;

use super::forged::memory;
use crate::store::RunStore;

/// A store where what others do, and what goes wrong, happens at a moment that the test chooses.
#[derive(Debug, Default)]
pub(super) struct ScriptedStore {
    inner: InMemory,
    /// Written by another just before something is created.
    pub before_create: Mutex<Option<(Path, PutPayload)>>,
    /// What is said of the next creation, though it is done.
    pub answer_of_create: Mutex<Option<Error>>,
    /// Nothing can be written any more.
    pub is_read_only: AtomicBool,
    /// A write was refused.
    pub refused: Notify,
    /// Something was overwritten.
    pub overwritten: Notify,
}

impl ScriptedStore {
    pub(super) fn run() -> (Arc<Self>, RunStore) {
        let store = Arc::new(Self::default());
        let run = memory().with_store(Arc::clone(&store) as Arc<dyn ObjectStore>);
        (store, run)
    }
}

impl fmt::Display for ScriptedStore {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("scripted")
    }
}

#[async_trait]
impl ObjectStore for ScriptedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if self.is_read_only.load(Ordering::SeqCst) {
            self.refused.notify_one();
            return Err(Error::Generic {
                store: "scripted",
                source: "the disk is full".into(),
            });
        }
        if options.mode != PutMode::Create {
            let done = self.inner.put_opts(location, payload, options).await;
            self.overwritten.notify_one();
            return done;
        }
        let before = self.before_create.lock().unwrap().take();
        if let Some((location, payload)) = before {
            self.inner.put(&location, payload).await?;
        }
        let done = self.inner.put_opts(location, payload, options).await;
        match self.answer_of_create.lock().unwrap().take() {
            Some(error) => Err(error),
            None => done,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
