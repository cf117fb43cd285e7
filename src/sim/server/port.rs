//! Ports and connections: [`Port`] owns a listener and its connections, [`PortSwitch`] takes the port down and brings
//! it back. An answer that is [`Abrupt`] takes the socket back from hyper.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::config::SimError;
use super::http::{Abrupt, Reply};

/// Length of the queue of connections to accept, so that thousands can be opened at once.
const BACKLOG: u32 = 8192;

/// Pause after a failed accept, which mostly means that there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Port {
    address: SocketAddr,
    /// None while the port is down.
    listener: Option<TcpListener>,
    /// While the port is down, a bound socket that does not listen keeps others from taking the port.
    held: Option<TcpSocket>,
    orders: mpsc::Receiver<Order>,
    is_down: watch::Sender<bool>,
}

/// Takes a port down and brings it back.
#[derive(Debug)]
pub(crate) struct PortSwitch {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
    is_down: watch::Receiver<bool>,
}

/// Whether the port must be down, and where to report that it is.
type Order = (bool, oneshot::Sender<Result<(), SimError>>);

impl PortSwitch {
    /// Takes the port down or brings it back. When this returns, the port refuses connections and open ones are reset,
    /// or it accepts connections.
    pub(crate) async fn set(&self, down: bool) -> Result<(), SimError> {
        let stopped = || SimError::Stopped(self.address);
        let (done, result) = oneshot::channel();
        let sent = self.orders.send((down, done)).await;
        sent.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())?
    }

    /// Whether the port is down.
    pub(crate) fn is_down(&self) -> bool {
        *self.is_down.borrow()
    }
}

impl Port {
    /// Binds a port and listens; port 0 takes a free one.
    pub(crate) fn bind(address: SocketAddr) -> Result<(Self, PortSwitch), SimError> {
        let listener = listen(address)?;
        let address = listener
            .local_addr()
            .map_err(|source| SimError::Bind { address, source })?;
        let (send_order, orders) = mpsc::channel(1);
        let (say_down, is_down) = watch::channel(false);
        let port = Self {
            address,
            listener: Some(listener),
            held: None,
            orders,
            is_down: say_down,
        };
        let switch = PortSwitch {
            address,
            orders: send_order,
            is_down,
        };
        Ok((port, switch))
    }

    /// Returns the address on which the port listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves every connection with a clone of `service`. When told to stop, accepts no more connections, and returns
    /// when the open ones are done. Dropped, it drops them all.
    ///
    /// Idle connections have no deadline: a server that closed them would cause resets that no test asked for.
    pub(crate) async fn serve<S>(mut self, mut stop: watch::Receiver<bool>, service: S)
    where
        S: Service<Request<Incoming>, Response = Reply> + Clone + Unpin + Send + 'static,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        S::Future: Unpin + Send,
    {
        let (reset, _) = watch::channel(());
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = accept(self.listener.as_ref()) => match accepted {
                    Ok(stream) => {
                        let ends = (stop.clone(), reset.subscribe());
                        connections.spawn(serve(stream, service.clone(), ends));
                    }
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
                Some((down, done)) = self.orders.recv() => {
                    let result = self.set(down);
                    if down {
                        reset.send_replace(());
                        while connections.join_next().await.is_some() {}
                    }
                    self.is_down.send_replace(self.listener.is_none());
                    // The sender may be gone.
                    let _ = done.send(result);
                }
                _ = stop.changed() => break,
            }
        }
        // While the last requests are answered, nothing listens and no order is accepted.
        drop(self);
        while connections.join_next().await.is_some() {}
    }

    fn set(&mut self, down: bool) -> Result<(), SimError> {
        if down && self.listener.take().is_some() {
            self.held = socket(self.address).ok();
        } else if !down && self.listener.is_none() {
            drop(self.held.take());
            self.listener = Some(listen(self.address)?);
        }
        Ok(())
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, SimError> {
    socket(address)
        .and_then(|socket| socket.listen(BACKLOG))
        .map_err(|source| SimError::Bind { address, source })
}

fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Waits for the next connection, forever if nothing listens.
async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Time that a client has to take the bytes of a raw answer.
const RAW_DEADLINE: Duration = Duration::from_secs(10);

/// Serves a connection until it ends or must stop or reset. If told to stop, it answers the current request first.
async fn serve<S>(
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
    let mut is_stopping = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => break ended,
            Ok(()) = reset.changed() => return close_with_reset(connection.into_parts().io.into_inner()),
            _ = stop.changed(), if !is_stopping => {
                is_stopping = true;
                std::pin::Pin::new(&mut connection).graceful_shutdown();
            }
        }
    };
    let mut stream = connection.into_parts().io.into_inner();
    let error = ended.err();
    let cause = error.as_ref().and_then(Error::source);
    match cause.and_then(|source| source.downcast_ref()) {
        Some(Abrupt::Reset) => close_with_reset(stream),
        Some(Abrupt::Raw(bytes)) => {
            // The client may leave before it has all the bytes.
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
