//! What the collector's throughput is compared with: [`Client`] makes its calls and nothing else, [`Wrk`] shows the limit
//! of the loopback and the agent, and [`Aiohttp`] is the loop in Python that users write.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::JoinSet;

use crate::common::{Child, Usage};

/// A client that makes the collector's calls, reads the answers and does nothing else.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub enum Client {
    /// Connections of hyper, driven by their callers on one thread: the least that HTTP costs.
    Hyper,
    /// A client with a pool of connections, on all cores.
    Reqwest,
}

impl Client {
    /// Its name in a report.
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

/// The calls to make.
#[derive(Debug)]
pub struct Calls {
    /// The rows of the tasks without their closing brace.
    tasks: Vec<String>,
    num_repeats: usize,
    num_rollouts: usize,
    next: AtomicUsize,
}

impl Calls {
    /// Calls for `num_rollouts` rollouts of the tasks in a file.
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

/// Calls over its own connection, which the same task drives.
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
    // The connection ends when its sender is gone.
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

/// `wrk`, the load generator, which repeats one request.
#[derive(Debug)]
pub struct Wrk {
    script: PathBuf,
    seconds: u64,
}

/// What `wrk` reports.
#[derive(Debug)]
pub struct Driven {
    /// Answers in all.
    pub requests: f64,
    /// Answers per second.
    pub rate: f64,
    /// What the process took.
    pub usage: Usage,
}

impl Wrk {
    /// Writes its script into `directory`. None if there is no `wrk`.
    pub fn new(directory: &Path, body: &str, seconds: u64) -> anyhow::Result<Option<Self>> {
        // It fails even if it prints its version.
        let mut probe = Command::new("wrk");
        probe.arg("-v").stdout(Stdio::null()).stderr(Stdio::null());
        if probe.status().is_err() {
            return Ok(None);
        }
        let script = directory.join("post.lua");
        let text = format!(
            "wrk.method = \"POST\"\nwrk.headers[\"content-type\"] = \"application/json\"\nwrk.body = [==[{body}]==]\n"
        );
        std::fs::write(&script, text)?;
        Ok(Some(Self { script, seconds }))
    }

    /// Sends to `url` over `connections` connections.
    pub fn drive(&self, url: &str, connections: usize) -> anyhow::Result<Driven> {
        let mut command = Command::new("wrk");
        command.args(["-t", "1", "-c", &connections.to_string()]);
        command.args(["-d", &format!("{}s", self.seconds)]);
        command.arg("-s").arg(&self.script).arg(url);
        let (output, usage) = Child::start(&mut command)?.finish()?;
        ensure!(
            !output.contains("Non-2xx") && !output.contains("Socket errors"),
            "not all requests of wrk were answered well:\n{output}"
        );
        let told = |number: Option<&str>| -> anyhow::Result<f64> {
            let number = number.with_context(|| format!("wrk told no rate:\n{output}"))?;
            Ok(number.trim().parse()?)
        };
        let mut lines = output.lines();
        let mut rates = output.lines();
        Ok(Driven {
            requests: told(
                lines
                    .find_map(|line| line.split_once(" requests in "))
                    .map(|(n, _)| n),
            )?,
            rate: told(rates.find_map(|line| line.strip_prefix("Requests/sec:")))?,
            usage,
        })
    }
}

const LOOP: &str = include_str!("bare_aiohttp.py");

/// A loop over rollouts in Python.
#[derive(Debug)]
pub struct Aiohttp<'a> {
    python: &'a Path,
}

/// What the loop took, without starting Python.
#[derive(Debug, Deserialize)]
pub struct Looped {
    rollouts: usize,
    /// Wall time of all calls.
    pub seconds: f64,
    /// CPU time of all calls, in seconds.
    pub cpu: f64,
}

impl<'a> Aiohttp<'a> {
    /// None if this Python has no aiohttp.
    pub fn new(python: &'a Path) -> Option<Self> {
        let probe = Command::new(python).args(["-c", "import aiohttp"]).output();
        let is_there = probe.is_ok_and(|output| output.status.success());
        is_there.then_some(Self { python })
    }

    /// Sends rollouts of the tasks to an agent.
    pub fn collect(
        &self,
        input: &Path,
        agent_url: &str,
        num_repeats: usize,
        num_rollouts: usize,
        concurrency: usize,
    ) -> anyhow::Result<(Looped, Usage)> {
        let mut command = Command::new(self.python);
        command.args(["-c", LOOP]).arg(input);
        command.arg(format!("{agent_url}/run"));
        command.args([num_repeats, num_rollouts, concurrency].map(|number| number.to_string()));
        let (output, usage) = Child::start(&mut command)?.finish()?;
        let looped: Looped = serde_json::from_str(&output)?;
        ensure!(
            looped.rollouts == num_rollouts,
            "not everything was collected: {looped:?}"
        );
        Ok((looped, usage))
    }
}
