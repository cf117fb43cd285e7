//! How long a person waits for a page of the viewer, and its memory, by the size of the run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use tempfile::TempDir;

use super::Settings;
use crate::common::{
    Child, Goal, Growth, Report, SimServer, Sweep, millions, peak_memory, rollstream, write_tasks,
};

#[derive(Debug, Args)]
pub struct View {
    /// Rollouts of the largest run [default: 1000000; 100000 with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 20)]
    repeats_of_a_task: usize,
    /// Size of an answer
    #[arg(long, value_name = "SIZE", default_value = "20KB")]
    body_size: String,
    /// View these runs instead of collecting some; the last part of a path is the number of rollouts
    #[arg(long = "run", value_name = "RUN")]
    runs: Vec<PathBuf>,
}

/// Pages: what they are, their path, the text up to which they are waited for, and the longest wait in seconds.
const PAGES: [(&str, &str, &str, Option<f64>); 7] = [
    ("first page", "1", "id=\"metrics\"", Some(1.0)),
    ("whole first page", "1", "</html>", None),
    ("first table of tasks", "1/tasks", "</html>", None),
    (
        "table of tasks",
        "1/tasks?sort=output_tokens&order=down",
        "</html>",
        Some(0.3),
    ),
    (
        "filtered table of tasks",
        "1/tasks?where=mean+%3C+0.5&page=3",
        "</html>",
        Some(0.3),
    ),
    ("task", "1/tasks/17", "</html>", Some(0.3)),
    ("rollout", "1/tasks/17/3", "</html>", Some(0.3)),
];

impl View {
    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let mut growth = Growth::default();
        if !self.runs.is_empty() {
            for run in &self.runs {
                let name = run.file_name().unwrap_or_default().to_string_lossy();
                let rollouts = name.parse().context("the run's name is no number")?;
                self.pages(run, rollouts, settings, (report, &mut growth))?;
            }
            growth.report("view", report);
            return Ok(());
        }
        let most = settings.size(self.rollouts, 1_000_000, 100_000);
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", &self.body_size])?;
        for rollouts in settings.sizes_up_to(most) {
            let directory = TempDir::with_prefix("rollstream-bench-")?;
            let (input, run) = (
                directory.path().join("tasks.jsonl"),
                directory.path().join("run"),
            );
            let num_tasks = rollouts.div_ceil(self.repeats_of_a_task);
            write_tasks(&input, num_tasks)?;
            let sweep = Sweep {
                input: &input,
                run: &run,
                agents: &[("sim", sim.agent_url())],
                num_rollouts: num_tasks * self.repeats_of_a_task,
                num_repeats: self.repeats_of_a_task,
                concurrency: 256,
                flags: &[],
            };
            sweep.run()?;
            self.pages(&run, rollouts, settings, (report, &mut growth))?;
        }
        growth.report("view", report);
        Ok(())
    }

    /// Waits for each page of a run.
    fn pages(
        &self,
        run: &Path,
        rollouts: usize,
        settings: &Settings,
        (report, growth): (&mut Report, &mut Growth),
    ) -> anyhow::Result<()> {
        let case = format!("view, {rollouts} rollouts");
        let mut waits = vec![Vec::new(); PAGES.len()];
        let mut peaks = Vec::new();
        for _ in 0..settings.options.repeats() {
            let mut command = rollstream();
            command.arg("view").arg(run).arg("--no-open");
            let mut viewer = Child::start(&mut command)?;
            let mut url = String::new();
            BufReader::new(viewer.output()?).read_line(&mut url)?;
            for ((_, page, end, _), waits) in PAGES.iter().zip(&mut waits) {
                waits.push(wait(url.trim(), page, end)?);
            }
            peaks.push(millions(peak_memory(viewer.id()?)? as f64));
        }
        for ((name, _, _, goal), waits) in PAGES.iter().zip(&waits) {
            let figure = report.figure(&case, name, "s", waits);
            if let Some(goal) = goal {
                figure.goal(Goal::AtMost(*goal));
            }
            growth.add(name, rollouts, waits);
        }
        report
            .figure(&case, "peak memory", "MB", &peaks)
            .goal(Goal::AtMost(300.0));
        growth.add("peak memory", rollouts, &peaks);
        Ok(())
    }
}

/// Seconds until a page has come as far as `end`.
fn wait(url: &str, page: &str, end: &str) -> anyhow::Result<f64> {
    let address = url.strip_prefix("http://").context("no address")?;
    let (host, base) = address.split_once('/').context("no token")?;
    let began = Instant::now();
    let mut server = TcpStream::connect(host)?;
    write!(
        server,
        "GET /{base}{page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let (mut text, mut piece) = (Vec::new(), [0; 65536]);
    loop {
        let read = server.read(&mut piece)?;
        ensure!(read > 0, "the page {page} ended before {end}");
        text.extend_from_slice(piece.get(..read).unwrap_or_default());
        if memchr::memmem::find(&text, end.as_bytes()).is_some() {
            return Ok(began.elapsed().as_secs_f64());
        }
    }
}
