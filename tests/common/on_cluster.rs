//! The suites of one process once more on a cluster, with runs on an S3 server: `ROLLSTREAM_TEST_CLUSTER=local:4`.
//!
//! The tests stay as they are, and find runs in their folders: a [`Mirror`] keeps folder and store alike.

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "some suites have the server for themselves, and ask for more"
)]
#[path = "s3_backend.rs"]
mod s3_backend;
#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "some suites have the server for themselves, and ask for more"
)]
#[path = "s3_server.rs"]
mod s3_server;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use bytes::Bytes;

use super::program::Elsewhere;
use s3_server::{ACCESS_KEY, Change, S3Server, SECRET_KEY};

/// Tests, by the beginnings of their names, that say something of one process alone, and why.
const ALONE: &[(&str, &str)] = &[
    ("cli::full_disk", "the disk of one process is full"),
    ("cli::guide", "it shows what one process prints"),
    (
        "cli::gym_launch::a_resume",
        "its file has fewer calls than executors",
    ),
    (
        "cli::gym_launch::a_server_that_dies",
        "its file has fewer calls than executors",
    ),
    (
        "cli::gym07_resume::rollouts_that_took_longest",
        "an order holds within a shard",
    ),
    (
        "cli::interrupts::a_second_interrupt",
        "executors begin one after the other",
    ),
    (
        "cli::model_agent::rollouts_wait_for_a_key",
        "each executor needs answers of its own to tell",
    ),
    ("cli::multi_turn::both_drivers", "a batch is one of a shard"),
    (
        "cli::places",
        "paths, memory and temporary files are those of one process",
    ),
    (
        "cli::plan::a_plan_says_how_long",
        "its file has fewer calls than executors",
    ),
    (
        "cli::progress::without_a_terminal",
        "executors are shown as well",
    ),
    (
        "cli::sql_while_running::a_conversation",
        "shards land as they end",
    ),
    (
        "cli::sql_while_running::answers_can",
        "shards land as they end",
    ),
    (
        "cli::status::a_run_that_is_being_collected",
        "a driver has no lock",
    ),
    (
        "cli::status::a_run_that_was_killed",
        "it may have executors for ten seconds more",
    ),
    (
        "cli::status::a_watch",
        "an executor of one slot has the calls of one shard in flight",
    ),
    ("cli::terminal::cost_latency", "a driver knows no latencies"),
    (
        "cli::terminal::messages_stand",
        "a driver hears of calls in flight every two seconds",
    ),
    (
        "cli::trackers",
        "a driver hears of answers every two seconds",
    ),
    (
        "faults::always_failing",
        "each executor judges the agent by itself",
    ),
    (
        "faults::capacity",
        "each executor finds its part of the capacity",
    ),
    ("faults::crashes", "the journal is that of one process"),
    (
        "faults::damaged",
        "the journal and the lock are those of one process",
    ),
    (
        "faults::hangs::without_a_timeout",
        "a shard has few calls, which all hang",
    ),
    (
        "faults::limits::too_",
        "a driver hears of failures every two seconds",
    ),
    ("faults::locks", "a driver has no lock"),
    (
        "faults::published",
        "the process ends at a change of a file",
    ),
    (
        "faults::refusals::first_attempts",
        "others hear of a pause within six seconds",
    ),
    ("faults::takeover::who_breaks", "executors hold the locks"),
];

/// Tests, by the beginnings of their names, whose runs must be on a disk, and why.
const ON_A_DISK: &[(&str, &str)] = &[
    (
        "cli::compare::tasks_are_joined",
        "a file names the runs by their places",
    ),
    (
        "cli::existing_runs::a_finished_run_is",
        "it is about the times of files",
    ),
    ("cli::input_errors::an_output_that", "it is about files"),
    ("cli::terminal", "lines break where the address is long"),
    (
        "faults::heads::through_a_proxy",
        "the proxy would be the store's as well",
    ),
    (
        "faults::redirects::through_a_proxy",
        "the proxy would be the store's as well",
    ),
];

const CLUSTER: &str = "ROLLSTREAM_TEST_CLUSTER";

/// The root of the store.
const PREFIX: &str = "s3://sweeps/";

fn is_in(list: &[(&str, &str)]) -> bool {
    let current = std::thread::current();
    let test = current.name().unwrap_or_default();
    list.iter().any(|(name, _)| test.starts_with(name))
}

/// Whether the environment asks for a cluster, and the test may have one.
pub(super) fn is_wanted() -> bool {
    std::env::var_os(CLUSTER).is_some() && !is_in(ALONE)
}

/// Gives the program its options, so that it collects on the cluster and keeps its runs in a store, where it may.
pub(super) fn place(command: &mut Command, args: Vec<OsString>) -> Option<Elsewhere> {
    let has = |name: &str| args.iter().any(|arg| arg == name);
    if !has("--cluster") && !has("--shard") {
        // Each executor needs a call.
        let words = args
            .windows(2)
            .map(|pair| (pair[0].to_string_lossy(), pair[1].to_string_lossy()));
        let of_calls = words.filter(|(flag, value)| {
            flag.ends_with("-concurrency") || value.starts_with("+num_samples_in_parallel=")
        });
        let calls =
            of_calls.filter_map(|(_, value)| value.rsplit('=').next()?.parse::<usize>().ok());
        let cluster = std::env::var(CLUSTER).unwrap();
        let count = cluster.strip_prefix("local:").unwrap().parse().unwrap();
        let count = calls.chain([count]).min().unwrap();
        command.env("ROLLSTREAM_CLUSTER", format!("local:{count}"));
    }
    let has_store = command.get_envs().any(|(name, _)| name == "AWS_ENDPOINT");
    if has_store || is_in(ON_A_DISK) {
        command.args(args);
        return None;
    }
    let mirror = Mirror::of(command.get_current_dir().unwrap());
    command.args(mirror.placed(args));
    mirror.push();
    command
        .env("ROLLSTREAM_STATE_DIR", &mirror.state)
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .env("AWS_REGION", "us-east-1")
        .env(
            "AWS_ENDPOINT",
            format!("http://{}", mirror.server.address()),
        )
        .env("AWS_ALLOW_HTTP", "true");
    Some(Elsewhere {
        prefix: PREFIX,
        fetch: Box::new(move || mirror.pull()),
    })
}

/// The runs of a test in a store, and in the test's folder.
struct Mirror {
    folder: PathBuf,
    /// The state of runs on this machine, which is in nobody's way beside the folder.
    state: PathBuf,
    server: S3Server,
    alike: Mutex<Alike>,
}

/// What folder and store have in common.
#[derive(Default)]
struct Alike {
    runs: BTreeSet<String>,
    files: BTreeMap<String, Bytes>,
    /// Changes of the store that the folder has.
    changes: usize,
}

static MIRRORS: Mutex<BTreeMap<PathBuf, Arc<Mirror>>> = Mutex::new(BTreeMap::new());

impl Mirror {
    /// The mirror of a folder, as long as there is that folder.
    fn of(folder: &Path) -> Arc<Self> {
        let mut mirrors = MIRRORS.lock().unwrap();
        let new = || {
            let mirror = Arc::new(Self {
                folder: folder.to_owned(),
                state: folder.with_extension("state"),
                server: S3Server::start().with_long_pages(),
                alike: Mutex::default(),
            });
            let kept = Arc::clone(&mirror);
            spawn(move || {
                while kept.folder.exists() {
                    kept.pull();
                    sleep(Duration::from_millis(10));
                }
                let _ = fs::remove_dir_all(&kept.state);
                MIRRORS.lock().unwrap().remove(&kept.folder);
            });
            mirror
        };
        Arc::clone(mirrors.entry(folder.to_owned()).or_insert_with(new))
    }

    /// Options that name runs in the store.
    fn placed(&self, mut args: Vec<OsString>) -> Vec<OsString> {
        let mut alike = self.alike.lock().unwrap();
        if args.first().is_some_and(|command| command == "collect") {
            let outputs = args
                .windows(2)
                .filter(|pair| pair[0] == "-o" || pair[0] == "--output");
            let outputs = outputs.filter_map(|pair| pair[1].to_str());
            let local = outputs.filter(|place| !place.starts_with('/') && !place.contains("://"));
            alike.runs.extend(local.map(str::to_owned));
        }
        for arg in &mut args {
            if let Some(run) = arg.to_str().filter(|arg| alike.runs.contains(*arg)) {
                *arg = format!("{PREFIX}{run}").into();
            }
        }
        args
    }

    /// Takes to the folder what has changed in the store.
    fn pull(&self) {
        let mut alike = self.alike.lock().unwrap();
        if !self.folder.exists() {
            return;
        }
        let changes = self.server.changes_since(alike.changes);
        alike.changes += changes.len();
        for change in changes {
            match change {
                Change::Put(name, content) => {
                    let (path, new) = (self.folder.join(&name), self.state.join("new"));
                    let _ = fs::create_dir_all(path.parent().unwrap());
                    let _ = fs::create_dir_all(&self.state);
                    // The folder may be gone by now.
                    let _ = fs::write(&new, &content).and_then(|()| fs::rename(new, path));
                    alike.files.insert(name, content);
                }
                Change::Deleted(name) => {
                    let path = self.folder.join(&name);
                    let _ = fs::remove_file(&path);
                    let above = path
                        .ancestors()
                        .skip(1)
                        .take_while(|path| *path != self.folder);
                    // Those that hold something stay.
                    above.for_each(|path| drop(fs::remove_dir(path)));
                    alike.files.remove(&name);
                }
            }
        }
    }

    /// Takes to the store what the test has changed in the folder.
    fn push(&self) {
        self.pull();
        let mut alike = self.alike.lock().unwrap();
        let mut found = BTreeMap::new();
        alike.runs.iter().for_each(|run| self.read(run, &mut found));
        for name in alike.files.keys().filter(|name| !found.contains_key(*name)) {
            self.server.delete(name);
        }
        for (name, content) in found
            .iter()
            .filter(|(name, content)| alike.files.get(*name) != Some(*content))
        {
            self.server.put(name, content.clone());
        }
        alike.files = found;
        alike.changes = self.server.history().len();
    }

    fn read(&self, name: &str, found: &mut BTreeMap<String, Bytes>) {
        let path = self.folder.join(name);
        let Ok(entries) = fs::read_dir(&path) else {
            if let Ok(content) = fs::read(path) {
                found.insert(name.to_owned(), content.into());
            }
            return;
        };
        for entry in entries.flatten() {
            self.read(
                &format!("{name}/{}", entry.file_name().to_str().unwrap()),
                found,
            );
        }
    }
}
