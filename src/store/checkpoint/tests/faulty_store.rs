use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    Refused,
    /// It is done, but the answer says that it was not.
    AnswerLost,
}

/// A store whose requests meet the fates that a test gives, over and over.
#[derive(Debug, Default)]
pub(super) struct FaultyStore {
    inner: Arc<InMemory>,
    script: Mutex<(Vec<Fate>, usize)>,
    /// Written just before an object below `journal/` is read, all of which are then deleted.
    pub before_read: Mutex<Option<Path>>,
}

impl FaultyStore {
    pub(super) fn meet(&self, fates: &[Fate]) {
        *self.script.lock().unwrap() = (fates.to_vec(), 0);
    }

    /// Its content without its faults.
    pub(super) fn inner(&self) -> Arc<InMemory> {
        Arc::clone(&self.inner)
    }

    fn fate(&self) -> Fate {
        let mut script = self.script.lock().unwrap();
        let (fates, next) = &mut *script;
        *next += 1;
        match fates.len() {
            0 => Fate::Done,
            len => fates[(*next - 1) % len],
        }
    }
}

fn failure() -> Error {
    Error::Generic {
        store: "faulty",
        source: "slow down".into(),
    }
}

fn answer<T>(fate: Fate, done: Result<T>) -> Result<T> {
    match fate {
        Fate::Done => done,
        Fate::Refused | Fate::AnswerLost => Err(failure()),
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        match self.fate() {
            Fate::Refused => Err(failure()),
            fate => answer(fate, self.inner.put_opts(location, payload, options).await),
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
        if !options.head && location.as_ref().contains("/journal/") {
            let written = self.before_read.lock().unwrap().take();
            if let Some(written) = written {
                self.inner.put(&written, PutPayload::new()).await?;
                let run = written.parts().take(1);
                let root = run.chain(["journal".into()]).collect();
                let listed = self.inner.list(Some(&root));
                let paths = listed.map(|meta| Ok(meta?.location)).boxed();
                let _: Vec<_> = self.inner.delete_stream(paths).collect().await;
            }
        }
        answer(self.fate(), self.inner.get_opts(location, options).await)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.fate() {
            Fate::Refused => stream::iter([Err(failure())]).boxed(),
            fate => {
                let deleted = self.inner.delete_stream(locations);
                deleted.map(move |done| answer(fate, done)).boxed()
            }
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.fate() {
            Fate::Done => self.inner.list(prefix),
            _ => stream::iter([Err(failure())]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
