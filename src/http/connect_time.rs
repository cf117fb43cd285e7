//! How long a call waited for a connection of its own: [`of`] measures it, [`ConnectTimeLayer`] is
//! the part of the client that knows.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tower_layer::Layer;
use tower_service::Service;

tokio::task_local! {
    /// Set while a call is under way. The client opens connections within the task of the call that
    /// wants one.
    static CONNECT_TIME: Cell<Duration>;
}

/// What `call` gives, and how long it took to open its connection; zero where it used an open one.
pub(crate) async fn of<T>(call: impl Future<Output = T>) -> (T, Duration) {
    let measured = async {
        let result = call.await;
        (result, CONNECT_TIME.with(Cell::get))
    };
    CONNECT_TIME
        .scope(Cell::new(Duration::ZERO), measured)
        .await
}

/// Opening a connection took this long.
pub(super) fn add(spent: Duration) {
    // A connection that the call no longer waits for is finished by a task of the client.
    let _ = CONNECT_TIME.try_with(|time| time.set(time.get() + spent));
}

/// Measures a connector.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectTimeLayer;

impl<S> Layer<S> for ConnectTimeLayer {
    type Service = TimedConnector<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TimedConnector(inner)
    }
}

/// A connector whose time is measured.
#[derive(Debug, Clone)]
pub(super) struct TimedConnector<S>(S);

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
            add(began.elapsed());
            connected
        })
    }
}
