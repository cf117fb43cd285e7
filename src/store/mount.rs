//! [`Mount`]: one run of a store, under a name of our own, and waited for when its store is gone. `PrefixStore` of
//! `object_store` does the opposite: it hides a prefix that the store has, and this shows one that the store does not have.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::patient::{Patience, may_pass, patiently};

/// Objects of one request to delete some.
const MAX_DELETES: usize = 1000;

/// A store whose paths all begin with `at`. Sessions keep what they know of files by path alone, without the store: so
/// the files of two runs must not have the same path.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    at: Path,
    inner: Arc<dyn ObjectStore>,
    patience: Option<Patience>,
    /// What is known of objects: a session would ask for it each time that it plans a table.
    known: Arc<HashMap<Path, ObjectMeta>>,
}

impl Mount {
    pub(super) fn new(at: Path, inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            at,
            inner,
            patience: None,
            known: Arc::default(),
        }
    }

    /// The same store, whose failures that may pass are waited out.
    pub(super) fn patient(inner: Arc<dyn ObjectStore>, patience: Patience) -> Self {
        Self {
            patience: Some(patience),
            ..Self::new(Path::default(), inner)
        }
    }

    /// The same store, which is not asked for what is known of objects.
    pub(super) fn knowing(
        inner: Arc<dyn ObjectStore>,
        known: impl IntoIterator<Item = ObjectMeta>,
    ) -> Self {
        let known = known.into_iter();
        let known = known.map(|meta| (meta.location.clone(), meta)).collect();
        Self {
            known: Arc::new(known),
            ..Self::new(Path::default(), inner)
        }
    }

    /// An object that is not there any more, though it is known.
    fn missed(&self, location: &Path, error: Error) -> Error {
        match error {
            Error::NotFound { path, .. } if self.known.contains_key(location) => {
                let why = "it was there when this command looked: the run was overwritten, or its objects were deleted";
                Error::NotFound {
                    path,
                    source: why.into(),
                }
            }
            error => error,
        }
    }

    fn inside(&self, path: &Path) -> Path {
        inside(&self.at, path)
    }

    fn outside(&self, path: &Path) -> Path {
        self.at.parts().chain(path.parts()).collect()
    }

    fn meta_outside(&self, meta: ObjectMeta) -> ObjectMeta {
        let location = self.outside(&meta.location);
        ObjectMeta { location, ..meta }
    }

    /// Deletes objects, all of them again where one fails: to delete what has gone is no failure of a store in a cloud.
    async fn delete(&self, locations: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let paths: Vec<Path> = match locations.into_iter().collect() {
            Ok(paths) => paths,
            Err(error) => return vec![Err(error)],
        };
        let delete = || async {
            let paths: Vec<_> = paths.iter().cloned().map(Ok).collect();
            let deleted = self.inner.delete_stream(stream::iter(paths).boxed());
            let mut deleted: Vec<Result<Path>> = deleted.collect().await;
            let passing = |done: &Result<Path>| done.as_ref().is_err_and(may_pass);
            match deleted.iter().position(passing) {
                Some(failed) => deleted.swap_remove(failed).map(|_| Vec::new()),
                None => Ok(deleted),
            }
        };
        let deleted = patiently(self.patience.as_ref(), delete).await;
        deleted.unwrap_or_else(|error| vec![Err(error)])
    }
}

/// A part that was there when its reader looked.
fn gone(part: &Path) -> Error {
    let why =
        "it is gone, since a sweep replaces its small parts when it ends; run the command again";
    Error::NotFound {
        path: part.to_string(),
        source: why.into(),
    }
}

/// A path without the `at` that it begins with.
pub(super) fn inside(at: &Path, path: &Path) -> Path {
    let rest = path.prefix_match(at).map(Iterator::collect);
    rest.unwrap_or_else(|| path.clone())
}

impl fmt::Display for Mount {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "Mount({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Mount {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (inner, location) = (&self.inner, self.inside(location));
        let put = || inner.put_opts(&location, payload.clone(), options.clone());
        patiently(self.patience.as_ref(), put).await
    }

    /// The pieces go without patience: where pieces have names, `NamedUpload` has it.
    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let (inner, location) = (&self.inner, self.inside(location));
        let begin = || inner.put_multipart_opts(&location, options.clone());
        patiently(self.patience.as_ref(), begin).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if let (true, Some(meta)) = (options.head, self.known.get(location)) {
            return Ok(GetResult {
                payload: GetResultPayload::Stream(stream::empty().boxed()),
                meta: meta.clone(),
                range: 0..0,
                attributes: Attributes::default(),
            });
        }
        let inside = self.inside(location);
        let get = || self.inner.get_opts(&inside, options.clone());
        let found = patiently(self.patience.as_ref(), get).await;
        let mut found = found.map_err(|error| self.missed(location, error))?;
        // A store with a prefix says the whole path here.
        found.meta.location = location.clone();
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let inside = self.inside(location);
        let get = || self.inner.get_ranges(&inside, ranges);
        let found = patiently(self.patience.as_ref(), get).await;
        found.map_err(|error| self.missed(location, error))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inside, outside) = (self.clone(), self.clone());
        let locations = locations.map_ok(move |path| inside.inside(&path)).boxed();
        let deleted = if self.patience.is_some() {
            let patient = self.clone();
            let delete = move |locations| {
                let patient = patient.clone();
                async move { stream::iter(patient.delete(locations).await) }
            };
            locations.chunks(MAX_DELETES).then(delete).flatten().boxed()
        } else {
            self.inner.delete_stream(locations)
        };
        deleted.map_ok(move |path| outside.outside(&path)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        // DataFusion lists a file that it does not find as if it were a directory. The rows of a part must not be missed so.
        if let Some(part) = prefix.filter(|prefix| prefix.extension() == Some("parquet")) {
            return stream::iter([Err(gone(part))]).boxed();
        }
        let (mount, prefix) = (self.clone(), self.inside(prefix.unwrap_or(&self.at)));
        let listed = if self.patience.is_some() {
            let patient = self.clone();
            let listed = async move {
                let list = || patient.inner.list(Some(&prefix)).try_collect();
                let listed: Result<Vec<ObjectMeta>> =
                    patiently(patient.patience.as_ref(), list).await;
                listed.map(|listed| stream::iter(listed.into_iter().map(Ok)))
            };
            listed.into_stream().try_flatten().boxed()
        } else {
            self.inner.list(Some(&prefix))
        };
        listed.map_ok(move |meta| mount.meta_outside(meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = self.inside(prefix.unwrap_or(&self.at));
        let list = || self.inner.list_with_delimiter(Some(&prefix));
        let listed = patiently(self.patience.as_ref(), list).await?;
        let (objects, folders) = (listed.objects.into_iter(), listed.common_prefixes.iter());
        Ok(ListResult {
            objects: objects.map(|meta| self.meta_outside(meta)).collect(),
            common_prefixes: folders.map(|path| self.outside(path)).collect(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (inner, from, to) = (&self.inner, self.inside(from), self.inside(to));
        let copy = || inner.copy_opts(&from, &to, options.clone());
        patiently(self.patience.as_ref(), copy).await
    }
}
