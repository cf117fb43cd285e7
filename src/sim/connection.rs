//! One connection, from accept to close: [`serve`] lets hyper speak HTTP, and takes the socket
//! back where an answer is [`Abrupt`].

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::http::{Abrupt, Reply};

/// A client has this long to take the bytes of a raw answer.
const RAW_DEADLINE: Duration = Duration::from_secs(10);

/// Serves a connection until it ends, or until it is told to stop, when it answers what it was
/// asked, or to reset.
pub(super) async fn serve<S>(
    stream: TcpStream,
    service: S,
    (mut stop, mut reset): (watch::Receiver<bool>, watch::Receiver<()>),
) where
    S: Service<Request<Incoming>, Response = Reply> + Unpin,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Unpin,
{
    // A connection that is gone already fails at its first read.
    let _ = stream.set_nodelay(true);
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        biased;
        ended = finish(&mut connection) => Some(ended),
        Ok(()) = reset.changed() => return close_with_reset(connection.into_parts().io.into_inner()),
        _ = stop.changed() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            Pin::new(&mut connection).graceful_shutdown();
            finish(&mut connection).await
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    let error = ended.err();
    let cause = error.as_ref().and_then(Error::source);
    match cause.and_then(|source| source.downcast_ref()) {
        Some(Abrupt::Reset) => close_with_reset(stream),
        Some(Abrupt::Raw(bytes)) => {
            // The client may leave before it has them all, as after any half an answer.
            tokio::select! {
                _ = timeout(RAW_DEADLINE, stream.write_all(bytes)) => drop(stream.shutdown().await),
                Ok(()) = reset.changed() => close_with_reset(stream),
            }
        }
        Some(Abrupt::Fin) | None => drop(stream.shutdown().await),
    }
}

/// With zero linger, closing a socket sends RST in place of FIN.
fn close_with_reset(stream: TcpStream) {
    drop(stream.set_zero_linger());
}

fn finish<S>(
    connection: &mut http1::Connection<TokioIo<TcpStream>, S>,
) -> impl Future<Output = hyper::Result<()>>
where
    S: Service<Request<Incoming>, Response = Reply> + Unpin,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Unpin,
{
    poll_fn(|context| connection.poll_without_shutdown(context))
}
