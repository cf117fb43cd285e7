//! One port: [`Port`] owns its listener and its connections, [`PortSwitch`] takes it down and
//! brings it back.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::connection::serve;
use super::error::SimError;
use super::http::Reply;

/// Connections that wait to be accepted, so that thousands can be opened at once.
const BACKLOG: u32 = 8192;

/// After a failed accept, which mostly means that there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A port that is bound, and not served yet.
#[derive(Debug)]
pub(super) struct Port {
    address: SocketAddr,
    /// Missing while the port is down.
    listener: Option<TcpListener>,
    /// Bound, but not listening: while the port is down, keeps others from taking it.
    held: Option<TcpSocket>,
    orders: mpsc::Receiver<Order>,
    is_down: watch::Sender<bool>,
}

/// Takes a port down and brings it back.
#[derive(Debug)]
pub(super) struct PortSwitch {
    address: SocketAddr,
    orders: mpsc::Sender<Order>,
    is_down: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Order {
    down: bool,
    done: oneshot::Sender<Result<(), SimError>>,
}

impl PortSwitch {
    /// Down: the port refuses connections, and those that were open are reset when this returns.
    /// Not down: it accepts connections when this returns.
    ///
    /// # Errors
    /// The port cannot be bound again, or is served no more.
    pub(super) async fn set(&self, down: bool) -> Result<(), SimError> {
        let stopped = || SimError::Stopped(self.address);
        let (done, result) = oneshot::channel();
        let order = Order { down, done };
        self.orders.send(order).await.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())?
    }

    /// The port is down.
    pub(super) fn is_down(&self) -> bool {
        *self.is_down.borrow()
    }
}

impl Port {
    /// Binds a port and listens; with port 0, takes a free one.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub(super) fn bind(address: SocketAddr) -> Result<(Self, PortSwitch), SimError> {
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

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves every connection with a service of its own. When told to stop, accepts no more, and
    /// returns when the open ones are done; dropped, it drops them all.
    ///
    /// Idle connections have no deadline: when to close them is the client's business, and a server
    /// that closed them would make resets that nobody asked for.
    pub(super) async fn serve<S>(mut self, mut stop: watch::Receiver<bool>, service: S)
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
                Some(Order { down, done }) = self.orders.recv() => {
                    let result = if down { self.close() } else { self.open() };
                    if down {
                        reset.send_replace(());
                        while connections.join_next().await.is_some() {}
                    }
                    self.is_down.send_replace(self.listener.is_none());
                    // Whoever gave the order need not wait for it.
                    let _ = done.send(result);
                }
                _ = stop.changed() => break,
            }
        }
        // Nothing listens, and no order is taken, while the last answers are given.
        drop(self);
        while connections.join_next().await.is_some() {}
    }

    fn close(&mut self) -> Result<(), SimError> {
        if self.listener.take().is_some() {
            self.held = socket(self.address).ok();
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), SimError> {
        if self.listener.is_none() {
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

/// The next connection; none ever where nothing listens.
async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}
