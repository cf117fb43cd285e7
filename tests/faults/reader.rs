//! Somebody else who reads a run while it is written.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use super::ledger::{RolloutKey, batches_of, keys, parts};

/// Reads `rollouts` again and again: at no moment may a rollout be there twice or have gone, or a part be
/// torn.
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Reader {
    pub fn start(run: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            let (mut looks, mut most) = (0, 0);
            while !stopped.load(Relaxed) {
                if let Some(seen) = look(&run) {
                    assert!(seen.len() >= most, "{} of {most} are left", seen.len());
                    most = seen.len();
                    looks += 1;
                }
                // Only spares the processor.
                sleep(Duration::from_millis(2));
            }
            looks
        });
        Self { stop, thread }
    }

    /// Stops; gives how often it looked.
    #[track_caller]
    pub fn stop(self) -> usize {
        self.stop.store(true, Relaxed);
        match self.thread.join() {
            Ok(looks) => looks,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The rollouts that the parts of a moment hold, each once. None where others took the place of some meanwhile.
#[track_caller]
pub fn look(run: &Path) -> Option<HashSet<RolloutKey>> {
    let mut seen: HashSet<RolloutKey> = HashSet::new();
    let opened = parts(run, "rollouts").into_iter().map(File::open);
    let files = match opened.collect::<io::Result<Vec<File>>>() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        files => files.unwrap(),
    };
    for part in files {
        let shown = format!("{part:?}");
        for batch in batches_of(part, &["task_index", "rollout_index"]) {
            for key in keys(&batch) {
                assert!(seen.insert(key), "{key:?} is there twice, with {shown}");
            }
        }
    }
    Some(seen)
}
