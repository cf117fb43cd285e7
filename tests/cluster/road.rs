//! [`Road`]: a road on loopback to a server, which a test closes for a while.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A road to a server, gone when dropped.
pub struct Road {
    address: SocketAddr,
    is_closed: watch::Sender<bool>,
    _runtime: Runtime,
}

impl Road {
    pub fn to(server: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let is_closed = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        tasks.spawn_on(serve(listener, server, is_closed.clone()), runtime.handle());
        // It ends with the runtime.
        tasks.detach_all();
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
