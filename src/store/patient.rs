//! [`Patient`]: a store that is waited for when it is gone for a while, as an agent would be.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::{Instant, timeout};

use super::connect::NamedUploads;
use crate::retry::Backoff;

/// The longest wait before a request is tried again.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(10),
};

/// Objects of one request to delete some.
const MAX_DELETES: usize = 1000;

type Tell = dyn Fn(String) + Send + Sync;

type Enough = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// How long a store is waited for, and who is told of it.
///
/// The lock of a run is renewed without this patience, and is lost after a lease without a renewal. Then the work ends,
/// and with it whatever still waits here: so no writer waits for longer than its lease, however patient it is.
#[derive(Clone)]
pub(super) struct Patience {
    place: String,
    longest: Duration,
    /// Requests that wait now.
    waiting: Arc<AtomicUsize>,
    tell: Arc<Tell>,
    enough: Arc<Enough>,
}

impl fmt::Debug for Patience {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let mut shown = formatter.debug_struct("Patience");
        shown
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

/// A request that waits.
struct Waiting<'a>(&'a Patience);

impl<'a> Waiting<'a> {
    fn begin(patience: &'a Patience, error: &Error) -> Self {
        if patience.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            let Patience { place, longest, .. } = patience;
            let longest = humantime::format_duration(*longest);
            (patience.tell)(format!(
                "the store of {place} answers nothing but failures ({error}): it is waited for, for up to {longest} \
                 (--agent-patience); what is answered meanwhile is safe in the journal"
            ));
        }
        Self(patience)
    }

    fn succeeded(self) {
        if self.0.waiting.load(Ordering::Relaxed) == 1 {
            (self.0.tell)(format!("the store of {} answers again", self.0.place));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Patience {
    /// Where requests wait for up to `longest`, or until `enough` is done, and `tell` is told of it.
    pub(super) fn new(
        place: String,
        longest: Duration,
        tell: impl Fn(String) + Send + Sync + 'static,
        enough: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            place,
            longest,
            waiting: Arc::default(),
            tell: Arc::new(tell),
            enough: Arc::new(enough),
        }
    }

    /// The longest time that one request waits for.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// Does `work`, again and again where it fails in a way that may pass. The client has tried a few times by itself
    /// whenever it fails.
    async fn until<T, W>(&self, work: impl Fn() -> W + Send) -> Result<T>
    where
        W: Future<Output = Result<T>> + Send,
    {
        let mut waiting: Option<(Waiting<'_>, Instant)> = None;
        let mut failures = 0;
        loop {
            match work().await {
                Err(error) if may_pass(&error) => {
                    let (_, since) = waiting
                        .get_or_insert_with(|| (Waiting::begin(self, &error), Instant::now()));
                    let left = self.longest.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(error);
                    }
                    failures += 1;
                    // At least half of it: the client has tried at once already.
                    let wait = BACKOFF.jittered(failures, 0.5 + fastrand::f64() / 2.0);
                    let enough = (self.enough)();
                    if timeout(wait.min(left), enough).await.is_ok() {
                        return Err(error);
                    }
                }
                done => {
                    if let Some((waiting, _)) = waiting {
                        waiting.succeeded();
                    }
                    return done;
                }
            }
        }
    }
}

/// Whether the same request may succeed later: the store was not reached, or said that the failure is its own.
fn may_pass(error: &Error) -> bool {
    let Error::Generic { source, .. } = error else {
        return false;
    };
    let mut cause: Option<&(dyn StdError + 'static)> = Some(source.as_ref());
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return http.kind() != HttpErrorKind::Unknown;
        }
        // The type of these errors is not public, their text is all that there is.
        let text = error.to_string();
        if let Some(status) = text.strip_prefix("Server returned non-2xx status code: ") {
            return status.starts_with(['5'])
                || ["408", "429"].iter().any(|s| status.starts_with(s));
        }
        if text.starts_with("Server returned error response") {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A store whose failures that may pass are waited out.
#[derive(Debug, Clone)]
pub(super) struct Patient {
    inner: Arc<dyn ObjectStore>,
    patience: Patience,
}

impl Patient {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, patience: Patience) -> Self {
        Self { inner, patience }
    }

    /// All of them again where one fails: to delete what has gone is no failure of a store in a cloud.
    async fn delete(&self, locations: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let paths: Result<Vec<Path>> = locations.into_iter().collect();
        let paths = match paths {
            Ok(paths) => paths,
            Err(error) => return vec![Err(error)],
        };
        let delete = || async {
            let paths: Vec<_> = paths.iter().cloned().map(Ok).collect();
            let deleted = self.inner.delete_stream(stream::iter(paths).boxed());
            let deleted: Vec<Result<Path>> = deleted.collect().await;
            let may_pass = |done: &Result<Path>| done.as_ref().is_err_and(may_pass);
            match deleted.iter().position(may_pass) {
                Some(failed) => deleted
                    .into_iter()
                    .nth(failed)
                    .map_or(Ok(Vec::new()), |failed| failed.map(|path| vec![Ok(path)])),
                None => Ok(deleted),
            }
        };
        let deleted = self.patience.until(delete).await;
        deleted.unwrap_or_else(|error| vec![Err(error)])
    }
}

impl fmt::Display for Patient {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "Patient({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Patient {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = || {
            self.inner
                .put_opts(location, payload.clone(), options.clone())
        };
        self.patience.until(put).await
    }

    /// The pieces go without patience: stores whose pieces have names are asked by [`PatientUploads`].
    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begin = || self.inner.put_multipart_opts(location, options.clone());
        self.patience.until(begin).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let get = || self.inner.get_opts(location, options.clone());
        self.patience.until(get).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let get = || self.inner.get_ranges(location, ranges);
        self.patience.until(get).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let patient = self.clone();
        let delete = move |locations| {
            let patient = patient.clone();
            async move { stream::iter(patient.delete(locations).await) }
        };
        locations.chunks(MAX_DELETES).then(delete).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (patient, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let list = || patient.inner.list(prefix.as_ref()).try_collect();
            let listed: Result<Vec<ObjectMeta>> = patient.patience.until(list).await;
            listed.map(|listed| stream::iter(listed.into_iter().map(Ok)))
        };
        listed.into_stream().try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let list = || self.inner.list_with_delimiter(prefix);
        self.patience.until(list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copy = || self.inner.copy_opts(from, to, options.clone());
        self.patience.until(copy).await
    }
}

/// The same for uploads in pieces that have names.
#[derive(Debug)]
pub(super) struct PatientUploads {
    inner: Arc<dyn NamedUploads>,
    patience: Patience,
}

impl PatientUploads {
    pub(super) fn new(inner: Arc<dyn NamedUploads>, patience: Patience) -> Self {
        Self { inner, patience }
    }
}

#[async_trait]
impl MultipartStore for PatientUploads {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.patience
            .until(|| self.inner.create_multipart(path))
            .await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        index: usize,
        piece: PutPayload,
    ) -> Result<PartId> {
        let put = || self.inner.put_part(path, id, index, piece.clone());
        self.patience.until(put).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let complete = || self.inner.complete_multipart(path, id, parts.clone());
        self.patience.until(complete).await
    }

    /// Without patience: what can't be aborted now is noted, and aborted by the next writer.
    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.inner.abort_multipart(path, id).await
    }
}
