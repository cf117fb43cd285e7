//! One connection, from accept to close: [`serve`] lets hyper speak HTTP, and takes the socket
//! back where an answer is [`Abrupt`]. [`accept`] owns the connections of one port.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::error::SimError;
use super::http::{Abrupt, Reply};

/// Connections that wait to be accepted, so that thousands can be opened at once.
const BACKLOG: u32 = 8192;

/// After a failed accept, which mostly means that there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A client has this long to take the bytes of a raw answer.
const RAW_DEADLINE: Duration = Duration::from_secs(10);

/// Binds a port.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, SimError> {
    let bind = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()
        } else {
            TcpSocket::new_v6()
        }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|source| SimError::Bind { address, source })
}

/// Serves every connection to `listener` with a service of its own. When told to stop, accepts no
/// more, and returns when the open ones are done; dropped, it drops them all.
///
/// Idle connections have no deadline: when to close them is the client's business, and a server
/// that closed them would make resets that nobody asked for.
pub(super) async fn accept<S>(listener: TcpListener, mut stop: watch::Receiver<bool>, service: S)
where
    S: Service<Request<Incoming>, Response = Reply> + Clone + Unpin + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    S::Future: Unpin + Send,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, service.clone(), stop.clone()));
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve<S>(stream: TcpStream, service: S, mut stop: watch::Receiver<bool>)
where
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
    match error
        .as_ref()
        .and_then(Error::source)
        .and_then(|source| source.downcast_ref())
    {
        // With zero linger, closing a socket sends RST in place of FIN.
        Some(Abrupt::Reset) => drop(stream.set_zero_linger()),
        Some(Abrupt::Raw(bytes)) => {
            // The client may leave before it has them all, as after any half an answer.
            let _ = timeout(RAW_DEADLINE, stream.write_all(bytes)).await;
            let _ = stream.shutdown().await;
        }
        None => drop(stream.shutdown().await),
    }
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
