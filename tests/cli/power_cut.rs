//! What a power cut could do: each file of a run is on the disk before it has its name, and its name before anything
//! rests on it.

use std::path::Path;
use std::process::Command;

use crate::common::{Folder, Simulated, instant, sums};

/// A call that the system was asked for, with the paths in it.
#[derive(Debug)]
enum Call {
    Synced(String),
    Named { from: String, to: String },
}

/// The calls of a sweep in order; none where this process may not watch another.
fn calls(folder: &Folder, options: &str) -> Option<Vec<Call>> {
    let trace = folder.path("trace");
    let watched = "trace=fsync,rename,renameat,renameat2,link,linkat";
    let mut strace = Command::new("strace");
    strace.args(["-f", "-y", "-e", watched, "-s", "4096", "-o"]);
    strace.arg(&trace).arg(env!("CARGO_BIN_EXE_rollstream"));
    strace.args(options.split_whitespace());
    strace.current_dir(folder.path("")).env_clear();
    strace
        .env("HOME", folder.path(""))
        .env("TMPDIR", folder.path("tmp"));
    if !strace.output().is_ok_and(|ended| ended.status.success()) {
        return None;
    }
    let text = folder.read("trace");
    let call = |line: &str| {
        if let Some((_, rest)) = line.split_once(" fsync(") {
            let path = rest.split_once('<')?.1.split_once('>')?.0;
            return Some(Call::Synced(path.to_owned()));
        }
        let is_naming = [" rename", " link"].iter().any(|name| line.contains(name));
        let mut quoted = line.split('"').skip(1).step_by(2);
        let (from, to) = (quoted.next()?, quoted.next()?);
        let done = !line.contains("= -1");
        (is_naming && done).then(|| Call::Named {
            from: from.to_owned(),
            to: to.to_owned(),
        })
    };
    Some(text.lines().filter_map(call).collect())
}

#[test]
fn a_file_is_synced_before_it_has_its_name_and_its_directory_after() {
    let folder = Folder::with_tasks(sums(6));
    let sim = Simulated::start(instant(["sim"]));
    let options = format!(
        "collect -q -i tasks.jsonl --agent sim -o run {}",
        sim.options()
    );
    let Some(calls) = calls(&folder, &options) else {
        eprintln!("skipped: there is no strace, or it may not watch");
        return;
    };
    let run = folder.path("run").canonicalize().unwrap();
    let mut named = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let Call::Named { from, to } = call else {
            continue;
        };
        let name = Path::new(to).strip_prefix(&run);
        // A lock is worth nothing after a power cut.
        let Some(name) = name.ok().filter(|name| !name.starts_with("lock")) else {
            continue;
        };
        let directory = Path::new(to).parent().unwrap().to_str().unwrap();
        let is_synced = |calls: &[Call], wanted: &str| {
            let is_wanted = |call: &Call| matches!(call, Call::Synced(path) if path == wanted);
            calls.iter().any(is_wanted)
        };
        assert!(
            is_synced(&calls[..index], from),
            "{to} was named first: {calls:#?}"
        );
        assert!(
            is_synced(&calls[index..], directory),
            "{directory} was not synced: {calls:#?}"
        );
        named.push(name.to_str().unwrap().to_owned());
    }
    for file in [
        "run.json",
        "tasks/",
        "rollouts/",
        "attempts/",
        "metrics/",
        "aggregate_metrics.json",
    ] {
        assert!(
            named.iter().any(|name| name.starts_with(file)),
            "{file}: {named:?}"
        );
    }
    // What a part rests on is there before it.
    let first = |file: &str| named.iter().position(|name| name.starts_with(file));
    assert!(first("run.json") < first("tasks/") && first("tasks/") < first("rollouts/"));
    assert!(first("rollouts/") < first("attempts/"));
}
