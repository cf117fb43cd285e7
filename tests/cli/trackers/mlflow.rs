//! A real server of MLflow.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{Scene, Series, environment, to_mlflow};
use crate::common::{Folder, PATIENCE, free_port, until};

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
