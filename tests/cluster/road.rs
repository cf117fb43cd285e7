//! [`Road`]: a road on loopback to a server, which a test closes for a while.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::s3_server::on_loopback;

/// A road to a server, gone when dropped.
pub struct Road {
    address: SocketAddr,
    is_closed: watch::Sender<bool>,
    _runtime: Runtime,
}

impl Road {
    pub fn to(server: SocketAddr) -> Self {
        let is_closed = watch::Sender::new(false);
        let (address, runtime) = on_loopback(|listener| serve(listener, server, is_closed.clone()));
        Self {
            address,
            is_closed,
            _runtime: runtime,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing passes, and nobody is told.
    pub fn close(&self) {
        self.is_closed.send_replace(true);
    }

    /// New connections pass again. Those from before are reset.
    pub fn open(&self) {
        self.is_closed.send_replace(false);
    }
}

async fn serve(listener: TcpListener, server: SocketAddr, is_closed: watch::Sender<bool>) {
    let mut connections = JoinSet::new();
    while let Ok((mut near, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let mut is_closed = is_closed.subscribe();
        connections.spawn(async move {
            let far = async {
                let mut far = TcpStream::connect(server).await?;
                copy_bidirectional(&mut near, &mut far).await
            };
            tokio::select! {
                biased;
                _ = is_closed.wait_for(|is_closed| *is_closed) => {}
                _ = far => return,
            }
            let _ = is_closed.wait_for(|is_closed| !*is_closed).await;
        });
    }
}
