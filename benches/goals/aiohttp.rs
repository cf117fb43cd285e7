//! What users write: [`Aiohttp`], a minimal loop in Python.

use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use serde::Deserialize;

use crate::common::{Child, Usage};

const LOOP: &str = include_str!("bare_aiohttp.py");

/// A loop over rollouts in Python.
#[derive(Debug)]
pub struct Aiohttp<'a> {
    python: &'a Path,
}

/// What the loop took, without the start of Python.
#[derive(Debug, Deserialize)]
pub struct Looped {
    rollouts: usize,
    /// Wall time of all calls.
    pub seconds: f64,
    /// CPU time of all calls, in seconds.
    pub cpu: f64,
}

impl<'a> Aiohttp<'a> {
    /// Nothing where this Python has no aiohttp.
    pub fn new(python: &'a Path) -> Option<Self> {
        let probe = Command::new(python).args(["-c", "import aiohttp"]).output();
        let is_there = probe.is_ok_and(|output| output.status.success());
        is_there.then_some(Self { python })
    }

    /// Sends so many rollouts of the tasks to an agent.
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
