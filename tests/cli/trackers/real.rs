//! A real server of MLflow, and the real package of W&B.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Scene, Series, are_the_same, to_mlflow, warnings};
use crate::common::{Folder, PATIENCE, free_port, until};

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

/// A real server of MLflow, killed with all its processes when this is dropped.
struct Mlflow {
    process: Child,
    url: String,
    _folder: Folder,
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        let kill = format!("kill -s KILL -- -{}", self.process.id());
        let _ = Command::new("sh").args(["-c", &kill]).status();
        let _ = self.process.wait();
    }
}

impl Mlflow {
    fn start() -> Self {
        let folder = Folder::new();
        let port = free_port();
        let options = "-m mlflow server --workers 1 --backend-store-uri sqlite:///mlflow.db --artifacts-destination files";
        let process = Command::new(environment().join("bin/python"))
            .args(options.split(' '))
            .args(["--port", &port.to_string()])
            .current_dir(folder.path(""))
            .env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let server = Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
            _folder: folder,
        };
        // It takes connections long before it answers.
        until("MLflow's server does not start", || {
            server.get("/health").is_some_and(|text| text == "OK")
        });
        server
    }

    fn get(&self, path: &str) -> Option<String> {
        let url = format!("{}{path}", self.url);
        let asked = async {
            timeout(PATIENCE, reqwest::get(url))
                .await
                .ok()?
                .ok()?
                .text()
                .await
                .ok()
        };
        Runtime::new().unwrap().block_on(asked)
    }

    fn ask(&self, path: &str) -> Value {
        let text = self.get(&format!("/api/2.0/{path}"));
        serde_json::from_str(&text.unwrap()).unwrap()
    }
}

#[test]
fn a_real_server_of_mlflow_has_it_all() {
    let server = Mlflow::start();
    let scene = Scene::new();
    to_mlflow(scene.collect(), &server.url).run().succeeded();
    let id = scene.noted("mlflow")["id"].as_str().unwrap().to_owned();
    let run = &server.ask(&format!("mlflow/runs/get?run_id={id}"))["run"];
    assert_eq!(
        (&run["info"]["status"], &run["info"]["run_name"]),
        (&json!("FINISHED"), &json!("r"))
    );
    let mut series = Series::new();
    for metric in run["data"]["metrics"].as_array().unwrap() {
        let key = metric["key"].as_str().unwrap();
        let query = format!("run_id={id}&metric_key={key}&max_results=1000");
        let history = server.ask(&format!("mlflow/metrics/get-history?{query}"));
        let points = history["metrics"].as_array().unwrap().iter();
        let point = |point: &Value| {
            (
                point["step"].as_u64().unwrap_or(0),
                point["value"].as_f64().unwrap(),
            )
        };
        series.insert(key.to_owned(), points.map(point).collect());
    }
    scene.are_those_of_gym(series);
    let tags = run["data"]["tags"].as_array().unwrap().iter();
    let tags = tags.map(|tag| (tag["key"].as_str().unwrap(), tag["value"].as_str().unwrap()));
    let expected: BTreeMap<String, String> =
        serde_json::from_value(scene.theirs()["tags"].take()).unwrap();
    let expected = expected
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    assert_eq!(tags.collect::<BTreeSet<_>>(), expected.collect());
    let table = server.ask(&format!(
        "mlflow-artifacts/artifacts/1/{id}/artifacts/rollouts.json"
    ));
    assert_eq!(table["data"].as_array().unwrap().len(), 100);
}

#[test]
fn the_package_of_wandb_logs_it_all_offline() {
    let scene = Scene::new();
    let environment = environment();
    let environment = environment.to_str().unwrap();
    let collected = scene.collect().args("+wandb_project=p +wandb_name=r");
    let collected = collected
        .env("VIRTUAL_ENV", environment)
        .env("WANDB_MODE", "offline");
    let ended = collected
        .env("WANDB_API_KEY", &"0".repeat(40))
        .run()
        .succeeded();
    assert_eq!(warnings(&ended), Vec::<&str>::new());
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/trackers/wandb_records.py"
    );
    let python = Command::new(Path::new(environment).join("bin/python"))
        .args([Path::new(script), &scene.folder.path("run")])
        .output()
        .unwrap();
    let records = String::from_utf8(python.stdout).unwrap();
    let records: Vec<Value> = records
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| {
        records
            .iter()
            .filter_map(|record| record.get(kind))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("run")[0]["project"], "p");
    assert_eq!(of("config")[0]["wandb_api_key"], "****");
    assert_eq!(of("exit")[0]["exit_code"], 0);
    let theirs = scene.theirs();
    let history = theirs["wandb"].as_array().unwrap().iter();
    are_the_same(&series(of("history")), &series(history.collect()));
    let table = of("history")
        .into_iter()
        .find(|record| record.get("Rollouts._type").is_some())
        .unwrap();
    let mut theirs = theirs["wandb"].as_array().unwrap().iter();
    let theirs = theirs.find(|record| record.get("Rollouts._type").is_some());
    for (key, value) in theirs.unwrap().as_object().unwrap() {
        match key.as_str() {
            "_step" => {}
            // The names of artifacts are drawn.
            "Rollouts.artifact_path" | "Rollouts._latest_artifact_path" => {
                let ours = table[key].as_str().unwrap();
                assert_eq!(form(ours), form(value.as_str().unwrap()), "{key}");
            }
            _ => assert_eq!(table[key], *value, "{key}"),
        }
    }
    let path = table["Rollouts.path"].as_str().unwrap();
    let names = scene.folder.content();
    let file = names.iter().find(|name| name.ends_with(path)).unwrap();
    let rows = scene.folder.json(file)["data"].take();
    assert_eq!(rows.as_array().unwrap().len(), 100);
    let artifact = of("artifact")[0];
    assert_eq!(artifact["type"], "run_table");
    let id = of("run")[0]["id"].as_str().unwrap();
    assert_eq!(artifact["name"], format!("run-{id}-Rollouts"));
    let file = fs::read_to_string(artifact["files"]["Rollouts.table.json"].as_str().unwrap());
    let file: Value = serde_json::from_str(&file.unwrap()).unwrap();
    assert_eq!(
        (&file["_type"], &file["nrows"], &file["data"]),
        (&json!("table"), &json!(100), &rows)
    );
}

/// The series in the history of W&B. Only the progress has steps that mean something.
fn series(history: Vec<&Value>) -> Series {
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

/// An address with the part left out that is drawn.
fn form(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap();
    let end = rest.find([':', '/']).unwrap();
    format!("{scheme}://X{}", &rest[end..])
}
