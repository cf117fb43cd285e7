use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use super::{PATIENCE, Terminal, signal, until};

/// The program, about to be started.
pub struct Program {
    command: Command,
    args: Vec<OsString>,
}

impl Program {
    pub fn new(folder: &Path) -> Self {
        Self::within(folder, Command::new(env!("CARGO_BIN_EXE_rollstream")))
    }

    /// A line of a shell.
    pub fn shell(folder: &Path, line: &str) -> Self {
        Self::within(folder, Command::new("sh")).arg("-c").arg(line)
    }

    fn within(folder: &Path, mut command: Command) -> Self {
        // Settings, proxies and the width of the terminal of whoever runs the tests must not matter.
        command
            .env_clear()
            .env("HOME", folder)
            .env("TMPDIR", folder.join("tmp"))
            .current_dir(folder);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            command,
            args: Vec::new(),
        }
    }

    /// Options, which spaces separate.
    pub fn args(mut self, line: &str) -> Self {
        self.args
            .extend(line.split_whitespace().map(OsString::from));
        self
    }

    /// One option that may hold spaces.
    pub fn arg(mut self, option: impl AsRef<OsStr>) -> Self {
        self.args.push(option.as_ref().to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// What it reads as its standard input.
    pub fn stdin(mut self, input: impl Into<Stdio>) -> Self {
        self.command.stdin(input);
        self
    }

    /// Starts it on a terminal of so many columns.
    pub fn on_terminal(mut self, columns: u16) -> Terminal {
        self.place();
        Terminal::start(&self.command, columns)
    }

    pub fn start(mut self) -> Running {
        let elsewhere = self.place();
        let mut child = self.command.spawn().unwrap();
        let hidden = elsewhere.as_ref().map_or("", |elsewhere| elsewhere.prefix);
        let stdout = Listener::start(child.stdout.take().unwrap(), hidden);
        let stderr = Listener::start(child.stderr.take().unwrap(), hidden);
        Running {
            child: Guard(child),
            stdout,
            stderr,
            elsewhere,
        }
    }

    /// Gives the program its options, and returns where its runs are, if not in the folder alone.
    fn place(&mut self) -> Option<Elsewhere> {
        let args = std::mem::take(&mut self.args);
        #[cfg(feature = "cluster")]
        if super::on_cluster::is_wanted() {
            return super::on_cluster::place(&mut self.command, args);
        }
        self.command.args(args);
        None
    }

    /// Runs to the end.
    pub fn run(self) -> Ended {
        self.start().end()
    }
}

/// A place of runs of which the test's folder has a copy.
pub(super) struct Elsewhere {
    /// What the program says before the name of a run, and the test does not expect.
    pub(super) prefix: &'static str,
    /// Brings the copy up to date.
    pub(super) fetch: Box<dyn Fn() + Send>,
}

/// The program at work; killed if the test ends before it.
pub struct Running {
    child: Guard,
    stdout: Listener,
    stderr: Listener,
    elsewhere: Option<Elsewhere>,
}

impl Running {
    /// Waits for a line on standard error that holds `text`, and gives it.
    #[track_caller]
    pub fn until_it_says(&self, text: &str) -> String {
        self.stderr.until(text, &self.stdout)
    }

    /// Waits for a line on standard output that holds `text`, and gives it.
    #[track_caller]
    pub fn until_it_prints(&self, text: &str) -> String {
        self.stdout.until(text, &self.stderr)
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Sends a signal, such as `INT`.
    #[track_caller]
    pub fn signal(&self, name: &str) {
        signal(name, self.pid());
    }

    pub fn is_running(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_none()
    }

    #[track_caller]
    pub fn end(mut self) -> Ended {
        until("it does not end", || !self.is_running());
        let code = self.child.0.wait().unwrap().code();
        if let Some(elsewhere) = &self.elsewhere {
            (elsewhere.fetch)();
        }
        Ended {
            code,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }
}

/// Kills the program where it is still running.
pub(super) struct Guard(pub(super) Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // Fails where it has ended, which is well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads an output of the program to its end, so that it is never held up.
struct Listener {
    thread: JoinHandle<String>,
    lines: Receiver<String>,
}

impl Listener {
    fn start(output: impl Read + Send + 'static, hidden: &'static str) -> Self {
        let (line, lines) = channel();
        let mut output = BufReader::new(output);
        let thread = spawn(move || {
            let mut text = String::new();
            let mut bytes = Vec::new();
            while output.read_until(b'\n', &mut bytes).unwrap() > 0 {
                let mut read = String::from_utf8_lossy(&bytes).into_owned();
                if !hidden.is_empty() {
                    read = read.replace(hidden, "");
                }
                bytes.clear();
                text.push_str(&read);
                // Not every test listens.
                let _ = line.send(read);
            }
            text
        });
        Self { thread, lines }
    }

    #[track_caller]
    fn until(&self, text: &str, other: &Self) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut heard = String::new();
        loop {
            match self
                .lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => heard.push_str(&line),
                Err(error) => {
                    let other: String = other.lines.try_iter().collect();
                    panic!("never '{text}' ({error}), but:\n{heard}and on the other side:\n{other}")
                }
            }
        }
    }

    fn text(self) -> String {
        self.thread.join().unwrap()
    }
}

/// What became of the program. `code` is missing where a signal ended it.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    #[track_caller]
    pub fn succeeded(self) -> Self {
        self.exited_with(0)
    }

    #[track_caller]
    pub fn exited_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// There is one error, on standard error alone, and it says all of `parts`.
    #[track_caller]
    pub fn complaining(self, parts: &[&str]) -> Self {
        let missing: Vec<&&str> = parts
            .iter()
            .filter(|part| !self.stderr.contains(**part))
            .collect();
        assert!(missing.is_empty(), "{missing:?} is missing: {self:#?}");
        let errors = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count();
        assert!(
            errors == 1 && self.stderr.starts_with("error: ") && self.stdout.is_empty(),
            "{self:#?}"
        );
        self
    }
}
