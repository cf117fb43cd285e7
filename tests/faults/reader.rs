//! Somebody else who reads a run while it is written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use super::ledger::{RolloutKey, batches, keys, parts};

/// Reads `rollouts` again and again: at no moment may a rollout be there twice, or a part be torn.
pub struct Reader {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Reader {
    pub fn start(run: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            let mut looks = 0;
            while !stopped.load(Relaxed) {
                look(&run);
                looks += 1;
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

fn look(run: &Path) {
    let mut seen: HashSet<RolloutKey> = HashSet::new();
    for part in parts(run, "rollouts") {
        for batch in batches(&part, &["task_index", "rollout_index"]) {
            for key in keys(&batch) {
                assert!(seen.insert(key), "{key:?} is there twice, with {part:?}");
            }
        }
    }
}
