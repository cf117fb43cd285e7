//! W&B: its real package, and the files that are written where no Python has it, which the real `wandb sync` uploads.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::server::{Asked, Mood, Server};
use super::{Scene, Series, TOKEN, are_the_same, environment, warnings};
use crate::common::{Ended, Program, until};

/// A program of the virtual environment, run in the folder of a scene.
fn of_the_package(scene: &Scene, program: &str) -> Command {
    let mut command = Command::new(environment().join("bin").join(program));
    command
        .env_clear()
        .env("HOME", scene.folder.path(""))
        .current_dir(scene.folder.path(""));
    command
}

fn to_wandb(program: Program) -> Program {
    let program = program.args("+wandb_project=p +wandb_name=r");
    program.env("WANDB_API_KEY", TOKEN)
}

/// Runs where there is a Python with the package.
fn with_the_package(program: Program) -> Ended {
    let environment = environment();
    let program = program.env("VIRTUAL_ENV", environment.to_str().unwrap());
    program.env("WANDB_MODE", "offline").run()
}

/// What the folders of one run hold, read by W&B's own code.
struct Records(Vec<Value>);

impl Records {
    fn read(scene: &Scene, run: &str) -> Self {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/trackers/wandb_records.py"
        );
        let read = of_the_package(scene, "python").args([script, run]).output();
        let lines = String::from_utf8(succeeded(read.unwrap()).stdout).unwrap();
        let records = lines.lines().map(serde_json::from_str);
        Self(records.map(Result::unwrap).collect())
    }

    fn of(&self, kind: &str) -> Vec<&Value> {
        let found = self.0.iter().filter_map(|record| record.get(kind));
        found.collect()
    }

    /// The history after the progress.
    fn end(&self) -> Vec<&Value> {
        let is_end = |record: &&Value| record.get("progress/math/reward").is_none();
        self.of("history").into_iter().filter(is_end).collect()
    }

    fn table(&self) -> &Value {
        let mut history = self.of("history").into_iter();
        let table = history.find(|record| record.get("Rollouts._type").is_some());
        table.unwrap()
    }
}

fn succeeded(output: Output) -> Output {
    assert!(output.status.success(), "{output:?}");
    output
}

/// The series in the history of W&B. Only the progress has steps that mean something.
fn series<'a>(history: impl IntoIterator<Item = &'a Value>) -> Series {
    let mut series = Series::new();
    for record in history {
        for (key, value) in record.as_object().unwrap() {
            let is_series = !["_", "progress/total", "Rollouts"]
                .iter()
                .any(|start| key.starts_with(start));
            if is_series {
                let step = record["_step"].as_u64().unwrap();
                let step = if key.starts_with("progress") { step } else { 0 };
                let point = (step, value.as_f64().unwrap());
                series.entry(key.clone()).or_default().push(point);
            }
        }
    }
    series
}

/// Each point has it.
const RATE: &[u8] = b"progress/total/rollouts_per_min";

/// An address with the part left out that is drawn.
fn form(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap();
    let end = rest.find([':', '/']).unwrap();
    format!("{scheme}://X{}", &rest[end..])
}

/// What W&B's reader finds is what NeMo Gym logs, but for the artifact. Returns the rows of the table.
#[track_caller]
fn has_it_all(scene: &Scene, records: &Records) -> Value {
    let run = records.of("run")[0];
    assert_eq!(
        (&run["project"], &run["name"], &run["resume"]),
        (&json!("p"), &json!("r"), &json!(true))
    );
    assert_eq!(records.of("config")[0]["wandb_api_key"], "****");
    assert_eq!(records.of("config")[0]["num_repeats"], 4);
    assert_eq!(records.of("exit")[0]["exit_code"], 0);
    let theirs = scene.theirs();
    let theirs = theirs["wandb"].as_array().unwrap();
    are_the_same(&series(records.of("history")), &series(theirs));
    let table = records.table();
    let mut theirs = theirs.iter();
    let theirs = theirs.find(|record| record.get("Rollouts._type").is_some());
    for (key, value) in theirs.unwrap().as_object().unwrap() {
        if key != "_step" && !key.ends_with("artifact_path") {
            assert_eq!(table[key], *value, "{key}");
        }
    }
    let mut summary = records.of("summary").into_iter();
    assert!(summary.any(|record| record["Rollouts.path"] == table["Rollouts.path"]));
    let path = table["Rollouts.path"].as_str().unwrap();
    let names = scene.folder.content();
    let file = names.iter().find(|name| name.ends_with(path)).unwrap();
    assert_eq!(table["Rollouts.size"], scene.folder.read(file).len());
    scene.keeps_no_token();
    scene.folder.json(file)["data"].take()
}

/// The table is an artifact too, as W&B's package names and digests it, and the history says where.
#[track_caller]
fn has_artifact(scene: &Scene, records: &Records, rows: &Value) {
    let (table, theirs) = (records.table(), scene.theirs());
    let mut theirs = theirs["wandb"].as_array().unwrap().iter();
    let theirs = theirs.find(|record| record.get("Rollouts._type").is_some());
    for key in ["Rollouts.artifact_path", "Rollouts._latest_artifact_path"] {
        // The names of artifacts are drawn.
        let [ours, theirs] = [table, theirs.unwrap()].map(|record| record[key].as_str().unwrap());
        assert_eq!(form(ours), form(theirs), "{key}");
    }
    let artifact = records.of("artifact")[0];
    for (key, id) in [
        ("artifact_path", "clientId"),
        ("_latest_artifact_path", "sequenceClientId"),
    ] {
        let path = table[format!("Rollouts.{key}")].as_str().unwrap();
        assert!(path.contains(artifact[id].as_str().unwrap()), "{key}");
    }
    let id = records.of("run")[0]["id"].as_str().unwrap();
    assert_eq!(artifact["name"], format!("run-{id}-Rollouts"));
    let of_file = &artifact["manifest"]["contents"][0];
    assert_eq!(
        (&artifact["digest"], &of_file["digest"]),
        (&artifact["computed"][0], &artifact["computed"][1])
    );
    let file = fs::read_to_string(of_file["localPath"].as_str().unwrap()).unwrap();
    assert_eq!(of_file["size"], file.len().to_string());
    let file: Value = serde_json::from_str(&file).unwrap();
    let types =
        json!({"wb_type": "typedDict", "params": {"type_map": {"Rollout": {"wb_type": "string"}}}});
    for (key, expected) in [
        ("_type", &json!("table")),
        ("column_types", &types),
        ("columns", &json!(["Rollout"])),
        ("log_mode", &json!("IMMUTABLE")),
        ("ncols", &json!(1)),
        ("nrows", &json!(100)),
        ("data", rows),
    ] {
        assert_eq!(file[key], *expected, "{key}");
    }
}

#[test]
fn the_package_logs_it_all_offline() {
    let scene = Scene::new();
    let ended = with_the_package(to_wandb(scene.collect())).succeeded();
    assert_eq!(warnings(&ended), Vec::<&str>::new());
    let records = Records::read(&scene, "run");
    let rows = has_it_all(&scene, &records);
    assert_eq!(rows.as_array().unwrap().len(), 100);
    has_artifact(&scene, &records, &rows);
}

#[test]
fn without_the_package_its_files_are_written() {
    let scene = Scene::new();
    let ended = to_wandb(scene.collect()).run().succeeded();
    assert_eq!(warnings(&ended), Vec::<&str>::new());
    let said = ended.stderr.lines().find(|line| line.contains("W&B"));
    let folder = said.unwrap().rsplit(' ').next().unwrap();
    assert!(Path::new(folder).join("files").is_dir(), "{said:?}");
    let ours = Records::read(&scene, "run");
    let rows = has_it_all(&scene, &ours);
    assert_eq!(rows.as_array().unwrap().len(), 100);
    has_artifact(&scene, &ours, &rows);
    // The package, asked for the same run, has the same end, and the same table to the byte.
    fs::remove_dir_all(scene.folder.path("run/wandb")).unwrap();
    fs::remove_file(scene.folder.path("run/tracker_wandb.json")).unwrap();
    with_the_package(scene.folder.rollstream("export run")).succeeded();
    let theirs = Records::read(&scene, "run");
    assert_eq!(ours.of("config"), theirs.of("config"));
    let [of_ours, of_theirs] = [&ours, &theirs].map(|records| series(records.end()));
    are_the_same(&of_ours, &of_theirs);
    for key in ["Rollouts.sha256", "Rollouts.size", "Rollouts.nrows"] {
        assert_eq!(ours.table()[key], theirs.table()[key], "{key}");
    }
    let [of_ours, of_theirs] = [&ours, &theirs].map(|records| {
        let mut artifact = records.of("artifact")[0].clone();
        // What is drawn, and what the spaces of JSON and the place of a file change.
        for key in ["clientId", "sequenceClientId", "digest", "computed"] {
            artifact[key].take();
        }
        for key in ["digest", "size", "localPath"] {
            artifact["manifest"]["contents"][0][key].take();
        }
        artifact
    });
    assert_eq!(of_ours, of_theirs);
}

#[test]
fn what_a_killed_process_and_the_next_one_left_is_one_run_after_wandb_sync() {
    let mut scene = Scene::with("healthy", &[], "12:0=hang", "");
    let running = to_wandb(scene.collect()).start();
    // A point is in the history and in the summary.
    until("48 points never show up", || {
        let names = scene.folder.content();
        let log = names.iter().find(|name| name.ends_with(".wandb"));
        let log = log.map(|name| fs::read(scene.folder.path(name)).unwrap());
        let log = log.unwrap_or_default();
        let points = log.windows(RATE.len()).filter(|text| *text == RATE);
        points.count() == 96
    });
    running.signal("KILL");
    running.end();
    let left = Records::read(&scene, "run");
    assert_eq!((left.of("history").len(), left.of("exit").len()), (48, 0));
    scene.agents = Scene::new().agents;
    to_wandb(scene.collect().args("--resume")).run().succeeded();

    let server = Server::start(Mood::Well);
    let synced = of_the_package(&scene, "wandb")
        .args(["sync", "run/wandb"])
        .env("WANDB_BASE_URL", &server.url)
        .env("WANDB_API_KEY", "0".repeat(40))
        .env("WANDB_ERROR_REPORTING", "false")
        .output();
    succeeded(synced.unwrap());
    // The lines of the second process come after those of the first.
    let (numbers, lines): (Vec<u64>, Vec<Value>) = server.history().into_iter().unzip();
    assert!(
        numbers.iter().copied().eq(0..lines.len() as u64),
        "{numbers:?}"
    );
    let theirs = scene.theirs()["wandb"].take();
    are_the_same(&series(&lines), &series(theirs.as_array().unwrap()));
    let mut config = Value::Null;
    for query in server.queries("UpsertBucket") {
        let (run, id) = (&query["variables"], &scene.noted("wandb")["id"]);
        assert_eq!((&run["project"], &run["name"]), (&json!("p"), id));
        if let Some(text) = run["config"].as_str() {
            config = serde_json::from_str(text).unwrap();
        }
    }
    assert_eq!(config["wandb_api_key"]["value"], "****");
    let tables = server.asked(".table.json");
    let tables: Vec<Value> = tables.iter().map(Asked::json).collect();
    assert_eq!(
        tables
            .iter()
            .filter(|table| table["_type"] == "table")
            .count(),
        1
    );
    for table in &tables {
        assert_eq!(table["data"].as_array().unwrap().len(), 100);
    }
    assert_eq!(
        (tables.len(), server.queries("CommitArtifact").len()),
        (2, 1)
    );
    let last = server.asked("file_stream").pop().unwrap().json();
    assert_eq!(
        (&last["complete"], &last["exitcode"]),
        (&json!(true), &json!(0))
    );
}

#[test]
fn what_is_disabled_logs_nothing_until_an_export_does() {
    let scene = Scene::new();
    let disabled = to_wandb(scene.collect()).env("WANDB_MODE", "disabled");
    let ended = disabled.run().succeeded();
    assert!(ended.stderr.contains("W&B is disabled"), "{ended:?}");
    assert!(!scene.folder.has("run/wandb") && !scene.folder.has("run/tracker_wandb.json"));
    let export = || scene.folder.rollstream("export run");
    export().env("WANDB_MODE", "disabled").run().succeeded();
    assert!(!scene.folder.has("run/wandb"));
    export().env("WANDB_API_KEY", TOKEN).run().succeeded();
    let rows = Records::read(&scene, "run").table()["Rollouts.nrows"].clone();
    assert_eq!(rows, 100);
}

#[test]
fn a_folder_that_cannot_be_made_is_told_with_the_reason() {
    let scene = Scene::new();
    scene.collect().run().succeeded();
    scene.folder.write("run/wandb", "");
    let export = to_wandb(scene.folder.rollstream("export run")).run();
    export
        .exited_with(1)
        .complaining(&["run/wandb", "File exists"]);
}
