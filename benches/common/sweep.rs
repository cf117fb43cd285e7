//! A sweep of the collector, from an input file to metrics: [`Sweep`], and the tasks of one.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::process::{Child, Usage, rollstream};

/// `rollstream collect` into a new run.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The tasks.
    pub input: &'a Path,
    /// Directory of the run.
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
    /// Runs it, and checks that all rollouts are there.
    pub fn run(&self) -> anyhow::Result<Usage> {
        self.finish(self.start()?)
    }

    /// Starts it. Its standard error goes to a file beside the run.
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
        Child::start(command.stderr(File::create(self.log())?))
    }

    /// Waits for its end.
    pub fn finish(&self, child: Child) -> anyhow::Result<Usage> {
        let finished = child.finish().and_then(|(output, usage)| {
            check_done(&output, self.num_rollouts)?;
            Ok(usage)
        });
        finished.with_context(|| fs::read_to_string(self.log()).unwrap_or_default())
    }

    fn log(&self) -> PathBuf {
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

/// The row of a task, by its index.
pub fn task_row(task: usize) -> String {
    task_row_of("sim", task, 0)
}

/// The row of a task of an agent, of at least `size` bytes.
pub fn task_row_of(agent: &str, task: usize, size: usize) -> String {
    let (apples, pears) = (task % 97 + 2, task % 89 + 3);
    let row = |more: &str| {
        format!(
            "{{\"responses_create_params\":{{\"input\":[{{\"role\":\"user\",\"content\":\"{more}Basket {task} holds \
             {apples} apples and {pears} pears. How many pieces of fruit does it hold? Give the number alone, with no \
             words around it.\"}}],\"temperature\":1.0}},\"expected_answer\":{},\"agent_ref\":{{\"name\":\"{agent}\"}}}}",
            apples + pears
        )
    };
    let short = row("");
    match size.saturating_sub(short.len()) {
        0 => short,
        missing => row(&format!("{:.<missing$}", "Once there was a basket ")),
    }
}

/// Writes an input file of `num_tasks` tasks.
pub fn write_tasks(path: &Path, num_tasks: usize) -> anyhow::Result<()> {
    write_rows(path, (0..num_tasks).map(task_row))
}

/// Writes an input file of these rows.
pub fn write_rows(path: &Path, rows: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        for row in rows {
            writeln!(file, "{row}")?;
        }
        file.flush()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
