use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Far longer than anything takes: a test that fails must not hang.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program, about to be started.
pub struct Program(Command);

impl Program {
    pub fn new(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollstream"));
        // Settings, proxies and the width of the terminal of whoever runs the tests must not matter.
        command.env_clear().env("HOME", folder).env("TMPDIR", folder.join("tmp")).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command)
    }

    /// Options, which spaces separate.
    pub fn args(mut self, line: &str) -> Self {
        self.0.args(line.split_whitespace());
        self
    }

    /// One option that may hold spaces.
    pub fn arg(mut self, option: impl AsRef<OsStr>) -> Self {
        self.0.arg(option);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    pub fn start(mut self) -> Running {
        let mut child = self.0.spawn().unwrap();
        let (line, lines) = channel();
        let mut stdout = child.stdout.take().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let stdout = spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let stderr = spawn(move || {
            let mut text = String::new();
            for read in stderr.lines() {
                let read = read.unwrap();
                text.push_str(&read);
                text.push('\n');
                // Not every test listens.
                let _ = line.send(read);
            }
            text
        });
        Running { child, output: Some((stdout, stderr)), lines }
    }

    /// Runs to the end.
    pub fn run(self) -> Ended {
        self.start().end()
    }
}

/// The program at work; killed if the test ends before it.
pub struct Running {
    child: Child,
    output: Option<(JoinHandle<String>, JoinHandle<String>)>,
    lines: Receiver<String>,
}

impl Running {
    /// Waits for a line on standard error that holds `text`, and gives it.
    pub fn until_it_says(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => panic!("it never said '{text}': {error}"),
            }
        }
    }

    pub fn interrupt(&self) {
        self.signal("INT");
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + PATIENCE;
        while self.is_running() && Instant::now() < deadline {
            // Only spares the processor; nothing depends on it.
            sleep(Duration::from_millis(5));
        }
        let was_running = self.is_running();
        // Fails where it has ended, which is well.
        let _ = self.child.kill();
        let code = self.child.wait().unwrap().code();
        let (stdout, stderr) = self.output.take().unwrap();
        let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
        let ended = Ended { code, stdout, stderr };
        assert!(!was_running, "it does not end: {ended:?}");
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.output.is_some() {
            // Fails where it has ended, which is well.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
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
        let missing: Vec<&&str> = parts.iter().filter(|part| !self.stderr.contains(**part)).collect();
        assert!(missing.is_empty(), "{missing:?} is missing: {self:#?}");
        assert_eq!(self.stderr.matches("error: ").count(), 1, "{self:#?}");
        assert!(self.stderr.starts_with("error: ") && self.stdout.is_empty(), "{self:#?}");
        self
    }
}
