//! [`StoreProxy`]: a road on loopback between a program and its object store, where a test has accidents happen.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use reqwest::Client;
use reqwest::redirect::Policy;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::s3_server::on_loopback;

/// Far longer than anything takes: a test that fails must not hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accident {
    /// 503 with S3's `SlowDown`; the store never sees the request.
    SlowDown,
    /// 500 after the whole body was taken; the store never sees the request.
    InternalError,
    /// The connection is reset in the middle of the body; the store never sees the request.
    Reset,
    /// The store does what it is asked, and the connection ends without its answer.
    AnswerLost,
    /// 403 with S3's `ExpiredToken`; the store never sees the request.
    ExpiredToken,
    /// The request arrives this much later.
    Stall(Duration),
}

/// Which requests an accident happens to.
#[derive(Debug, Clone)]
pub struct Fault {
    accident: Accident,
    method: &'static str,
    path: &'static str,
    query: &'static str,
    skip: usize,
    times: usize,
}

impl Accident {
    /// To the first request by `method` whose path and query hold these.
    pub fn to(self, method: &'static str, path: &'static str, query: &'static str) -> Fault {
        Fault {
            accident: self,
            method,
            path,
            query,
            skip: 0,
            times: 1,
        }
    }
}

impl Fault {
    /// So many requests that fit are let through before.
    pub fn after(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// It happens so many times.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    fn fits(&self, request: &Request<Incoming>) -> bool {
        let uri = request.uri();
        self.method == request.method().as_str()
            && uri.path().contains(self.path)
            && uri.query().unwrap_or_default().contains(self.query)
    }
}

/// The proxy, gone when dropped.
pub struct StoreProxy {
    address: SocketAddr,
    road: Arc<Road>,
    runtime: Runtime,
}

struct Road {
    store: SocketAddr,
    client: Client,
    /// Each with the number of requests that fitted it.
    faults: Mutex<Vec<(Fault, usize)>>,
    happened: watch::Sender<usize>,
}

type Reply = Response<Full<Bytes>>;

impl StoreProxy {
    /// Leads to `store`.
    pub fn start(store: SocketAddr, faults: impl IntoIterator<Item = Fault>) -> Self {
        // What passes is the store's and the program's own, byte for byte.
        let client = Client::builder()
            .no_gzip()
            .no_zstd()
            .no_proxy()
            .redirect(Policy::none());
        let road = Arc::new(Road {
            store,
            client: client.build().unwrap(),
            faults: Mutex::new(faults.into_iter().map(|fault| (fault, 0)).collect()),
            happened: watch::Sender::new(0),
        });
        let (address, runtime) = on_loopback(|listener| serve(listener, Arc::clone(&road)));
        Self {
            address,
            road,
            runtime,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the first accident.
    pub fn until_an_accident_happens(&self) {
        let mut happened = self.road.happened.subscribe();
        self.runtime.block_on(async {
            let happened = happened.wait_for(|happened| *happened > 0);
            let happened = timeout(PATIENCE, happened).await;
            happened.expect("no accident happens").unwrap();
        });
    }

    /// Accidents that have happened.
    pub fn accidents(&self) -> usize {
        *self.road.happened.borrow()
    }
}

async fn serve(listener: TcpListener, road: Arc<Road>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let road = Arc::clone(&road);
        let service = service_fn(move |request| {
            let road = Arc::clone(&road);
            async move { road.pass(request).await }
        });
        connections.spawn(async move {
            // An accident ends it, or the program leaves.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Road {
    /// The accident that happens to this request.
    fn accident(&self, request: &Request<Incoming>) -> Option<Accident> {
        let mut faults = self.faults.lock().unwrap();
        let mut accident = None;
        for (fault, fitted) in faults.iter_mut().filter(|(fault, _)| fault.fits(request)) {
            let happens = (fault.skip..fault.skip.saturating_add(fault.times)).contains(fitted);
            *fitted += 1;
            if happens && accident.is_none() {
                accident = Some(fault.accident);
                self.happened.send_modify(|happened| *happened += 1);
            }
        }
        accident
    }

    /// An error ends the connection without an answer.
    async fn pass(&self, mut request: Request<Incoming>) -> anyhow::Result<Reply> {
        match self.accident(&request) {
            None => self.forward(request).await,
            Some(Accident::SlowDown) => Ok(refusal(503, "SlowDown", "Reduce your request rate.")),
            Some(Accident::ExpiredToken) => {
                request.body_mut().collect().await?;
                let message = "The provided token has expired.";
                Ok(refusal(403, "ExpiredToken", message))
            }
            Some(Accident::InternalError) => {
                request.body_mut().collect().await?;
                Ok(refusal(500, "InternalError", "Please try again."))
            }
            Some(Accident::Reset) => {
                // What is left of the body unread makes the system answer with a reset.
                request.body_mut().frame().await;
                bail!("an accident in the middle of a request")
            }
            Some(Accident::AnswerLost) => {
                self.forward(request).await?;
                bail!("an accident before the answer")
            }
            Some(Accident::Stall(length)) => {
                sleep(length).await;
                self.forward(request).await
            }
        }
    }

    /// The request goes on as it came: with its `Host`, without which its signature would not hold.
    async fn forward(&self, request: Request<Incoming>) -> anyhow::Result<Reply> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let answered = self
            .client
            .request(head.method, format!("http://{}{}", self.store, head.uri))
            .headers(head.headers)
            .body(body)
            .send()
            .await?;
        let (status, mut headers) = (answered.status(), answered.headers().clone());
        // Of the connection, not of the answer.
        headers.remove(CONNECTION);
        headers.remove(TRANSFER_ENCODING);
        let mut reply = Response::new(Full::new(answered.bytes().await?));
        *reply.status_mut() = status;
        *reply.headers_mut() = headers;
        Ok(reply)
    }
}

fn refusal(status: u16, code: &str, message: &str) -> Reply {
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
         <RequestId>4442587FB7D0A2F9</RequestId></Error>"
    );
    let reply = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml");
    reply.body(Full::new(xml.into())).unwrap()
}
