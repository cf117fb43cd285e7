//! [`Wandb`]: W&B, through its Python package, or by the files that `wandb sync` uploads where no Python has it.
//!
//! A small program, `wandb.py`, gets a command a line and answers each. What it logs goes the package's own way, so that its
//! variables hold: with `WANDB_MODE=offline` nothing is sent, and `wandb sync` does it later.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

use super::end::RolloutTable;
use super::wandb_files::{OfflineRun, next_step};
use super::{LAST, Opened, TrackError, Tracker};
use crate::config::Secret;
use crate::http::Secrets;
use crate::progress::Point;
use crate::python;

const PROGRAM: &str = include_str!("wandb.py");

/// The longest answer of the program.
const MAX_ANSWER: u64 = 64 * 1024;

/// The longest time that the package may take to log in and to open a run.
const START: Duration = Duration::from_secs(60);

pub(super) struct Wandb {
    project: String,
    name: String,
    key: Option<Secret>,
    /// Where the package keeps its files; none for where it likes.
    folder: Option<PathBuf>,
    program: Option<Running>,
    /// The run, if there is no package.
    files: Option<OfflineRun>,
    /// The step at which this process goes on.
    first_step: u64,
}

/// The program, killed when this is dropped.
struct Running {
    child: Child,
    commands: Sender,
    answers: BufReader<Receiver>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // With all that it started. It fails where they have ended, which is well.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(python: &PathBuf, key: Option<&Secret>) -> io::Result<Self> {
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM]).process_group(0);
        if let Some(key) = key {
            command.env("WANDB_API_KEY", key.reveal());
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let commands = OwnedFd::from(child.stdin.take().ok_or_else(closed)?);
        let answers = OwnedFd::from(child.stdout.take().ok_or_else(closed)?);
        Ok(Self {
            commands: Sender::from_owned_fd(commands)?,
            answers: BufReader::new(Receiver::from_owned_fd(answers)?),
            child,
        })
    }

    /// Sends a command and waits for the answer.
    async fn ask(&mut self, command: &Value) -> io::Result<Value> {
        self.commands
            .write_all(format!("{command}\n").as_bytes())
            .await?;
        let mut answer = String::new();
        (&mut self.answers)
            .take(MAX_ANSWER)
            .read_line(&mut answer)
            .await?;
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Wandb {
    pub(super) fn new(
        project: String,
        name: String,
        key: Option<Secret>,
        folder: Option<PathBuf>,
    ) -> Self {
        Self {
            project,
            name,
            key,
            folder,
            program: None,
            files: None,
            first_step: 0,
        }
    }

    async fn ask(&mut self, command: Value, limit: Duration) -> Result<Value, TrackError> {
        let closed = || TrackError::Pipe(io::ErrorKind::NotConnected.into());
        // A program that does not answer in time is not asked again.
        let mut program = self.program.take().ok_or_else(closed)?;
        let answer = timeout(limit, program.ask(&command)).await;
        let answer = answer.map_err(|_| TrackError::Late(limit))?;
        let answer = answer.map_err(TrackError::Pipe)?;
        self.program = Some(program);
        match answer["error"].as_str() {
            Some(error) => {
                let key = self.key.as_ref().map(Secret::reveal);
                let shown = Secrets::new(key).shown(error.as_bytes());
                Err(TrackError::Package(shown))
            }
            None => Ok(answer),
        }
    }
}

#[async_trait]
impl Tracker for Wandb {
    fn name(&self) -> &'static str {
        "W&B"
    }

    fn file(&self) -> &'static str {
        "tracker_wandb.json"
    }

    fn place(&self) -> String {
        self.project.clone()
    }

    /// Without its package, too.
    fn is_disabled(&self) -> bool {
        std::env::var_os("WANDB_MODE").is_some_and(|mode| mode == "disabled")
    }

    async fn open(&mut self, id: Option<&str>, run_id: &str) -> Result<Opened, TrackError> {
        let id = id.map_or_else(|| run_id.to_lowercase(), str::to_owned);
        let place = self.folder.clone().unwrap_or_default();
        self.first_step = next_step(&place, &id);
        let start = json!({
            "do": "start",
            "project": self.project,
            "name": self.name,
            "id": id,
            "dir": self.folder,
        });
        for python in python::programs("python3") {
            let Ok(program) = Running::start(&python, self.key.as_ref()) else {
                continue;
            };
            self.program = Some(program);
            let answer = self.ask(start.clone(), START).await?;
            if answer["missing"].is_null() {
                let url = answer["url"].as_str().map(str::to_owned);
                return Ok(Opened { id, shown: url });
            }
        }
        self.program = None;
        let files = OfflineRun::create(&place, [&self.project, &self.name, &id], self.first_step)?;
        let shown = format!(
            "no python3 in $VIRTUAL_ENV, in .venv here or above, or on the PATH has the package (pip install wandb), so the \
             run is logged to files; to upload them, where the package is: wandb sync {}",
            files.folder.display()
        );
        self.files = Some(files);
        Ok(Opened {
            id,
            shown: Some(shown),
        })
    }

    async fn config(&mut self, config: &Value) -> Result<(), TrackError> {
        if let Some(files) = &mut self.files {
            return files.config(config);
        }
        let command = json!({"do": "config", "config": config});
        self.ask(command, LAST).await.map(drop)
    }

    async fn points(&mut self, points: &[Point]) -> Result<(), TrackError> {
        // After a kill, points come again. Offline, the package does not know what an earlier process logged.
        let first = self.first_step;
        for point in points.iter().filter(|point| point.step >= first) {
            if let Some(files) = &mut self.files {
                let metrics = point.metrics.iter();
                let metrics = metrics.map(|(key, value)| (key.clone(), json!(value)));
                files.log(&metrics.collect(), Some(point.step))?;
                continue;
            }
            let command = json!({"do": "log", "metrics": point.metrics, "step": point.step});
            self.ask(command, LAST).await?;
        }
        Ok(())
    }

    async fn metrics(&mut self, metrics: &Map<String, Value>) -> Result<(), TrackError> {
        if let Some(files) = &mut self.files {
            return files.log(metrics, None);
        }
        let command = json!({"do": "log", "metrics": metrics, "step": null});
        self.ask(command, LAST).await.map(drop)
    }

    async fn rollouts(&mut self, table: &RolloutTable) -> Result<(), TrackError> {
        if let Some(files) = &mut self.files {
            return files.table(table).await;
        }
        let command = json!({"do": "table", "path": table.path, "rows": table.rows});
        self.ask(command, table.time_to_send()).await.map(drop)
    }

    async fn close(&mut self, ended_well: bool) -> Result<(), TrackError> {
        let exit_code = u64::from(!ended_well);
        if let Some(files) = &mut self.files {
            return files.finish(exit_code);
        }
        let command = json!({"do": "finish", "exit_code": exit_code});
        self.ask(command, LAST).await.map(drop)
    }
}
