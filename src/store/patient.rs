//! [`Patience`]: a store that is gone for a while is waited for, as an agent would be.
//!
//! The client's own `RetryConfig` retries each request a few times, in silence. Here the user is told once for all
//! requests, and the waiting ends when the sweep is stopped.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::{Error, Result};
use tokio::time::{Instant, timeout};

use crate::retry::Backoff;

/// The longest wait before a request is tried again.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(10),
};

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
        write!(formatter, "Patience({:?})", self.longest)
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

    /// Does `work`, and again for as long as it fails in a way that may pass. Each failure stands for a few of the
    /// client's own retries.
    pub(super) async fn until<T, W>(&self, work: impl Fn() -> W + Send) -> Result<T>
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

/// Does `work` as [`Patience::until`] does, or once where there is no patience.
pub(super) async fn patiently<T, W>(
    patience: Option<&Patience>,
    work: impl Fn() -> W + Send,
) -> Result<T>
where
    W: Future<Output = Result<T>> + Send,
{
    match patience {
        Some(patience) => patience.until(work).await,
        None => work().await,
    }
}

/// Whether the same request may succeed later: the store was not reached, or said that the failure is its own.
pub(super) fn may_pass(error: &Error) -> bool {
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
