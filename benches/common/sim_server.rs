//! Simulated agents in another process: [`SimServer`].

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use rollstream::sim::RequestRecord;
use serde::Deserialize;

use super::process::{Child, cpu_time, rollstream};

const AGENT: &str = "sim";

/// `rollstream sim` with one agent called `sim`; ended when dropped.
#[derive(Debug)]
pub struct SimServer {
    process: Child,
    addresses: Addresses,
}

#[derive(Debug, Deserialize)]
struct Addresses {
    head_server: String,
    agents: BTreeMap<String, String>,
    servers: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Stats {
    agents: BTreeMap<String, AgentStats>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
struct AgentStats {
    in_flight: u64,
    requests: u64,
}

impl SimServer {
    /// Starts it on free ports, with flags of `rollstream sim`.
    pub fn start(flags: &[&str]) -> anyhow::Result<Self> {
        let mut command = rollstream();
        command.args(["sim", "--json", "--port", "0"]).args(flags);
        let mut process = Child::start(&mut command)?;
        let mut line = String::new();
        BufReader::new(process.output()?).read_line(&mut line)?;
        let addresses = serde_json::from_str(&line);
        let addresses = addresses.context("the simulated servers gave no addresses")?;
        Ok(Self { process, addresses })
    }

    /// Address of the agent.
    pub fn agent_url(&self) -> &str {
        self.addresses.agents.get(AGENT).map_or("", String::as_str)
    }

    /// Address of another server by name: `model`, `tools`, ...
    pub fn url(&self, name: &str) -> &str {
        self.addresses.servers.get(name).map_or("", String::as_str)
    }

    /// CPU time so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        cpu_time(self.process.id()?)
    }

    /// Requests that the agent has not answered yet.
    pub fn in_flight(&self) -> anyhow::Result<u64> {
        Ok(self.stats()?.in_flight)
    }

    /// Requests that the agent got.
    pub fn asked(&self) -> anyhow::Result<u64> {
        Ok(self.stats()?.requests)
    }

    fn stats(&self) -> anyhow::Result<AgentStats> {
        let stats = get(&format!("{}/stats", self.addresses.head_server))?;
        let stats: Stats = serde_json::from_slice(&stats)?;
        Ok(stats.agents.get(AGENT).copied().unwrap_or_default())
    }

    /// The agent's records of all requests so far.
    pub fn requests(&self) -> anyhow::Result<Vec<RequestRecord>> {
        let url = format!("{}/sim/{AGENT}/requests", self.addresses.head_server);
        let records = get(&url)?;
        let lines = records.as_ref().lines();
        lines
            .map(|line| Ok(serde_json::from_str(&line?)?))
            .collect()
    }
}

/// Sends a GET and returns the body of the answer.
fn get(url: &str) -> anyhow::Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let answer = runtime.block_on(async {
        let answer = client.get(url).send().await?.error_for_status()?;
        answer.bytes().await
    });
    answer.with_context(|| format!("cannot ask {url}"))
}
