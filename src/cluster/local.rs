//! [`LocalExecutors`]: executors of this machine, for `--cluster local:N`, and how one ends with its driver.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ClusterError;

/// Executors that end with this process, however it ends: the end of their standard input ends them.
#[derive(Debug)]
pub(super) struct LocalExecutors {
    running: Vec<(String, Child)>,
    /// For Ballista's small files.
    _files: TempDir,
}

impl LocalExecutors {
    /// Starts executors of one slot each.
    ///
    /// # Errors
    /// The system starts no process.
    pub(super) fn start(
        count: usize,
        scheduler: SocketAddr,
        state_dir: Option<&Path>,
    ) -> Result<Self, ClusterError> {
        let files = TempDir::new().map_err(ClusterError::Start)?;
        let program = std::env::current_exe().map_err(ClusterError::Start)?;
        let mut started = Self {
            running: Vec::with_capacity(count),
            _files: files,
        };
        for number in 1..=count {
            let name = format!("local-{number}");
            let child = Command::new(&program)
                .args(["cluster", "executor", "--slots", "1", "--bound"])
                .args(["--scheduler", &format!("grpc://{scheduler}")])
                .args(["--name", &name])
                .arg("--work-dir")
                .arg(started._files.path().join(&name))
                .envs(state_dir.map(|state| ("ROLLSTREAM_STATE_DIR", state)))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                // What an executor has to say is in the run.
                .stderr(Stdio::null())
                // A terminal's interrupt is for the driver, which decides what follows from it.
                .process_group(0)
                .spawn()
                .map_err(ClusterError::Start)?;
            started.running.push((name, child));
        }
        Ok(started)
    }

    /// Returns the names of the executors that have ended since the last call.
    pub(super) fn ended(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        self.running.retain_mut(|(name, child)| {
            let has_ended = !matches!(child.try_wait(), Ok(None));
            if has_ended {
                ended.push(std::mem::take(name));
            }
            !has_ended
        });
        ended
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}

impl Drop for LocalExecutors {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            // Fails where it has ended, which is well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Ends this process when standard input ends: the system closes it however the parent ends.
pub(super) fn end_with_parent(work_dir: PathBuf) -> std::io::Result<()> {
    // A thread of its own: a read of standard input can't be cancelled. It ends with the process.
    let watch = move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = std::fs::remove_dir_all(work_dir);
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("parent".to_owned());
    thread.spawn(watch).map(drop)
}
