//! [`LocalExecutors`]: executors of this machine, for `--cluster local:N`, and how one ends with its driver.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::available_parallelism;

use tempfile::TempDir;

use super::ClusterError;

/// The variable that says how many threads tokio has.
const THREADS: &str = "TOKIO_WORKER_THREADS";

/// The last lines that are shown of what an executor said before it ended.
const MOST_LINES: usize = 5;

/// Executors that end with this process, however it ends: the end of their standard input ends them.
#[derive(Debug)]
pub(super) struct LocalExecutors {
    running: Vec<(String, Child)>,
    /// For Ballista's small files, and for what the processes say.
    files: TempDir,
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
        // Together they have the threads of one process: more would wait for each other.
        let cores = available_parallelism().map_or(1, usize::from);
        let threads = (cores / count.max(1)).max(1).to_string();
        let threads = std::env::var(THREADS).unwrap_or(threads);
        let mut started = Self {
            running: Vec::with_capacity(count),
            files,
        };
        for number in 1..=count {
            let name = format!("local-{number}");
            let said =
                File::create(log(started.files.path(), &name)).map_err(ClusterError::Start)?;
            let child = Command::new(&program)
                .args(["cluster", "executor", "--slots", "1", "--bound"])
                .args(["--scheduler", &format!("grpc://{scheduler}")])
                .args(["--name", &name])
                .arg("--work-dir")
                .arg(started.files.path().join(&name))
                .env(THREADS, &threads)
                .envs(state_dir.map(|state| ("ROLLSTREAM_STATE_DIR", state)))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(said)
                // A terminal's interrupt is for the driver, which decides what follows from it.
                .process_group(0)
                .spawn()
                .map_err(ClusterError::Start)?;
            started.running.push((name, child));
        }
        Ok(started)
    }

    /// Returns the names of the executors that have ended since the last call, and how they did.
    pub(super) fn ended(&mut self) -> Vec<(String, String)> {
        let (mut ended, files) = (Vec::new(), self.files.path());
        self.running.retain_mut(|(name, child)| {
            let how = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => status.to_string(),
                Err(error) => error.to_string(),
            };
            let said = std::fs::read(log(files, name)).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let lines: Vec<&str> = said.lines().collect();
            let last = lines.iter().skip(lines.len().saturating_sub(MOST_LINES));
            let how: Vec<&str> = [how.as_str()].into_iter().chain(last.copied()).collect();
            ended.push((std::mem::take(name), how.join("; ")));
            false
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

/// Where the standard error of an executor goes.
fn log(files: &Path, name: &str) -> PathBuf {
    files.join(format!("{name}.log"))
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
