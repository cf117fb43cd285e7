//! Other processes: [`Child`], and the [`Usage`] of one that has ended.

use std::env;
use std::ffi::OsString;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wait4::Wait4;

/// What a process took from its start to its end.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Wall time.
    pub wall: Duration,
    /// CPU time in all its threads, in the program and in the kernel for it.
    pub cpu: Duration,
    /// Largest resident memory, in bytes; never less than this process' own had been at the start.
    pub peak_memory: u64,
}

/// A process that is ended with its owner.
#[derive(Debug)]
pub struct Child {
    // Taken when it has been waited for: its id may be another's from then on.
    process: Option<std::process::Child>,
    began: Instant,
}

/// Variable that names a program to be measured in place of the one that was built with the benchmark.
const PROGRAM: &str = "ROLLSTREAM_BENCH_PROGRAM";

/// Path of the program that is measured.
pub fn program() -> OsString {
    env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_rollstream").into())
}

/// The program that is measured.
pub fn rollstream() -> Command {
    let mut command = Command::new(program());
    // The program takes what begins with its name for a setting.
    command.env_remove(PROGRAM);
    command
}

/// This benchmark again: work that is measured as a process needs one of its own.
pub fn itself() -> anyhow::Result<Command> {
    Ok(Command::new(
        env::current_exe().context("cannot find this program")?,
    ))
}

impl Child {
    /// Starts a process whose standard output is read here.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let began = Instant::now();
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let process = process.with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self {
            process: Some(process),
            began,
        })
    }

    /// Its number with the system.
    pub fn id(&self) -> anyhow::Result<u32> {
        let id = self.process.as_ref().map(std::process::Child::id);
        id.context("it was waited for already")
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let process = self.process.as_mut().context("it was waited for already")?;
        Ok(process.try_wait()?)
    }

    /// Its standard output, once.
    pub fn output(&mut self) -> anyhow::Result<std::process::ChildStdout> {
        let output = self
            .process
            .as_mut()
            .and_then(|process| process.stdout.take());
        output.context("the output is read already")
    }

    /// Waits for its end: what it wrote to standard output, and what it took.
    pub fn finish(mut self) -> anyhow::Result<(String, Usage)> {
        let mut text = String::new();
        self.output()?.read_to_string(&mut text)?;
        let mut process = self.process.take().context("it was waited for already")?;
        let ended = process.wait4()?;
        let wall = self.began.elapsed();
        ensure!(
            ended.status.success(),
            "a process that was measured failed: {}\n{text}",
            ended.status
        );
        let usage = Usage {
            wall,
            cpu: ended.rusage.utime + ended.rusage.stime,
            peak_memory: ended.rusage.maxrss,
        };
        Ok((text, usage))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // One that has ended by itself is not there to be ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
