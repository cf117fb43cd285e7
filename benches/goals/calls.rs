//! Clients that make the collector's calls, read the answers and do nothing else: [`Client`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::ValueEnum;
use futures::future::join;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::JoinSet;

/// What the calls are made with.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub enum Client {
    /// Connections of hyper that their callers drive themselves, on one thread: the least that HTTP costs.
    Hyper,
    /// A client with a pool of connections, on all cores.
    Reqwest,
}

impl Client {
    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hyper => "bare hyper",
            Self::Reqwest => "bare reqwest",
        }
    }

    /// Makes all calls.
    pub fn make(self, calls: Calls, agent_url: &str, concurrency: usize) -> anyhow::Result<()> {
        let calls = Arc::new(calls);
        let url = format!("{agent_url}/run");
        match self {
            Self::Hyper => {
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                let worker = || hyper_worker(Arc::clone(&calls), url.clone());
                runtime?.block_on(all((0..concurrency).map(|_| worker())))
            }
            Self::Reqwest => {
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .tcp_nodelay(true)
                    .pool_max_idle_per_host(concurrency)
                    .build()?;
                let worker = || reqwest_worker(Arc::clone(&calls), client.clone(), url.clone());
                runtime::Runtime::new()?.block_on(all((0..concurrency).map(|_| worker())))
            }
        }
    }
}

/// The calls that are to be made.
#[derive(Debug)]
pub struct Calls {
    /// Without the brace that ends them.
    tasks: Vec<String>,
    num_repeats: usize,
    num_rollouts: usize,
    next: AtomicUsize,
}

impl Calls {
    /// So many rollouts of the tasks in a file.
    pub fn new(input: &Path, num_repeats: usize, num_rollouts: usize) -> anyhow::Result<Self> {
        let tasks = std::fs::read_to_string(input)?;
        let tasks: Vec<String> = tasks
            .lines()
            .map(|line| line.strip_suffix('}').unwrap_or(line).to_owned())
            .collect();
        ensure!(
            tasks.len() * num_repeats >= num_rollouts,
            "there are too few tasks"
        );
        Ok(Self {
            tasks,
            num_repeats,
            num_rollouts,
            next: AtomicUsize::new(0),
        })
    }

    /// The body of the next call.
    pub fn next(&self) -> Option<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (task, rollout) = (number / self.num_repeats, number % self.num_repeats);
        let row = self
            .tasks
            .get(task)
            .filter(|_| number < self.num_rollouts)?;
        Some(format!(
            "{row},\"_ng_task_index\":{task},\"_ng_rollout_index\":{rollout}}}"
        ))
    }
}

async fn all<F>(workers: impl Iterator<Item = F>) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut workers: JoinSet<_> = workers.collect();
    while let Some(worker) = workers.join_next().await {
        worker??;
    }
    Ok(())
}

/// Calls over a connection of its own, which the same task drives.
async fn hyper_worker(calls: Arc<Calls>, url: String) -> anyhow::Result<()> {
    let url: Uri = url.parse()?;
    let host = url.authority().context("an address without a host")?;
    let host: HeaderValue = host.as_str().parse()?;
    let stream = TcpStream::connect(host.to_str()?).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let calling = async move {
        while let Some(body) = calls.next() {
            let request = Request::post(url.path())
                .header(HOST, host.clone())
                .header(CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body)))?;
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            ensure!(status.is_success(), "status {status}");
            let (mut body, mut size) = (response.into_body(), 0);
            while let Some(frame) = body.frame().await {
                size += frame?.data_ref().map_or(0, Bytes::len);
            }
            ensure!(size > 0, "the agent answered nothing");
        }
        Ok(())
    };
    // Without a sender the connection comes to its end.
    join(calling, connection).await.0
}

async fn reqwest_worker(
    calls: Arc<Calls>,
    client: reqwest::Client,
    url: String,
) -> anyhow::Result<()> {
    while let Some(body) = calls.next() {
        let request = client
            .post(&url)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let response = request.send().await?.error_for_status()?;
        ensure!(
            !response.bytes().await?.is_empty(),
            "the agent answered nothing"
        );
    }
    Ok(())
}
