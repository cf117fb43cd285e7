//! Simulated agents in a process of their own: [`SimServer`].

use std::io::{BufRead, BufReader};

use anyhow::Context;

use super::child::{Child, rollstream};

/// `rollstream sim` with one agent called `sim`; ended when dropped.
#[derive(Debug)]
pub struct SimServer {
    // Held for as long as the agent is asked.
    _process: Child,
    agent_url: String,
}

impl SimServer {
    /// Starts it on free ports; `flags` say what the agent does.
    pub fn start(flags: &[&str]) -> anyhow::Result<Self> {
        let mut process = Child::start(rollstream().args(["sim", "--port", "0"]).args(flags))?;
        let mut lines = BufReader::new(process.output()?).lines();
        while let Some(line) = lines.next().transpose()? {
            if let Some(url) = line.strip_prefix("agent sim") {
                let agent_url = url.trim().to_owned();
                return Ok(Self {
                    _process: process,
                    agent_url,
                });
            }
        }
        Err(anyhow::anyhow!("it ended")).context("the simulated agent gave no address")
    }

    /// Address of the agent.
    pub fn agent_url(&self) -> &str {
        &self.agent_url
    }
}
