//! What a run is and does, wherever it is kept.

use std::time::{Duration, Instant};

use rollstream::Sweep;
use rollstream::config::Settings;
use rollstream::sim::{Latency, SimConfig};
use serde_json::json;

use super::place::Place;
use super::reader;
use crate::common::{Simulated, instant, quick_and_slow, sums};

/// Far longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(120);

macro_rules! wherever_a_run_is_kept {
    ($($test:ident),* $(,)?) => {
        mod on_a_disk {
            $(#[test] fn $test() { super::$test(super::Place::disk()); })*
        }
        mod on_s3 {
            $(#[test] fn $test() { super::$test(super::Place::s3()); })*
        }
        mod on_google {
            $(#[test] fn $test() { super::$test(super::Place::google()); })*
        }
    };
}

wherever_a_run_is_kept!(
    a_sweep_is_there_whole_and_once,
    a_profile_is_put_beside_the_run_or_elsewhere,
    a_sweep_that_was_stopped_goes_on,
    a_run_is_neither_continued_nor_replaced_unasked,
    overwriting_replaces_the_run_and_nothing_else,
);

pub fn a_sweep_is_there_whole_and_once(place: Place) {
    let place = place.with_tasks(sums(20));
    let sim = Simulated::start(SimConfig {
        body_size: 20_000,
        latency: Latency::Fixed(Duration::from_millis(20)),
        ..instant(["sim"])
    });
    // More than one part, so that a listing has more than one page.
    let program = place.collect("--num-repeats 3 --part-size 20KB --concurrency 4");
    let ended = program.args(&sim.options()).run().succeeded();
    assert!(ended.stdout.contains("60 of 60 rollouts done"), "{ended:?}");

    let objects = place.objects();
    let parts = objects.keys().filter(|name| name.starts_with("rollouts/"));
    assert!(parts.count() > 1, "{:?}", objects.keys());
    assert!(
        objects.contains_key("aggregate_metrics.json")
            && objects.keys().any(|name| name.starts_with("metrics/")),
        "{:?}",
        objects.keys()
    );
    assert_eq!(reader::keys(&objects, "rollouts"), reader::all(20, 3));
    assert_eq!(reader::keys(&objects, "attempts"), reader::all(20, 3));
    for ((task, _), answer) in reader::answers(&objects) {
        let question = format!("What is {} + {}?", task + 1, task + 2);
        assert!(
            answer.len() >= 20_000 && answer.contains(&question),
            "{answer}"
        );
    }
    let record = place.record();
    assert_eq!(record["state"], "finished");
    assert_eq!(
        record["rollouts"],
        json!({"planned": 60, "done": 60, "failed": 0, "pending": 0})
    );
    assert_eq!(sim.requests(), 60);

    let query =
        "select count(*), count(distinct task_index), sum(length(result)) >= 1200000 from rollouts";
    assert_eq!(place.sql(query), ["60,20,true"]);
    assert_eq!(place.sql("select count(*) from tasks"), ["20"]);
}

pub fn a_profile_is_put_beside_the_run_or_elsewhere(place: Place) {
    let place = place.with_tasks(sums(6));
    let sim = Simulated::start(instant(["sim"]));
    let program = place.collect("--num-repeats 2 -q");
    program.args(&sim.options()).run().succeeded();
    let run = place.run();
    let profile = |options: &str| {
        let program = place.rollstream(&format!("profile {run} -q {options}"));
        program.run().succeeded();
    };
    profile("");
    profile("-o here");
    let objects = place.objects();
    let lines = String::from_utf8(objects["reward_profiling.jsonl"].to_vec()).unwrap();
    assert_eq!(lines.lines().count(), 6);
    for name in ["reward_profiling.jsonl", "agent_metrics.json"] {
        let here = place.folder.read(&format!("here/{name}"));
        assert!(objects[name] == here, "{name}");
    }
    let program = place.rollstream(&format!("aggregate {run} -q --agent-metrics"));
    program.args(&sim.options()).run().succeeded();
    let after = place.objects();
    let text = String::from_utf8_lossy(&after["aggregate_metrics.json"]).into_owned();
    assert!(text.contains("\"sim/answers\":12"), "{text}");
}

/// The counts of a run that is being collected, until there are so many rollouts.
fn until_there_are(rollouts: &str, place: &Place) {
    let deadline = Instant::now() + PATIENCE;
    // There is no run to ask before the program has made it.
    let count = || {
        let program = place.rollstream("sql --format csv").args(&place.run());
        let ended = program.arg("-c").arg("select count(*) from rollouts").run();
        ended.stdout.lines().nth(1).map(str::to_owned)
    };
    while count().as_deref() != Some(rollouts) {
        assert!(
            Instant::now() < deadline,
            "{rollouts} rollouts never show up"
        );
    }
}

pub fn a_sweep_that_was_stopped_goes_on(place: Place) {
    let quick = sums(6).into_iter().map(|task| task.for_agent("quick"));
    let slow = sums(4).into_iter().map(|task| task.for_agent("slow"));
    let place = place.with_tasks(quick.chain(slow));
    let sim = Simulated::start(quick_and_slow());
    let collect = format!(
        "collect -i tasks.jsonl --num-repeats 2 --concurrency 100 -o {}",
        place.run()
    );
    let running = place.rollstream(&collect).args(&sim.options()).start();
    until_there_are("12", &place);
    assert_eq!(place.record()["state"], "running");
    running.signal("INT");
    running.until_it_says("stopping");
    running.signal("INT");
    let ended = running.end().exited_with(130);
    assert!(
        ended
            .stdout
            .contains("12 of 20 rollouts done, 0 failed, 8 pending"),
        "{ended:?}"
    );
    assert_eq!(
        reader::keys(&place.objects(), "rollouts"),
        reader::all(6, 2)
    );
    assert_eq!(place.record()["state"], "interrupted");

    let again = Simulated::start(instant(["quick", "slow"]));
    let program = place.rollstream(&collect).args(&again.options());
    let ended = program.args("--resume").run().succeeded();
    assert!(ended.stdout.contains("20 of 20 rollouts done"), "{ended:?}");
    assert_eq!(again.requests(), 8);
    assert_eq!(
        reader::keys(&place.objects(), "rollouts"),
        reader::all(10, 2)
    );
    assert_eq!(place.record()["state"], "finished");
}

pub fn a_run_is_neither_continued_nor_replaced_unasked(place: Place) {
    let place = place.with_tasks(sums(3));
    place.collect("-q").run().succeeded();
    let before = place.objects();
    let sim = Simulated::start(instant(["sim"]));
    let ended = place.collect("").args(&sim.options()).run().exited_with(2);
    ended.complaining(&[
        &format!("there is a run at {}", place.run()),
        "already (finished)",
        "--resume",
        "--overwrite",
    ]);
    assert!(place.objects() == before);

    let ended = place
        .collect("--resume")
        .args(&sim.options())
        .run()
        .succeeded();
    assert!(ended.stdout.contains("3 of 3 rollouts done"), "{ended:?}");
    assert_eq!(sim.requests(), 0);
    assert_eq!(
        reader::keys(&place.objects(), "rollouts"),
        reader::all(3, 1)
    );
}

pub fn overwriting_replaces_the_run_and_nothing_else(place: Place) {
    let place = place.with_tasks(sums(5));
    place.collect("-q").run().succeeded();
    let before = place.objects();
    place.folder.tasks("tasks.jsonl", sums(2));
    let sim = Simulated::start(instant(["sim"]));
    let program = place.collect("--num-repeats 4 --overwrite");
    program.args(&sim.options()).run().succeeded();
    assert_eq!(sim.requests(), 8);
    let after = place.objects();
    for table in ["rollouts", "attempts"] {
        assert_eq!(reader::keys(&after, table), reader::all(2, 4));
    }
    assert_eq!(place.sql("select count(*) from tasks"), ["2"]);
    let left: Vec<&String> = before
        .keys()
        .filter(|name| name.starts_with("rollouts/") && after.contains_key(*name))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

// Every address `memory://` is a store of its own, so what it holds is only seen through the sweep itself: the metrics
// are computed over what was read back from it.
#[test]
fn a_sweep_in_memory_is_measured_from_what_it_landed() {
    let place = Place::disk().with_tasks(sums(20));
    let sim = Simulated::start(instant(["sim"]));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = sim.options();
    let settings = Settings {
        input: vec![place.folder.path("tasks.jsonl").display().to_string()],
        output: Some("memory:///a/run".into()),
        agent: Some("sim".into()),
        num_repeats: "3".parse().unwrap(),
        head_server: Some(options.split(' ').next_back().unwrap().parse().unwrap()),
        state_dir: Some(place.folder.path("state")),
        ..Settings::default()
    };
    let report = runtime
        .block_on(async { Sweep::prepare(settings).await?.collect().await })
        .unwrap();
    assert_eq!((report.rollouts.done, sim.requests()), (60, 60));
    let reward = report
        .metrics
        .iter()
        .find(|metric| metric.metric == "reward");
    assert_eq!(reward.unwrap().count, 60);
    assert!(
        report
            .written
            .iter()
            .any(|path| path.starts_with("memory:///a/run/rollouts/"))
    );
}
