//! [`Supervised`]: one of NeMo Gym's programs below its supervisors, as the process that started them sees it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::error::{LaunchError, LogEnd};
use super::program::{GymProgram, ROOTS};
use super::supervisor::{COMMAND, END, FIRST, GRACE, KEEP, KILL, NAME, adopt_orphans};

/// A supervisor ends within this time after it had to kill.
const PATIENCE: Duration = Duration::from_secs(5);

/// A supervised program. It ends when this is dropped, unless it is kept.
#[derive(Debug)]
pub(super) struct Supervised {
    child: Child,
    orders: Option<ChildStdin>,
    log: PathBuf,
    is_kept: bool,
}

impl Supervised {
    /// Starts the program with these arguments below its supervisors. What all say goes to the log.
    ///
    /// # Errors
    /// The log or the process can't be created.
    pub(super) fn start(
        program: &GymProgram,
        arguments: Vec<OsString>,
        log: PathBuf,
    ) -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::Start {
            program: program.path().to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(0o600);
        let output = options.open(&log).map_err(LaunchError::Logs)?;
        let errors = output.try_clone().map_err(LaunchError::Logs)?;
        let this = std::env::current_exe().map_err(failed)?;
        adopt_orphans().map_err(failed)?;
        let mut child = Command::new(this)
            .arg0(NAME)
            .args([COMMAND, FIRST])
            .arg(program.path())
            .args(arguments)
            .env(ROOTS, program.roots())
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            orders: child.stdin.take(),
            child,
            log,
            is_kept: false,
        })
    }

    /// The process to signal to end the program.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how the program ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns whether the supervisor has not ended by itself and is not to stay: what is below it may be left.
    pub(super) fn left_orphans(&mut self) -> bool {
        self.ended()
            .map_or(!self.is_kept, |how| how.code().is_none())
    }

    pub(super) fn log_end(&self, program: &GymProgram) -> LogEnd {
        LogEnd::read(self.log.clone(), program)
    }

    /// Lets the program outlive this process.
    pub(super) fn keep(&mut self) {
        self.is_kept = self.order(KEEP);
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Ends the program, and waits for all that it started. Does nothing if it is kept.
    pub(super) async fn stop(&mut self) {
        if !self.is_kept {
            self.order(END);
            self.wait(GRACE + PATIENCE).await;
        }
    }

    /// Ends the program at once.
    pub(super) async fn kill(&mut self) {
        if !self.is_kept {
            self.order(KILL);
            self.wait(PATIENCE).await;
        }
    }

    fn order(&mut self, order: u8) -> bool {
        let orders = self.orders.as_mut();
        orders.is_some_and(|orders| orders.write_all(&[order]).is_ok())
    }

    async fn wait(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
    }
}
