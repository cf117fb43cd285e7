//! Simulated agents in a process of their own: [`SimServer`].

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use anyhow::Context;

use super::child::{Child, rollstream};

/// `rollstream sim` with one agent called `sim`; ended when dropped.
#[derive(Debug)]
pub struct SimServer {
    // Held for as long as the agent is asked.
    _process: Child,
    /// By what the program calls them: `agent sim`, `model`, `tools`, ...
    addresses: BTreeMap<String, String>,
}

impl SimServer {
    /// Starts it on free ports; `flags` say what the agent does.
    pub fn start(flags: &[&str]) -> anyhow::Result<Self> {
        let mut process = Child::start(rollstream().args(["sim", "--port", "0"]).args(flags))?;
        let mut lines = BufReader::new(process.output()?).lines();
        let mut addresses = BTreeMap::new();
        while let Some(line) = lines.next().transpose()? {
            if let Some((name, url)) = line.split_once("  ") {
                addresses.insert(name.trim().to_owned(), url.trim().to_owned());
            }
            // The last that is told.
            if addresses.contains_key("environment") {
                return Ok(Self {
                    _process: process,
                    addresses,
                });
            }
        }
        Err(anyhow::anyhow!("it ended")).context("the simulated servers gave no addresses")
    }

    /// Address of the agent.
    pub fn agent_url(&self) -> &str {
        self.url("agent sim")
    }

    /// Address of one of the servers, by what the program calls it.
    pub fn url(&self, name: &str) -> &str {
        self.addresses.get(name).map_or("", String::as_str)
    }
}
