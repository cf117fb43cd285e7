//! Where a run may be: in any directory that the system can name, read back whole, with nothing beside its parts.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};

use crate::common::{Folder, Program, Simulated, instant, quick_and_slow, sums, task};

const TASKS: u64 = 8;
const REPEATS: u64 = 3;
const ALL: u64 = TASKS * REPEATS;

fn collect(folder: &Folder, run: &str, sim: &Simulated) -> Program {
    let program = folder.rollstream("collect -q -i tasks.jsonl --agent sim --num-repeats 3");
    program.args(&sim.options()).arg("-o").arg(run)
}

/// Keys of a run's rollouts as anybody finds them who knows nothing of us.
fn keys(folder: &Folder, run: &str) -> Vec<(i64, i64)> {
    let key = |row: &serde_json::Value| {
        let number = |name: &str| row[name].as_i64().unwrap();
        (number("task_index"), number("rollout_index"))
    };
    folder.landed(run).iter().map(key).collect()
}

fn all() -> Vec<(i64, i64)> {
    let task = |task| (0..REPEATS as i64).map(move |rollout| (task, rollout));
    (0..TASKS as i64).flat_map(task).collect()
}

/// Collects, reads back with every reader of ours, and resumes.
#[track_caller]
fn reads_back_whole(folder: &Folder, run: &str) {
    let sim = Simulated::start(instant(["sim"]));
    collect(folder, run, &sim).run().succeeded();
    assert_eq!(keys(folder, run), all(), "{run}");
    let status = folder.rollstream("status --json").arg(run).run();
    let status: serde_json::Value = serde_json::from_str(&status.succeeded().stdout).unwrap();
    assert!(
        status.to_string().contains(&format!("\"done\":{ALL}")),
        "{run}: {status}"
    );
    let sql = folder.rollstream("sql --format csv").arg(run).arg("-c");
    let counted = sql
        .arg("select count(*), count(distinct agent_name) from rollouts")
        .run();
    let counted = counted.succeeded().stdout;
    assert_eq!(
        counted.lines().nth(1),
        Some(format!("{ALL},1").as_str()),
        "{run}"
    );
    collect(folder, run, &sim).arg("--resume").run().succeeded();
    assert_eq!(sim.requests(), ALL, "{run}: some were asked again");
}

#[test]
fn a_run_may_be_called_anything() {
    let folder = Folder::with_tasks(sums(TASKS));
    for run in [
        "runs/job#7",
        "what?",
        "a%41b",
        "a\\b",
        "with spaces in/it",
        "zwölf/日本",
        "par#ent?/%2e%2e/x[1]*",
        "a:b",
        "x#12",
    ] {
        reads_back_whole(&folder, run);
    }
}

#[test]
fn a_run_may_be_above_the_working_directory() {
    let folder = Folder::with_tasks(sums(TASKS));
    fs::create_dir(folder.path("here")).unwrap();
    let sim = Simulated::start(instant(["sim"]));
    let tmp = folder.path("tmp").display().to_string();
    let here = |line: &str| {
        let program = Program::new(&folder.path("here")).args(line);
        program.env("TMPDIR", &tmp)
    };
    let collect = "collect -q -i ../tasks.jsonl --agent sim --num-repeats 3 -o ../runs/x";
    here(collect).args(&sim.options()).run().succeeded();
    assert_eq!(keys(&folder, "runs/x"), all());
    let ended = here("status ../runs/x").run().succeeded();
    assert!(ended.stdout.contains("../runs/x"), "{ended:?}");
    let ended = here("sql --format csv ../runs/x -c")
        .arg("select count(*) from rollouts")
        .run();
    assert!(ended.succeeded().stdout.contains(&ALL.to_string()));
    assert!(!folder.has("here/runs"));
}

#[test]
fn a_killed_run_of_any_name_goes_on_without_asking_again() {
    let folder = Folder::with_tasks(sums(TASKS));
    let sim = Simulated::start(SimConfig {
        latency: Latency::Fixed(Duration::from_millis(20)),
        ..instant(["sim"])
    });
    let mut running = collect(&folder, "runs/job#7?", &sim)
        .args("--concurrency 2")
        .start();
    while sim.requests() < 6 {
        assert!(running.is_running());
        std::thread::yield_now();
    }
    running.signal("KILL");
    running.end();
    collect(&folder, "runs/job#7?", &sim)
        .arg("--resume")
        .run()
        .succeeded();
    assert_eq!(keys(&folder, "runs/job#7?"), all());
    // Of those two were in flight, and two had been answered but were not in the journal yet.
    assert!(sim.requests() <= ALL + 4, "{}", sim.requests());
}

/// Every entry below a directory that is hidden or whose name a writer of ours would not give in the end.
fn leftovers(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || name.contains('#') {
            found.push(path.display().to_string());
        }
        if path.is_dir() {
            found.extend(leftovers(&path));
        }
    }
    found
}

#[test]
fn beside_parts_lies_nothing_else_whenever_a_writer_is_killed() {
    let folder = Folder::with_tasks(sums(TASKS));
    // Large enough that a part takes a while to be written.
    let sim = Simulated::start(SimConfig {
        body_size: 300_000,
        latency: Latency::Fixed(Duration::from_millis(5)),
        ..instant(["sim"])
    });
    let options = "--part-size 600KB --concurrency 4";
    let mut resume = "";
    for kill in 1..=6 {
        let mut running = collect(&folder, "run", &sim)
            .args(options)
            .args(resume)
            .start();
        let before = sim.requests();
        while sim.requests() < before + kill && running.is_running() {
            std::thread::yield_now();
        }
        running.signal("KILL");
        running.end();
        for table in ["tasks", "rollouts", "attempts"] {
            let files = fs::read_dir(folder.path("run").join(table));
            for file in files.into_iter().flatten() {
                let name = file.unwrap().file_name().into_string().unwrap();
                assert!(name.ends_with(".parquet"), "{table}/{name}");
            }
        }
        resume = if folder.has("run/run.json") {
            "--resume"
        } else {
            ""
        };
    }
    // As one that is killed while it writes leaves it, whatever the system made of the kills before.
    fs::create_dir_all(folder.path("run/.rollstream-staging")).unwrap();
    folder.write("run/.rollstream-staging/0123456789abcdef", "half a part");
    collect(&folder, "run", &sim)
        .args(options)
        .args(resume)
        .run()
        .succeeded();
    assert_eq!(keys(&folder, "run"), all());
    assert_eq!(leftovers(&folder.path("run")), [""; 0]);
}

#[test]
fn what_a_killed_process_left_in_the_temporary_directory_is_removed_by_the_next() {
    // A task that nobody answers, and one that is large enough that its spool is a file of some size.
    let large = task(&"x".repeat(1_000_000)).for_agent("slow");
    let folder = Folder::with_tasks([large]);
    let sim = Simulated::start(quick_and_slow());
    let collect = |run: &str| {
        let program = folder.rollstream("collect -q -i tasks.jsonl --grace 1ms -o");
        program.arg(run).args(&sim.options())
    };
    let spools = || fs::read_dir(folder.path("tmp")).unwrap().count();
    let mut living = collect("living").start();
    let mut killed = collect("killed").start();
    while sim.requests() < 2 {
        assert!(living.is_running() && killed.is_running());
        std::thread::yield_now();
    }
    assert_eq!(spools(), 2);
    killed.signal("KILL");
    killed.end();
    assert_eq!(spools(), 2, "nobody is left to remove it");
    let mut next = collect("next").start();
    while sim.requests() < 3 {
        assert!(next.is_running());
        std::thread::yield_now();
    }
    assert_eq!(
        spools(),
        2,
        "the spool of the dead is still there, or that of the living has gone"
    );
    for running in [next, living] {
        running.signal("INT");
        running.end();
    }
    assert_eq!(spools(), 0);
}

#[test]
fn without_a_home_the_state_directory_is_of_this_user_alone() {
    let folder = Folder::with_tasks(sums(TASKS));
    let sim = Simulated::start(instant(["sim"]));
    let collect = || {
        let program = folder.rollstream("collect -q -i tasks.jsonl --agent sim -o memory:///x");
        program.args(&sim.options()).without_env("HOME")
    };
    collect().run().succeeded();
    let made: Vec<_> = fs::read_dir(folder.path("tmp")).unwrap().collect();
    let [Ok(state)] = made.as_slice() else {
        panic!("{made:?}");
    };
    let state = state.path();
    assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
    collect().run().succeeded();
    assert_eq!(sim.requests(), 2 * TASKS);

    // As somebody else could have made it before us.
    fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    let ended = collect().run();
    ended
        .exited_with(2)
        .complaining(&["other users can write to it", "--state-dir"]);
    assert_eq!(sim.requests(), 2 * TASKS);

    let own = collect().arg("--state-dir").arg(folder.path("own/state"));
    own.run().succeeded();
    for made in ["own", "own/state"] {
        let mode = fs::metadata(folder.path(made)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "{made}");
    }
}
