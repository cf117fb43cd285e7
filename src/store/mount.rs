//! [`Mount`]: one run of a store, under a name of our own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A store whose paths all begin with `at`. Sessions keep what they know of files by path alone, without the store: so
/// the files of two runs must not have the same path.
#[derive(Debug, Clone)]
pub(super) struct Mount {
    at: Path,
    inner: Arc<dyn ObjectStore>,
}

impl Mount {
    pub(super) fn new(at: Path, inner: Arc<dyn ObjectStore>) -> Self {
        Self { at, inner }
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
}

/// A path without the `at` that it begins with.
pub(super) fn inside(at: &Path, path: &Path) -> Path {
    match path.prefix_match(at) {
        Some(rest) => rest.collect(),
        None => path.clone(),
    }
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
        let location = self.inside(location);
        self.inner.put_opts(&location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let location = self.inside(location);
        self.inner.put_multipart_opts(&location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut found = self.inner.get_opts(&self.inside(location), options).await?;
        // A store with a prefix says the whole path here.
        found.meta.location = location.clone();
        Ok(found)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(&self.inside(location), ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inside, outside) = (self.clone(), self.clone());
        let locations = locations.map_ok(move |path| inside.inside(&path)).boxed();
        let deleted = self.inner.delete_stream(locations);
        deleted.map_ok(move |path| outside.outside(&path)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let mount = self.clone();
        let listed = self
            .inner
            .list(Some(&self.inside(prefix.unwrap_or(&self.at))));
        listed.map_ok(move |meta| mount.meta_outside(meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = self.inside(prefix.unwrap_or(&self.at));
        let listed = self.inner.list_with_delimiter(Some(&prefix)).await?;
        let (objects, folders) = (listed.objects.into_iter(), listed.common_prefixes.iter());
        Ok(ListResult {
            objects: objects.map(|meta| self.meta_outside(meta)).collect(),
            common_prefixes: folders.map(|path| self.outside(path)).collect(),
        })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (self.inside(from), self.inside(to));
        self.inner.copy_opts(&from, &to, options).await
    }
}
