//! [`LaunchError`]: why the servers or the data of a sweep are not there; and [`LogEnd`], what they said last.

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::ExitStatus;

use super::program::GymProgram;
use crate::config::ServerUrl;
use crate::error::{FAILURE, Fatal, USAGE};
use crate::http::ClientError;

/// Why NeMo Gym's programs could not serve a sweep.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// NeMo Gym is not installed where it is looked for.
    #[error(
        "cannot find NeMo Gym's program `gym`, which prepares the data and starts the servers of --gym-config: it is not \
         in {looked}. Install it (pip install nemo-gym), activate its virtual environment, or give --gym-program PATH"
    )]
    NoProgram {
        /// The places.
        looked: String,
    },
    /// Nothing to send.
    #[error(
        "--gym-config starts servers, but nothing says what they get: prepare a split of their data sets (--split \
         validation), or give a task file (--input)"
    )]
    NoInput,
    /// The address of the head server makes no sense.
    #[error("the address of the head server is no good: {0}")]
    Address(String),
    /// No port for the head server.
    #[error("cannot find a free port for NeMo Gym's head server")]
    NoPort {
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No place for logs.
    #[error(
        "cannot make a temporary folder for the logs of NeMo Gym's programs; set TMPDIR to a folder that can be written"
    )]
    Logs(#[source] std::io::Error),
    /// A program did not start.
    #[error("cannot start {program}", program = .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No client to ask the head server with.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A program ended with an error.
    #[error("`{command}` ended with {how}{log}")]
    Failed {
        /// The program and its command.
        command: &'static str,
        /// Its exit code or signal.
        how: ExitStatus,
        /// What it said last.
        log: LogEnd,
    },
    /// The data was prepared, but not for this split.
    #[error(
        "`gym dataset collate` did not write {path}: no data set of --gym-config is of this split{log}",
        path = .path.display()
    )]
    NoData {
        /// The file that is missing.
        path: PathBuf,
        /// What it said last.
        log: LogEnd,
    },
    /// A plan needs data that nothing has prepared.
    #[error(
        "a plan prepares no data, and {path} is not there: `rollstream collect` with the same options prepares it",
        path = .path.display()
    )]
    NotPrepared {
        /// The file that is missing.
        path: PathBuf,
    },
    /// A plan needs servers that do not run.
    #[error(
        "a plan starts no servers, and none of this configuration run at {url}: `rollstream collect --keep-servers` leaves \
         them running. For other servers, leave out --gym-config, and give a task file (--input) and --head-server"
    )]
    NotRunning {
        /// Where they were looked for.
        url: ServerUrl,
    },
    /// A server is gone.
    #[error("NeMo Gym's server '{server}' died{log}")]
    Died {
        /// Its name.
        server: String,
        /// What it said last.
        log: LogEnd,
    },
    /// The servers take too long.
    #[error(
        "NeMo Gym's servers are not ready after {waited}: waiting for {missing}. Give them more time with \
         ++server_spinup_timeout_seconds=N (0: no limit){log}"
    )]
    Deadline {
        /// The time that has passed.
        waited: String,
        /// What is not ready.
        missing: String,
        /// What they said last.
        log: LogEnd,
    },
}

impl Fatal for LaunchError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::NoProgram { .. }
            | Self::NoInput
            | Self::Address(_)
            | Self::NotPrepared { .. }
            | Self::NotRunning { .. } => USAGE,
            _ => FAILURE,
        }
    }
}

/// The most of a log that is read, in bytes, and shown, in lines.
const MOST_BYTES: u64 = 64 << 10;
const MOST_LINES: usize = 20;

/// The end of a log, without secrets.
#[derive(Debug, Default)]
pub struct LogEnd {
    path: PathBuf,
    lines: Vec<String>,
}

impl LogEnd {
    /// Reads the end of a log; nothing if it can't be read.
    pub(super) fn read(path: PathBuf, program: &GymProgram) -> Self {
        let mut bytes = Vec::new();
        if let Ok(mut file) = std::fs::File::open(&path) {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let start = length.saturating_sub(MOST_BYTES);
            let read = file.seek(SeekFrom::Start(start));
            // The log only helps: an error is no reason to hide what it is about.
            let _ = read.and_then(|_| file.take(MOST_BYTES).read_to_end(&mut bytes));
        }
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        program.hide_secrets(&mut text);
        // That the servers were asked how they are is no news.
        let is_news = |line: &&str| !line.trim().is_empty() && !line.contains("- \"GET /");
        let lines: Vec<&str> = text.lines().filter(is_news).collect();
        let skipped = lines.len().saturating_sub(MOST_LINES);
        let lines = lines.into_iter().skip(skipped).map(str::to_owned);
        Self {
            path,
            lines: lines.collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the server whose death the log of `gym env start` reports. The traceback before may quote the message.
    pub(super) fn dead_server(&self) -> Option<String> {
        self.lines.iter().rev().find_map(|line| {
            let (_, rest) = line.split_once("Process `")?;
            let (server, _) = rest.split_once("` finished unexpectedly")?;
            Some(server.to_owned())
        })
    }
}

impl fmt::Display for LogEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        write!(formatter, ". The end of {}:", self.path.display())?;
        self.lines
            .iter()
            .try_for_each(|line| write!(formatter, "\n  | {line}"))
    }
}
