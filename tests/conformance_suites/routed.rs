//! Suite `preprocess07`: where rows go, from input lines to what each environment server is sent.

use std::fs;
use std::path::Path;

use rollstream::agent::AgentError;
use rollstream::config::{Concurrency, ConfigError, SeedField, Settings};
use rollstream::export::{ExportTarget, export_nemo_gym};
use rollstream::read::ReadTasksError;
use rollstream::servers::Servers;
use rollstream::store::{RunRecord, RunStore};
use rollstream::{Error, Sweep};

use super::case::Case;
use super::expected_error::block_on;
use super::preprocess::{check_error, check_rows, check_warnings, materialize};
use super::same_json::same_lines;
use super::served_config::ServedConfig;

/// Runs a case.
pub fn run(case: &Case) -> Result<(), String> {
    block_on(compare(case))?
}

async fn compare(case: &Case) -> Result<(), String> {
    let expected = case.expected.as_path();
    let name = case.json["config"].as_str().unwrap_or_default();
    let served = ServedConfig::start(&read(&case.directory.join(name))?).await?;
    let servers = Servers::parse(served.yaml())?;
    let rows = materialize(case, Some(servers.into()), SeedField::default());
    check_warnings(expected, rows.warnings())?;
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output = place.path().join("run");
    let prepared = match settings(case, served.url(), &output) {
        Ok(settings) => Sweep::prepare(settings).await,
        Err(message) => return Err(format!("settings: {message}")),
    };
    if case.expects_error() {
        let error = match prepared {
            Ok(_) => return Err("expected an error".into()),
            Err(error) => error,
        };
        if !served.received().is_empty() {
            return Err("something was sent".into());
        }
        return check_refusal(case, &error, rows.rows());
    }
    let sweep = prepared.map_err(|error| error.to_string())?;
    let report = sweep.collect().await.map_err(|error| error.to_string())?;
    if report.rollouts.done == 0 || report.rollouts.pending + report.rollouts.failed > 0 {
        return Err(format!("not all rollouts are done: {:?}", report.rollouts));
    }
    same_lines(&read(&expected.join("requests.jsonl"))?, &served.received())
        .map_err(|error| format!("requests: {error}"))?;
    check_rows(expected, &exported(&output).await?)
}

/// The error, the stage at which it came, and the rows that NeMo Gym writes before it looks for their servers.
fn check_refusal(
    case: &Case,
    error: &Error,
    rows: Result<&[String], String>,
) -> Result<(), String> {
    let stage = if error.cause::<ConfigError>().is_some() {
        "config"
    } else if error.cause::<ReadTasksError>().is_some() {
        "prepare"
    } else if matches!(error.cause(), Some(AgentError::Route(_))) {
        "dispatch"
    } else {
        "another"
    };
    if case.json["stage"] != stage {
        let wanted = &case.json["stage"];
        return Err(format!(
            "expected an error at {wanted}, got one at {stage}: {error}"
        ));
    }
    // Behind the message are the places in the input, and what can be done.
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default().to_owned();
    check_error(&case.directory, &case.expected, &[message])?;
    match stage {
        "dispatch" => check_rows(&case.expected, rows?),
        _ if rows.is_ok() => Err("the input was read without an error".into()),
        _ => Ok(()),
    }
}

/// What a user would give who has this configuration.
fn settings(case: &Case, head_server: &str, output: &Path) -> Result<Settings, String> {
    let mut given = case.json["options"].clone();
    let fields = given.as_object_mut().ok_or("the options are no mapping")?;
    if let Some(agent) = fields.remove("agent_name") {
        fields.insert("agent".into(), agent);
    }
    let settings: Settings = serde_json::from_value(given).map_err(|error| error.to_string())?;
    let input = case.json["input"].as_str().unwrap_or("input.jsonl");
    let prompt = case.json["prompt_config"].as_str();
    Ok(Settings {
        input: vec![case.directory.join(input).display().to_string()],
        output: Some(output.display().to_string()),
        prompt_config: prompt.map(|name| case.directory.join(name)),
        head_server: Some(head_server.parse().map_err(|_| "the address is none")?),
        gym: case.gym(),
        // So that the order of dispatch is that of the calls.
        concurrency: Concurrency::Fixed(1),
        aggregate: false,
        ..settings
    })
}

/// The materialized inputs of a run, as NeMo Gym's users get them.
async fn exported(run: &Path) -> Result<Vec<String>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let name = run.display().to_string();
    let store = RunStore::open(&name, None).map_err(|error| failed(&error))?;
    let record = RunRecord::load(&store)
        .await
        .map_err(|error| failed(&error))?;
    let record = record.ok_or("there is no run")?;
    let target = ExportTarget::new(&run.with_extension("jsonl"), &name);
    let target = target.map_err(|error| failed(&error))?;
    let export = export_nemo_gym(&store, &record, &target, false).await;
    export.map_err(|error| failed(&error))?;
    let text = read(&target.materialized_inputs)?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
