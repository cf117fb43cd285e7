//! W&B and MLflow get of a sweep what NeMo Gym's exporters give them, and cost it nothing where they fail.
//!
//! `tests/trackers/gym_series.json` is what NeMo Gym logged for the same rollouts; `record.py` beside it made it.

mod mlflow;
mod server;
mod wandb;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use rollstream::gym::GymChoice;
use rollstream::sim::SimConfig;
use serde_json::{Value, json};

use self::server::{Mood, Server};
use crate::common::{Ended, Folder, Program, Simulated, instant, sums};
use crate::s3_server::{ACCESS_KEY, S3Server, SECRET_KEY};

const TOKEN: &str = "token-Very-Secret-1234567890";

/// Each metric with its steps and values.
type Series = BTreeMap<String, Vec<(u64, f64)>>;

/// A virtual environment with `tests/trackers/requirements.txt`.
fn environment() -> PathBuf {
    let of_ci = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../../python");
    let found = env::var_os("ROLLSTREAM_TEST_PYTHON").map_or(of_ci, PathBuf::from);
    assert!(
        found.join("bin/python").exists(),
        "there is no virtual environment at {}: make it (python3 -m venv DIR && DIR/bin/pip install -r \
         tests/trackers/requirements.txt), or name another in the variable ROLLSTREAM_TEST_PYTHON",
        found.display()
    );
    found.canonicalize().unwrap()
}

/// The tasks that are masked, where some are.
const MASKED: [usize; 3] = [4, 12, 13];

/// The rollouts for which NeMo Gym's series were recorded.
struct Scene {
    folder: Folder,
    agents: Simulated,
    /// The name of the recording.
    name: &'static str,
    options: &'static str,
}

impl Scene {
    fn new() -> Self {
        Self::with("healthy", &[], "", "")
    }

    /// With masked samples, and rollouts that fail. `record.py` has the same.
    fn lossy() -> Self {
        let faults = "2:1=failure_class 6=failure_terminal 9:0=error_500 15:2=no_persist";
        let once = "--max-attempts 1 --infra-budget 1 --data-budget 1";
        Self::with("lossy", &MASKED, faults, once)
    }

    /// With masked samples, and servers that are not asked for their choice of key metrics.
    fn without_own_metrics() -> Self {
        Self::with("own choice", &MASKED, "", "--no-agent-metrics")
    }

    fn with(name: &'static str, masked: &[usize], faults: &str, options: &'static str) -> Self {
        let faults = faults.split_whitespace();
        let config = SimConfig {
            gym: "0.7".parse::<GymChoice>().unwrap(),
            fault_at: faults.map(|fault| fault.parse().unwrap()).collect(),
            ..instant(["math"])
        };
        let tasks = sums(25).into_iter().enumerate().map(|(index, task)| {
            let task = task.for_agent("math");
            if masked.contains(&index) {
                task.with("mask_sample", true)
            } else {
                task
            }
        });
        Self {
            folder: Folder::with_tasks(tasks),
            agents: Simulated::start(config),
            name,
            options,
        }
    }

    fn collect(&self) -> Program {
        self.collect_to("run")
    }

    fn collect_to(&self, place: &str) -> Program {
        let line = "collect -i tasks.jsonl --num-repeats 4 --concurrency 1 --partitions 1";
        let program = self.folder.rollstream(line).args(self.options);
        program
            .arg("--output")
            .arg(place)
            .args(&self.agents.options())
    }

    /// What NeMo Gym logged.
    fn theirs(&self) -> Value {
        let text = include_str!("../../trackers/gym_series.json");
        serde_json::from_str::<Value>(text).unwrap()[self.name].take()
    }

    /// The series are those that NeMo Gym gave to MLflow.
    #[track_caller]
    fn are_those_of_gym(&self, mut series: Series) {
        let mut theirs: BTreeMap<String, Vec<(u64, Option<f64>)>> =
            serde_json::from_value(self.theirs()["mlflow"].take()).unwrap();
        // The rate differs from run to run.
        let rate = "progress/total/rollouts_per_min";
        let (ours, expected) = (series.remove(rate).unwrap(), theirs.remove(rate).unwrap());
        assert!(ours.iter().all(|(_, rate)| *rate > 0.0));
        let steps = |(step, _): &(u64, f64)| *step;
        let expected: Vec<u64> = expected.iter().map(|(step, _)| *step).collect();
        assert_eq!(ours.iter().map(steps).collect::<Vec<_>>(), expected);
        let values = |(step, value): (u64, Option<f64>)| (step, value.unwrap());
        let theirs = theirs
            .into_iter()
            .map(|(key, points)| (key, points.into_iter().map(values).collect()));
        are_the_same(&series, &theirs.collect());
    }

    /// A file of the run that notes what a tracker has.
    fn noted(&self, tracker: &str) -> Value {
        self.folder.json(&format!("run/tracker_{tracker}.json"))
    }

    /// No file has the token.
    fn keeps_no_token(&self) {
        assert_eq!(self.folder.holding(TOKEN), [""; 0]);
    }
}

fn to_mlflow(program: Program, url: &str) -> Program {
    let keys = "+mlflow_experiment_name=e +mlflow_run_name=r";
    program.args(&format!("{keys} +mlflow_tracking_uri={url}"))
}

/// The same names and steps, and values that differ by rounding at most.
#[track_caller]
fn are_the_same(ours: &Series, theirs: &Series) {
    let names = |series: &Series| series.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs));
    for (name, theirs) in theirs {
        let ours = &ours[name];
        assert_eq!(ours.len(), theirs.len(), "{name}: {ours:?} {theirs:?}");
        for (ours, theirs) in ours.iter().zip(theirs) {
            let is_close = (ours.1 - theirs.1).abs() <= 1e-12 * theirs.1.abs() + 1e-15;
            assert!(
                ours.0 == theirs.0 && is_close,
                "{name}: {ours:?} {theirs:?}"
            );
        }
    }
}

fn warnings(ended: &Ended) -> Vec<&str> {
    let lines = ended.stderr.lines();
    lines.filter(|line| line.starts_with("warning: ")).collect()
}

#[test]
fn what_is_logged_has_the_names_and_values_of_nemo_gym() {
    let (scene, server) = (Scene::new(), Server::start(Mood::Well));
    let program = to_mlflow(scene.collect(), &server.url).env("MLFLOW_TRACKING_TOKEN", TOKEN);
    let ended = program.run().succeeded();
    assert!(ended.stderr.contains("note: MLflow: http://"), "{ended:?}");
    scene.are_those_of_gym(server.series());
    let all = server.asked("");
    let bearer = format!("Bearer {TOKEN}");
    assert!(
        all.iter()
            .all(|asked| asked.authorization.as_ref() == Some(&bearer))
    );
    let table = server.asked("mlflow-artifacts/artifacts/1/r1/artifacts/rollouts.json");
    let table: Value = serde_json::from_str(&table[0].body).unwrap();
    let rows = table["data"].as_array().unwrap();
    assert_eq!((&table["columns"], rows.len()), (&json!(["Rollout"]), 100));
    let row: Value = serde_json::from_str(rows[0][0].as_str().unwrap()).unwrap();
    assert_eq!(row["agent_ref"]["name"], "math");
    let config = server.asked("global_config.json");
    let config: Value = serde_json::from_str(&config[0].body).unwrap();
    assert_eq!(
        (&config["num_repeats"], &config["mlflow_tracking_token"]),
        (&json!(4), &json!("****"))
    );
    scene.keeps_no_token();
    assert_eq!(
        scene.folder.json("run/run.json")["settings"]["mlflow_tracking_token"],
        "****"
    );
}

#[test]
fn masked_and_failed_rollouts_are_counted_as_nemo_gym_counts_them() {
    let (scene, server) = (Scene::lossy(), Server::start(Mood::Well));
    let program = scene.collect().args("+count_missing_rollouts_as_zero=true");
    to_mlflow(program, &server.url).run().exited_with(3);
    scene.are_those_of_gym(server.series());
    let table = server.asked("mlflow-artifacts/artifacts/1/r1/artifacts/rollouts.json");
    let table: Value = serde_json::from_str(&table[0].body).unwrap();
    let theirs = &scene.theirs()["table"];
    let rows = table["data"].as_array().unwrap().len() as u64;
    // All but the one that the agent asked to forget.
    assert_eq!(
        (&table["columns"], Some(rows + 1)),
        (&theirs["columns"], theirs["rows"].as_u64())
    );
}

#[test]
fn key_metrics_are_those_that_nemo_gym_chooses() {
    let (scene, server) = (Scene::without_own_metrics(), Server::start(Mood::Well));
    to_mlflow(scene.collect(), &server.url).run().succeeded();
    let series = server.series();
    assert!(series.contains_key("key_metrics/math/mean/turns"));
    scene.are_those_of_gym(series);
}

#[test]
fn a_run_that_goes_on_goes_on_at_the_tracker() {
    let (scene, server) = (Scene::new(), Server::start(Mood::Well));
    let first = to_mlflow(scene.collect(), &server.url).args("--limit 10 +upload_rollouts=false");
    first.run().succeeded();
    assert!(server.asked("rollouts.json").is_empty());
    let more = to_mlflow(scene.collect(), &server.url).args("--resume --extend");
    more.env("MLFLOW_TRACKING_TOKEN", TOKEN).run().succeeded();
    assert_eq!(server.asked("runs/create").len(), 1);
    assert_eq!(server.asked("rollouts.json").len(), 1);
    let steps: Vec<u64> = server.series()["progress/math/reward"]
        .iter()
        .map(|(step, _)| *step)
        .collect();
    let again: Vec<u64> = steps[steps.len() - 60..].to_vec();
    assert_eq!(again, (41..=100).collect::<Vec<_>>());
    // All of it is there, so nothing is sent.
    let before = server.asked("runs/log-batch").len();
    let resumed = scene.folder.rollstream("resume run").args("-q");
    resumed
        .env("MLFLOW_TRACKING_TOKEN", TOKEN)
        .run()
        .succeeded();
    assert_eq!(server.asked("runs/log-batch").len(), before);
    assert!(server.asked("").last().unwrap().authorization.is_some());
}

#[test]
fn a_tracker_that_fails_costs_the_sweep_nothing_and_gets_the_rest_later() {
    let plain = Scene::new();
    let expected = plain.collect().run().succeeded();
    let table = |ended: &Ended| {
        ended
            .stdout
            .split_once('\n')
            .map(|(_, rest)| rest.to_owned())
    };
    for mood in [
        Mood::Answers(500),
        Mood::Answers(429),
        Mood::Answers(401),
        Mood::Hangs,
    ] {
        let (scene, server) = (Scene::new(), Server::start(mood));
        let program = to_mlflow(scene.collect(), &server.url).env("MLFLOW_TRACKING_TOKEN", TOKEN);
        let ended = program.run().succeeded();
        assert_eq!(table(&ended), table(&expected), "{mood:?}");
        let said = warnings(&ended);
        assert!(
            said.len() == 1 && said[0].starts_with("warning: MLflow "),
            "{said:?}"
        );
        assert!(!ended.stderr.contains(TOKEN), "{ended:?}");
        assert!(ended.stderr.contains("rollstream export run"), "{ended:?}");
        scene.keeps_no_token();
        server.set(Mood::Well);
        let export = scene.folder.rollstream("export run");
        export.env("MLFLOW_TRACKING_TOKEN", TOKEN).run().succeeded();
        scene.are_those_of_gym(server.series());
        assert_eq!(scene.noted("mlflow").get("waiting"), None);
    }
}

#[test]
fn a_run_in_an_object_store_is_logged_as_any_other() {
    let (scene, server) = (Scene::new(), Server::start(Mood::Answers(500)));
    let store = S3Server::start();
    let endpoint = format!("http://{}", store.address());
    let at_store = |program: Program| {
        let program = program.env("AWS_ENDPOINT", &endpoint);
        let program = program.env("AWS_ALLOW_HTTP", "true");
        let program = program.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        program.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    };
    let collect = scene.collect_to("s3://sweeps/run");
    let ended = at_store(to_mlflow(collect, &server.url)).run().succeeded();
    assert_eq!(warnings(&ended).len(), 1, "{ended:?}");
    server.set(Mood::Well);
    let export = scene.folder.rollstream("export s3://sweeps/run");
    at_store(export).run().succeeded();
    scene.are_those_of_gym(server.series());
    assert_eq!(server.asked("rollouts.json").len(), 1);
}

#[test]
fn nobody_listens() {
    let scene = Scene::new();
    let ended = to_mlflow(scene.collect(), "http://127.0.0.1:1")
        .run()
        .succeeded();
    assert_eq!(warnings(&ended).len(), 1, "{ended:?}");
    let failed = scene.folder.rollstream("export run").run();
    failed
        .exited_with(1)
        .complaining(&["MLflow", "127.0.0.1:1"]);
}

#[test]
fn a_tracker_that_is_named_in_part_is_refused() {
    let scene = Scene::new();
    for (keys, expected) in [
        ("+wandb_project=p", "wandb_name"),
        ("+mlflow_run_name=r", "mlflow_experiment_name"),
        (
            "+mlflow_run_name=r +mlflow_experiment_name=e",
            "mlflow_tracking_uri",
        ),
    ] {
        let ended = scene.collect().args(keys).run().exited_with(2);
        assert!(ended.stderr.contains(expected), "{ended:?}");
        assert!(!scene.folder.has("run"));
    }
    scene.collect().run().succeeded();
    let nowhere = scene.folder.rollstream("export run").run();
    nowhere
        .exited_with(2)
        .complaining(&["--output FILE", "+wandb_project"]);
}
