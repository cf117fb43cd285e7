//! A real server of MLflow, and the real package of W&B.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Scene, Series, are_those_of_gym, keep_common, of_gym, to_mlflow, warnings};
use crate::common::Folder;

/// Far longer than anything takes: a test that fails must not hang.
const PATIENCE: Duration = Duration::from_secs(120);

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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let options = "-m mlflow server --workers 1 --backend-store-uri sqlite:///mlflow.db --artifacts-destination files";
        let process = Command::new(environment().join("bin/python"))
            .args(options.split(' '))
            .args(["--port", &address.port().to_string()])
            .current_dir(folder.path(""))
            .env("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let server = Self {
            process,
            url: format!("http://{address}"),
            _folder: folder,
        };
        let deadline = Instant::now() + PATIENCE;
        // It takes connections long before it answers.
        while server.get("/health").is_none_or(|text| text != "OK") {
            assert!(Instant::now() < deadline, "MLflow's server does not start");
            // Only spares the processor.
            sleep(Duration::from_millis(50));
        }
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
    are_those_of_gym(series);
    let tags = run["data"]["tags"].as_array().unwrap().iter();
    let tags = tags.map(|tag| (tag["key"].as_str().unwrap(), tag["value"].as_str().unwrap()));
    let expected: BTreeMap<String, String> =
        serde_json::from_value(of_gym()["tags"].clone()).unwrap();
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
    let values = |history: Vec<&Value>| {
        let mut values: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for record in history {
            for (key, value) in record.as_object().unwrap() {
                let is_same = !key.starts_with('_')
                    && !key.starts_with("progress/total")
                    && !key.starts_with("Rollouts");
                if is_same {
                    values.entry(key.clone()).or_default().push(value.clone());
                }
            }
        }
        values
    };
    let theirs = of_gym()["wandb"].clone();
    let theirs = values(theirs.as_array().unwrap().iter().collect());
    let mut ours = values(of("history"));
    keep_common(&mut ours, &theirs);
    assert_eq!(ours, theirs);
    let table = of("history")
        .into_iter()
        .find(|record| record.get("Rollouts._type").is_some())
        .unwrap();
    assert_eq!(
        (&table["Rollouts._type"], &table["Rollouts.nrows"]),
        (&json!("table-file"), &json!(100))
    );
    let path = table["Rollouts.path"].as_str().unwrap();
    let names = scene.folder.content();
    let file = names.iter().find(|name| name.ends_with(path)).unwrap();
    assert_eq!(
        scene.folder.json(file)["data"].as_array().unwrap().len(),
        100
    );
}
