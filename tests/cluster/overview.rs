//! What people see of a sweep on a cluster while it runs: all of it, and what each executor does.

use std::collections::BTreeMap;
use std::time::Duration;

use rollstream::sim::{Latency, SimConfig};
use serde_json::Value;

use super::machines::Machines;
use super::sweeps::{ROLLOUTS, Scene};
use crate::common::{instant, until};
use crate::tracker_server::{Mood, Server};
use crate::viewer::{Viewer, get};

#[test]
fn others_see_the_whole_sweep_and_what_each_executor_does() {
    let machines = Machines::new(Scene::new(SimConfig {
        fault_at: vec!["20=hang".parse().unwrap()],
        ..instant(["sim"])
    }));
    let _executors = ["first", "second"].map(|name| machines.executor(name).start());
    let driver = machines.collect("--live 500ms").start();
    // The executor that has the task waits, and the other does all else.
    let status = || -> Value {
        let ended = machines.look("status --json").run();
        serde_json::from_str(&ended.stdout).unwrap_or_default()
    };
    let sum = |status: &Value, key: &str| -> u64 {
        let executors = status["executors"].as_array().into_iter().flatten();
        executors.map(|of| of[key].as_u64().unwrap()).sum()
    };
    until("nobody waits alone", || {
        let seen = status();
        let done = seen["total"]["done"].as_u64().unwrap_or_default();
        let one = ["shards", "in_flight"].map(|key| sum(&seen, key)) == [1, 1];
        // The tables and the executors say the same.
        one && 10 * done > 8 * ROLLOUTS && sum(&seen, "done") == done && seen["state"] == "running"
    });
    let people = machines.look("status").run().succeeded().stdout;
    assert!(people.contains("executor first: "), "{people}");
    let page = machines.look("report --output page.html").run();
    page.succeeded();
    let page = machines.scene.folder.read("page.html");
    assert!(page.contains("executor second: "));

    driver.until_it_says("sim reward ");
    let said = driver.until_it_says(" | executor first: ");
    assert!(said.contains(" | executor second: "), "{said}");
    driver.signal("INT");
    driver.until_it_says("stopping: waits for 1 call");
    driver.signal("INT");
    driver.end().exited_with(130);
}

#[test]
fn the_page_of_a_run_says_what_the_executors_of_this_machine_do_while_it_runs() {
    let scene = Scene::new(SimConfig {
        latency: Latency::Fixed(Duration::from_secs(3600)),
        ..instant(["sim"])
    });
    let driver = scene
        .collect("run", "--cluster local:2 --concurrency 4")
        .start();
    until("an executor is idle", || {
        scene.agents.counts("sim").in_flight == 4
    });
    let viewer = Viewer::start(&scene.folder, "run");
    let page = || String::from_utf8(get(&viewer.at(""))).unwrap();
    let says = |number| format!("executor local-{number}: 1 shard, 2 in flight, 0 done");
    until("an executor is not on the page", || {
        let page = page();
        [1, 2].iter().all(|number| page.contains(&says(number)))
    });
    driver.signal("INT");
    driver.until_it_says("waits for 4 calls");
    driver.signal("INT");
    driver.end().exited_with(130);
    let page = page();
    assert!(page.contains("interrupted"), "{page}");
    assert!(!page.contains("executor local-"), "{page}");
}

#[test]
fn trackers_get_the_series_of_all_executors_together() {
    let scene = Scene::new(SimConfig {
        fault_at: vec!["2:1=failure_terminal".parse().unwrap()],
        ..instant(["sim"])
    });
    let last = |run: &str, options: &str| -> BTreeMap<String, (u64, f64)> {
        let server = Server::start(Mood::Well);
        let keys = "+mlflow_experiment_name=e +mlflow_run_name=r +mlflow_tracking_uri=";
        let program = scene.collect(run, options).args("--data-budget 1");
        let program = program.args(&format!("{keys}{}", server.url));
        program.run().exited_with(3);
        let series = server.series().into_iter();
        let series = series.filter(|(name, _)| !name.ends_with("rollouts_per_min"));
        series
            .map(|(name, points)| (name, *points.last().unwrap()))
            .collect()
    };
    let (alone, together) = (last("alone", ""), last("together", "--cluster local:2"));
    assert!(alone.contains_key("progress/sim/failed"), "{alone:?}");
    assert_eq!(alone, together);
}
