//! Ends the program at a chosen change of the file system: [`CrashPoint`].

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs, process};

use crate::common::Program;

/// The library that is loaded before the program: `crash.c`, compiled once a process.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash_points/crash.c");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(directory).unwrap();
    let library = directory.join("crash.so");
    // Others may load it while it is written.
    let new = directory.join(format!("crash-{}.so", process::id()));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&new, &source])
        .output()
        .expect("these tests need a C compiler");
    assert!(compiled.status.success(), "{compiled:?}");
    fs::rename(&new, &library).unwrap();
    library
});

/// On which side of a change the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// The n-th change below a directory, as `rename FROM -> TO` or `fsync FILE`, whose text holds `matching`.
#[derive(Debug, Clone, Copy)]
pub struct CrashPoint {
    /// From 1; 0 is never reached.
    pub number: usize,
    pub side: Side,
    pub matching: &'static str,
    pub fate: Fate,
}

/// What becomes of the process there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Killed,
    /// Until it gets SIGCONT.
    Stopped,
}

impl CrashPoint {
    /// Ends nothing.
    pub const NEVER: Self = Self::first(Side::Before, "").nth(0);

    pub const fn first(side: Side, matching: &'static str) -> Self {
        Self {
            number: 1,
            side,
            matching,
            fate: Fate::Killed,
        }
    }

    /// The process is stopped there, and goes on when it is told.
    pub const fn stopping(self) -> Self {
        Self {
            fate: Fate::Stopped,
            ..self
        }
    }

    pub const fn nth(self, number: usize) -> Self {
        Self { number, ..self }
    }

    /// The program with an end at this point. Every change below `directory` gets a line in `log`.
    pub fn of(self, program: Program, directory: &Path, log: &Path) -> Program {
        // The library sees paths as the kernel knows them.
        let parent = directory.parent().unwrap().canonicalize().unwrap();
        let directory = parent.join(directory.file_name().unwrap());
        let program = program
            .env("LD_PRELOAD", LIBRARY.to_str().unwrap())
            .env("CRASH_BELOW", directory.to_str().unwrap())
            .env("CRASH_LOG", log.to_str().unwrap())
            .env("CRASH_MATCH", self.matching)
            .env("CRASH_AT", &self.number.to_string());
        let program = match self.fate {
            Fate::Killed => program,
            Fate::Stopped => program.env("CRASH_STOPS", "1"),
        };
        match self.side {
            Side::Before => program,
            Side::After => program.env("CRASH_AFTER", "1"),
        }
    }
}
