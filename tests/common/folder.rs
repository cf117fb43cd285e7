use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Program, Task};

/// A test's own folder, removed at its end. The program runs in it, so that paths in options and messages are short.
pub struct Folder {
    directory: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("tmp")).unwrap();
        Self { directory }
    }

    /// A folder with `tasks.jsonl`.
    pub fn with_tasks(tasks: impl IntoIterator<Item = Task>) -> Self {
        let folder = Self::new();
        folder.tasks("tasks.jsonl", tasks);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a task file, one line a task.
    pub fn tasks(&self, name: &str, tasks: impl IntoIterator<Item = Task>) -> PathBuf {
        let lines: Vec<String> = tasks.into_iter().map(|task| format!("{task}\n")).collect();
        self.write(name, &lines.concat())
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn json(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Every file and folder below, in order.
    pub fn content(&self) -> Vec<String> {
        let mut files = Vec::new();
        list(self.directory.path(), &mut files);
        let relative = |path: PathBuf| {
            let path = path.strip_prefix(self.directory.path()).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let mut files: Vec<String> = files.into_iter().map(relative).collect();
        files.sort();
        files
    }

    /// The files below that hold a text.
    pub fn holding(&self, text: &str) -> Vec<String> {
        let mut files = self.content();
        files.retain(|name| {
            let content = std::fs::read(self.path(name)).unwrap_or_default();
            let mut windows = content.windows(text.len());
            windows.any(|window| window == text.as_bytes())
        });
        files
    }

    /// The program with the options of `line`, which spaces separate. Those that hold spaces are added with
    /// [`Program::arg`].
    pub fn rollstream(&self, line: &str) -> Program {
        Program::new(self.directory.path()).args(line)
    }

    /// The answer of `rollstream sql` as CSV, without its header.
    pub fn sql(&self, runs: &str, query: &str) -> Vec<String> {
        let ended = self
            .rollstream("sql --format csv")
            .args(runs)
            .arg("-c")
            .arg(query)
            .run();
        ended
            .succeeded()
            .stdout
            .lines()
            .skip(1)
            .map(str::to_owned)
            .collect()
    }
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = match fs::read_dir(directory) {
        // A sweep has removed what was there a moment ago.
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        entries => entries.unwrap(),
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        }
        files.push(path);
    }
}

/// A small disk of its own, in memory.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where this process may not mount disks.
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|ended| ended.status.success());
        mounted.then(|| Self(at.to_owned()))
    }

    pub fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let grown = Command::new("mount")
            .args(["-o", &options])
            .arg(&self.0)
            .status();
        assert!(grown.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Left behind, it is gone with the machine.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}
