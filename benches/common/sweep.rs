//! A whole sweep of the collector, from an input file to metrics: [`Sweep`].

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::child::{Child, Usage, rollstream};

/// `rollstream collect` into a run that is made anew.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The tasks.
    pub input: &'a Path,
    /// Where the run goes.
    pub run: &'a Path,
    /// Names and addresses of the agents.
    pub agents: &'a [(&'a str, &'a str)],
    /// Rollouts in all.
    pub num_rollouts: usize,
    /// Rollouts of a task.
    pub num_repeats: usize,
    /// Calls in flight.
    pub concurrency: usize,
    /// Other flags.
    pub flags: &'a [&'a str],
}

impl Sweep<'_> {
    /// Does it. That all of it is there in the end is part of the measurement.
    pub fn run(&self) -> anyhow::Result<Usage> {
        self.finish(self.start()?)
    }

    /// Begins with it; what it tells people goes to a file beside the run.
    pub fn start(&self) -> anyhow::Result<Child> {
        let mut command = rollstream();
        command.arg("collect").arg("--input").arg(self.input);
        command.arg("--output").arg(self.run);
        command.args(["--overwrite", "--json"]);
        for (name, url) in self.agents {
            command.args(["--agent-url", &format!("{name}={url}")]);
        }
        command.args(["--num-repeats", &self.num_repeats.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        command.args(self.flags);
        Child::start(command.stderr(File::create(self.told())?))
    }

    /// Waits for its end.
    pub fn finish(&self, child: Child) -> anyhow::Result<Usage> {
        let finished = child.finish().and_then(|(output, usage)| {
            check_done(&output, self.num_rollouts)?;
            Ok(usage)
        });
        finished.with_context(|| fs::read_to_string(self.told()).unwrap_or_default())
    }

    fn told(&self) -> PathBuf {
        self.run.with_extension("log")
    }
}

/// Checks by the collector's last event that it has all rollouts.
pub fn check_done(output: &str, num_rollouts: usize) -> anyhow::Result<()> {
    let finished = output.lines().last().unwrap_or_default();
    let finished: serde_json::Value =
        serde_json::from_str(finished).context("the collector's last event")?;
    let done = finished.pointer("/rollouts/done");
    ensure!(
        done.and_then(serde_json::Value::as_u64) == Some(num_rollouts as u64),
        "the collector did not collect everything: {finished}"
    );
    Ok(())
}
