//! A limit of open files below the calls that are to be in flight.

use std::process::Command;

use crate::common::{Folder, Simulated, instant, sums};

#[test]
fn with_few_open_files_fewer_calls_are_made_at_a_time_and_it_is_said() {
    let folder = Folder::with_tasks(sums(50));
    let agents = Simulated::start(instant(["sim"]));
    let collect = format!(
        "ulimit -n 300 && exec {} collect -i tasks.jsonl -o run --agent sim --num-repeats 20 --concurrency 800 {}",
        env!("CARGO_BIN_EXE_rollstream"),
        agents.options(),
    );
    let mut shell = Command::new("sh");
    let shell = shell.arg("-c").arg(collect);
    // Of the tests, or of who runs them.
    let others = std::env::vars_os().map(|(name, _)| name);
    for name in others.filter(|name| name.to_string_lossy().starts_with("ROLLSTREAM_")) {
        shell.env_remove(name);
    }
    let ended = shell.current_dir(folder.path("")).output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{stderr}");
    assert!(
        stderr.contains("300 open files, which is enough for 44 calls in flight, and not for 800"),
        "{stderr}"
    );
    let attempts = "SELECT outcome, count(*) FROM attempts GROUP BY outcome";
    assert_eq!(folder.sql("run", attempts), ["ok,1000"]);
}
