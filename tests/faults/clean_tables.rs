//! What a reader who lists `rollouts` finds while a sweep goes on and is killed: parts, and nothing else.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::scene::Scene;
use crate::preload::{CrashPoint, Side};

/// As a dataset is read by tools that take every file of a directory.
struct Lister {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Lister {
    fn start(run: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = spawn(move || {
            let mut looks = 0;
            while !stopped.load(Relaxed) {
                look(&run);
                looks += 1;
                // Only spares the processor.
                sleep(Duration::from_millis(1));
            }
            looks
        });
        Self { stop, thread }
    }

    #[track_caller]
    fn stop(self) -> usize {
        self.stop.store(true, Relaxed);
        match self.thread.join() {
            Ok(looks) => looks,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Each file of the directory is a part that can be read whole.
fn look(run: &Path) {
    let Ok(files) = fs::read_dir(run.join("rollouts")) else {
        return;
    };
    for file in files {
        let path = file.unwrap().path();
        assert!(
            path.extension().is_some_and(|end| end == "parquet"),
            "no part: {}",
            path.display()
        );
        let file = match File::open(&path) {
            // It has become part of a larger one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file.unwrap(),
        };
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(ParquetRecordBatchReaderBuilder::build)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for batch in reader {
            batch.unwrap();
        }
    }
}

#[test]
fn the_directory_of_rollouts_holds_nothing_but_whole_parts_whatever_happens() {
    let scene = Scene::slow(5).with_its_own_load();
    let run = scene.folder.path("run");
    let lister = Lister::start(run.clone());
    let options = "--resume --concurrency 8 --part-size 10KB";
    // At each step of the first part of a process, so that every process does something.
    for number in 1..=4 {
        for side in [Side::Before, Side::After] {
            let point = CrashPoint::first(side, "/rollouts").nth(number);
            let log = scene.folder.path("changes.log");
            let program = point.of(scene.collect(options), &run, &log);
            program.run();
            look(&run);
        }
    }
    let ended = scene.collect(options).run();
    ended.succeeded();
    look(&run);
    let looks = lister.stop();
    assert!(looks > 10, "{looks}");
    scene.is_done_but_for(&[]);
}
