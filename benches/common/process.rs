//! Other processes: [`Child`], its [`Usage`] when it has ended, and what the system tells of it while it runs.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wait4::Wait4;

use super::figure::FigureOf;

/// What a process took from its start to its end.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Wall time.
    pub wall: Duration,
    /// CPU time of all its threads, in the program and in the kernel.
    pub cpu: Duration,
    /// Largest resident memory, in bytes; at least what this process had at the start.
    pub peak_memory: u64,
}

impl Usage {
    /// Its wall time, its CPU time and its memory as figures.
    pub const FIGURES: [FigureOf<'static, Self>; 3] = [
        ("time", "s", &|usage| usage.wall.as_secs_f64()),
        ("CPU", "s", &|usage| usage.cpu.as_secs_f64()),
        ("peak memory", "MB", &|usage| usage.peak_memory as f64 / 1e6),
    ];
}

/// Another process. It ends with its owner.
#[derive(Debug)]
pub struct Child {
    // Taken when it was waited for: its id may belong to another process after that.
    process: Option<std::process::Child>,
    began: Instant,
}

/// The variable that names another program to measure than the one built with the benchmark.
const PROGRAM: &str = "ROLLSTREAM_BENCH_PROGRAM";

/// Path of the program that is measured.
pub fn program() -> OsString {
    env::var_os(PROGRAM).unwrap_or_else(|| env!("CARGO_BIN_EXE_rollstream").into())
}

/// The program that is measured.
pub fn rollstream() -> Command {
    let mut command = Command::new(program());
    // The program reads variables that begin with its name as settings.
    command.env_remove(PROGRAM);
    command
}

/// This benchmark in another process, to measure work as a process.
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

    /// Its process id.
    pub fn id(&self) -> anyhow::Result<u32> {
        let id = self.process.as_ref().map(std::process::Child::id);
        id.context("it was waited for already")
    }

    /// Its exit status, if it has ended.
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

    /// Waits for its end; returns its standard output and its usage.
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
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// CPU time of a process so far; Linux counts it in hundredths of a second.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse().unwrap_or(0)).sum();
    Ok(Duration::from_millis(ticks * 10))
}

/// The largest resident memory of a process so far, in bytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix("kB"));
    let kilobytes: u64 = peak.context("no VmHWM")?.trim().parse()?;
    Ok(kilobytes * 1024)
}

/// The position of a process in a file, if it has the file open.
pub fn position(pid: u32, file: &Path) -> Option<u64> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let positions = descriptors
        .filter(|open| fs::read_link(open.path()).is_ok_and(|target| target == file))
        .filter_map(|open| {
            let number = open.file_name().into_string().ok()?;
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
            let position = info.lines().find_map(|line| line.strip_prefix("pos:"))?;
            position.trim().parse().ok()
        });
    positions.max()
}

/// A thread: its name, and its CPU time so far.
#[derive(Debug, Clone)]
pub struct Thread {
    pub name: String,
    pub cpu: Duration,
}

/// The threads of a process by their ids, which grow in the order of their starts.
pub fn threads(pid: u32) -> BTreeMap<u32, Thread> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| {
        // It may have just ended.
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let on_cpu: u64 = times.split_whitespace().next()?.parse().ok()?;
        let thread = Thread {
            name: name.trim().to_owned(),
            cpu: Duration::from_nanos(on_cpu),
        };
        Some((task.file_name().to_str()?.parse().ok()?, thread))
    });
    threads.collect()
}
