//! Suite `resume`: collections that NeMo Gym left are imported and finished, and new ones are collected and exported,
//! all by the program itself, against an agent that notes what it is sent.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;

use rollstream::json::{Object, unquote};
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::TempDir;

use super::expected_error::{check_error, read};
use super::outcome::Outcome;
use super::recording_agent::{Key, RecordingAgent};
use super::same_json::same_lines;

/// Runs a case.
pub fn run(case_dir: &Path, case: &Value) -> Result<Outcome, String> {
    match case["operation"].as_str().unwrap_or_default() {
        "resume" => resume(case_dir, case),
        "collect" => collect(case_dir, case),
        other => Ok(Outcome::NotSupported(other.to_owned())),
    }
}

fn resume(case_dir: &Path, case: &Value) -> Result<Outcome, String> {
    let expected = case_dir.join("expected");
    let agent = RecordingAgent::start(HashMap::new())?;
    let place = Place::new(case)?;
    let output = case["options"]["output"].as_str().unwrap_or("out.jsonl");
    let import = place.run(&[
        "import",
        &case_dir.join(output).to_string_lossy(),
        "--output=run",
        "--json",
    ])?;
    let must_fail = expected.join("error.json").exists();
    let is_resumed = case["resumed"].as_bool().unwrap_or(true);
    match import.is_ok() {
        true if !is_resumed => return Err("imported what NeMo Gym starts over".into()),
        true if must_fail => return torn(&import),
        false if must_fail && is_resumed => return check_error(case_dir, &expected, &import.error),
        false if is_resumed => return Err(import.error),
        _ => {}
    }
    let keys = place.keys("SELECT task_index, rollout_index FROM rollouts ORDER BY 1, 2");
    let done = is_resumed.then_some(keys).transpose()?;

    let mut options = vec![
        "collect".to_owned(),
        "--output=run".to_owned(),
        "--concurrency=1".to_owned(),
        "--disable-aggregation".to_owned(),
    ];
    if is_resumed {
        options.push("--resume".to_owned())
    } else {
        options.extend(input_options(case_dir, case))
    }
    options.extend(addresses(case_dir, case, &agent)?);
    let ended = place.run(&options)?;
    if must_fail {
        return if ended.is_ok() {
            Err("expected an error".into())
        } else {
            check_error(case_dir, &expected, &ended.error)
        };
    }
    // Rollouts may have been given up before.
    if !ended.is_ok() && ended.code != Some(3) {
        return Err(format!("collect: {}", ended.error));
    }
    same_lines(
        &read(&expected.join("dispatched.jsonl"))?,
        &agent.received(),
    )
    .map_err(|error| format!("dispatched: {error}"))?;
    let sent = place.keys(
        "SELECT task_index, rollout_index, attempt FROM attempts
         WHERE dispatched_at > TIMESTAMP '1971-01-01' ORDER BY dispatched_at",
    )?;
    let remaining = listed(
        &expected,
        "remaining_keys.json",
        &["task", "rollout", "attempt"],
    )?;
    equal("remaining keys", &remaining, &sent)?;
    if let Some(done) = done {
        // NeMo Gym lists duplicates twice, and in the order of the file.
        let wanted = listed(&expected, "done_keys.json", &["task", "rollout"])?;
        let wanted: BTreeSet<Vec<i64>> = wanted.into_iter().collect();
        equal("done keys", &wanted.into_iter().collect::<Vec<_>>(), &done)?;
        summary(&expected, &import)?;
    }
    Ok(Outcome::Passed)
}

/// NeMo Gym can't resume from a half-written line; the import leaves it out and says so.
fn torn(import: &Ended) -> Result<Outcome, String> {
    if import.stderr.contains("is torn") {
        println!("deliberate difference: a torn last line is left out, with a warning");
        Ok(Outcome::Passed)
    } else {
        Err("expected an error".into())
    }
}

fn summary(expected: &Path, import: &Ended) -> Result<(), String> {
    let wanted = json(&read(&expected.join("summary.json"))?)?;
    let report = json(&import.stdout)?;
    for (theirs, ours) in [
        ("original_rows", &report["inputs"]),
        ("done_rows", &report["answers"]),
        ("failure_attempts", &report["failed_attempts"]),
        ("failed_keys", &report["failed_rollouts"]),
        ("terminal_keys", &report["terminal_rollouts"]),
        ("maxed_out_keys", &report["exhausted_rollouts"]),
        ("max_attempts", &report["max_attempts"]),
        ("remaining_rows", &report["rollouts"]["pending"]),
    ] {
        equal(theirs, &wanted[theirs], ours)?;
    }
    Ok(())
}

fn collect(case_dir: &Path, case: &Value) -> Result<Outcome, String> {
    let expected = case_dir.join("expected");
    let agent = RecordingAgent::start(scripted(&read(&case_dir.join("results.jsonl"))?)?)?;
    let place = Place::new(case)?;
    let mut options = vec![
        "collect".to_owned(),
        "--output=run".to_owned(),
        // NeMo Gym tries again when it is resumed, and not before.
        "--max-attempts=1".to_owned(),
        "--disable-aggregation".to_owned(),
    ];
    options.extend(input_options(case_dir, case));
    options.extend(addresses(case_dir, case, &agent)?);
    let ended = place.run(&options)?;
    if expected.join("error.json").exists() {
        return if ended.is_ok() {
            Err("expected an error".into())
        } else {
            check_error(case_dir, &expected, &ended.error)
        };
    }
    if !ended.is_ok() && ended.code != Some(3) {
        return Err(format!("collect: {}", ended.error));
    }
    let export = place.run(&["export", "run", "--format=nemo-gym", "--output=out.jsonl"])?;
    if !export.is_ok() {
        return Err(format!("export: {}", export.error));
    }
    for name in [
        "out.jsonl",
        "out_failures.jsonl",
        "out_materialized_inputs.jsonl",
    ] {
        let (wanted, got) = (read(&expected.join(name))?, place.read(name)?);
        // NeMo Gym writes answers in the order of completion; ours are sorted.
        let wanted = match name {
            "out_materialized_inputs.jsonl" => wanted,
            _ => by_key(&wanted)?,
        };
        same_lines(&wanted, &got).map_err(|error| format!("{name}: {error}"))?;
    }
    let tried =
        place.keys("SELECT DISTINCT task_index, rollout_index FROM attempts ORDER BY 1, 2")?;
    let returned = listed(&expected, "returned_keys.json", &["task", "rollout"])?;
    equal("returned keys", &returned, &tried)?;
    Ok(Outcome::Passed)
}

/// The input and what is done to it.
fn input_options(case_dir: &Path, case: &Value) -> Vec<String> {
    let input = case["input"].as_str().unwrap_or("input.jsonl");
    let mut options = vec![format!("--input={}", case_dir.join(input).display())];
    if let Some(prompt) = case["prompt_config"].as_str() {
        let prompt = case_dir.join(prompt);
        options.push(format!("--prompt-config={}", prompt.display()));
    }
    let given = case["options"].as_object().into_iter().flatten();
    options.extend(
        given
            .filter(|(name, value)| {
                !matches!(name.as_str(), "output" | "resume_from_cache") && !value.is_null()
            })
            .map(|(name, value)| format!("++{name}={value}")),
    );
    options
}

/// Every agent that the case names is this one.
fn addresses(case_dir: &Path, case: &Value, agent: &RecordingAgent) -> Result<Vec<String>, String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let given = case["options"]["agent_name"].as_str();
    names.extend(given.map(str::to_owned));
    for file in [
        "input.jsonl",
        "out_materialized_inputs.jsonl",
        "expected/dispatched.jsonl",
    ] {
        let text = fs::read_to_string(case_dir.join(file)).unwrap_or_default();
        for line in text.split('\n') {
            let row: Value = serde_json::from_str(line).unwrap_or_default();
            names.extend(row["agent_ref"]["name"].as_str().map(str::to_owned));
        }
    }
    let option = |name: String| format!("--agent-url={name}={}", agent.url());
    Ok(names.into_iter().map(option).collect())
}

fn scripted(results: &str) -> Result<HashMap<Key, VecDeque<String>>, String> {
    let mut answers: HashMap<Key, VecDeque<String>> = HashMap::new();
    for line in results.split('\n').filter(|line| !line.is_empty()) {
        let result = Object::parse(line).map_err(|error| error.to_string())?;
        let part = |name: &str| result.get(name).unwrap_or_default().to_owned();
        let key = (part("task"), part("rollout"));
        answers.entry(key).or_default().push_back(part("result"));
    }
    Ok(answers)
}

/// The lines by task and rollout.
pub(super) fn by_key(text: &str) -> Result<String, String> {
    let mut rows = Vec::new();
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let row = Object::parse(line).map_err(|error| error.to_string())?;
        let number = |name: &str| row.get(name).and_then(|text| text.parse::<i64>().ok());
        let task = row.get("_ng_task_index").and_then(unquote);
        let key = (
            number("_ng_task_index"),
            task.map(|task| task.into_owned()),
            number("_ng_rollout_index"),
        );
        rows.push((key, line));
    }
    rows.sort();
    Ok(rows
        .into_iter()
        .map(|(_, line)| format!("{line}\n"))
        .collect())
}

/// The parts of each item of a list, in order.
pub(super) fn listed(expected: &Path, name: &str, parts: &[&str]) -> Result<Vec<Vec<i64>>, String> {
    let text = read(&expected.join(name))?;
    let items: Vec<&RawValue> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let item = |item: &&RawValue| {
        let item = Object::parse(item.get()).map_err(|error| error.to_string())?;
        let part = |name: &&str| item.get(name).unwrap_or_default().parse::<i64>();
        let parts: Result<Vec<i64>, _> = parts.iter().map(part).collect();
        parts.map_err(|error| format!("{name}: {error}"))
    };
    items.iter().map(item).collect()
}

pub(super) fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: &T,
    got: &T,
) -> Result<(), String> {
    if wanted == got {
        Ok(())
    } else {
        Err(format!("{what}: expected {wanted:?}, got {got:?}"))
    }
}

pub(super) fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error} in {text}"))
}

/// A folder of the case's own, in which the program runs.
pub(super) struct Place {
    pub(super) folder: TempDir,
    environment: Vec<(String, String)>,
}

pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Its message, where there was an error.
    pub(super) error: String,
}

impl Ended {
    pub(super) fn is_ok(&self) -> bool {
        self.code == Some(0)
    }
}

impl Place {
    pub(super) fn new(case: &Value) -> Result<Self, String> {
        let given = case["environment"].as_object().into_iter().flatten();
        let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
        Ok(Self {
            folder: tempfile::tempdir().map_err(|error| error.to_string())?,
            environment: given
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
        })
    }

    pub(super) fn run(&self, options: &[impl AsRef<str>]) -> Result<Ended, String> {
        let output = Command::new(env!("CARGO_BIN_EXE_rollstream"))
            .args(options.iter().map(AsRef::as_ref))
            .env_clear()
            .env("HOME", self.folder.path())
            .envs(self.environment.iter().cloned())
            .current_dir(self.folder.path())
            .output()
            .map_err(|error| error.to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let error = stderr
            .split_once("error: ")
            .map_or(stderr.as_str(), |(_, error)| error);
        let error = error.strip_prefix("cannot import: ").unwrap_or(error);
        Ok(Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            error: error.trim_end().to_owned(),
            stderr,
        })
    }

    pub(super) fn read(&self, name: &str) -> Result<String, String> {
        read(&self.folder.path().join(name))
    }

    /// The rows of a query that gives integers.
    pub(super) fn keys(&self, query: &str) -> Result<Vec<Vec<i64>>, String> {
        let ended = self.run(&["sql", "run", "--format=csv", "--command", query])?;
        if !ended.is_ok() {
            return Err(ended.error);
        }
        let row = |line: &str| line.split(',').map(str::parse).collect();
        let rows: Result<Vec<Vec<i64>>, _> = ended.stdout.lines().skip(1).map(row).collect();
        rows.map_err(|error| format!("{error} in {}", ended.stdout))
    }
}
