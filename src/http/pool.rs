//! [`Pool`]: the connections to one server, and how long a call waited for one of its own ([`with_connect_time`]).

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tower_service::Service;

use super::call::Problem;
use super::clients::HttpSettings;
use super::link::{Link, Outgoing, Unanswered};
use super::response::Received;

/// An idle connection is closed after this time; servers close theirs about then.
const IDLE: Duration = Duration::from_secs(90);

/// The time after which an idle connection is probed.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(30);

/// Connections to one server. The one that was used last is reused first, so that unneeded ones expire.
pub(super) struct Pool {
    origin: Uri,
    connector: HttpConnector,
    settings: HttpSettings,
    /// The oldest first.
    idle: Mutex<VecDeque<Box<Link>>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pool({})", self.origin)
    }
}

impl Pool {
    pub(super) fn new(origin: Uri, settings: HttpSettings) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_connect_timeout(Some(settings.connect_timeout));
        Self {
            origin,
            connector,
            settings,
            idle: Mutex::default(),
        }
    }

    /// Sends a request over a connection that is open, or a new one.
    ///
    /// The server may have closed an idle connection, which only a request can find out. So if it ends without a byte
    /// of an answer, the request is sent again, over a new connection and at once, as browsers do. What a new connection
    /// has sent is never sent again.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: impl Fn() -> Outgoing,
        first_byte: Option<Instant>,
    ) -> Result<Received, Problem> {
        let mut idle = self.take().await;
        loop {
            let was_idle = idle.is_some();
            let mut link = match idle.take() {
                Some(link) => link,
                None => Box::pin(self.connect(first_byte)).await?,
            };
            match link.send(request(), first_byte).await {
                Ok(response) => return Ok(Received::new(response, link, Arc::clone(self))),
                Err(Unanswered::Unsent | Unanswered::Unread(_)) if was_idle => {}
                Err(Unanswered::Failed(problem) | Unanswered::Unread(problem)) => {
                    // A retry takes a new connection, or one that was used with success since.
                    let suspect = std::mem::take(&mut *self.idle());
                    drop(suspect);
                    return Err(problem);
                }
                Err(Unanswered::Unsent) => {
                    return Err(Problem::Connect("the server closed it at once".to_owned()));
                }
            }
        }
    }

    async fn take(&self) -> Option<Box<Link>> {
        loop {
            let mut link = self.idle().pop_back()?;
            if link.idle_since.elapsed() < IDLE && link.is_usable().await {
                return Some(link);
            }
        }
    }

    async fn connect(&self, first_byte: Option<Instant>) -> Result<Box<Link>, Problem> {
        let began = Instant::now();
        let limit = self.settings.connect_timeout;
        let limit = first_byte.map_or(limit, |end| limit.min(end.saturating_duration_since(began)));
        let mut connector = self.connector.clone();
        // This limit includes the lookup of the name.
        let connected = timeout(limit, connector.call(self.origin.clone())).await;
        add_connect_time(began.elapsed());
        match connected {
            Ok(Ok(io)) => Ok(Box::new(Link::open(io, self.settings.read_timeout).await?)),
            Ok(Err(error)) => Err(Problem::connect(&error)),
            Err(_) if limit < self.settings.connect_timeout => Err(Problem::NoHead),
            Err(_) => Err(Problem::Connect("none within --connect-timeout".to_owned())),
        }
    }

    /// Takes a connection back whose answer was read to its end.
    pub(super) fn put(&self, mut link: Box<Link>) {
        let now = Instant::now();
        link.idle_since = now;
        let mut idle = self.idle();
        let is_old = |link: &Link| now.saturating_duration_since(link.idle_since) >= IDLE;
        let surplus = idle.len() >= self.settings.connections;
        let unwanted = match idle.front() {
            Some(oldest) if surplus || is_old(oldest) => idle.pop_front(),
            _ => None,
        };
        idle.push_back(link);
        drop(idle);
        // Closing is a system call, for which no other call should wait.
        drop(unwanted);
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<Box<Link>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

tokio::task_local! {
    /// Set while a call is under way. The client opens connections within the task of the call that wants one.
    static CONNECT_TIME: Cell<Duration>;
}

/// Measures how long `call` takes to open its connection; zero if it uses an open one.
pub(crate) async fn with_connect_time<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let measured = async {
        let result = call.await;
        (result, CONNECT_TIME.with(Cell::get))
    };
    CONNECT_TIME.scope(Cell::default(), measured).await
}

/// Adds the time that it took to open a connection.
pub(super) fn add_connect_time(spent: Duration) {
    // A connection that the call no longer waits for is finished by a task of the client.
    let _ = CONNECT_TIME.try_with(|time| time.set(time.get() + spent));
}

/// A connector whose time is measured.
#[derive(Debug, Clone)]
pub(super) struct TimedConnector<S>(pub(super) S);

impl<S, R> Service<R> for TimedConnector<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let connecting = self.0.call(request);
        let began = Instant::now();
        Box::pin(async move {
            let connected = connecting.await;
            add_connect_time(began.elapsed());
            connected
        })
    }
}
