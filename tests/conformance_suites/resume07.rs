//! Suite `resume07`: what NeMo Gym 0.7 left is imported and finished, and new collections are made, by the program itself,
//! against a head server and environment servers that answer by a script.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rollstream::json::{Object, unquote};
use serde_json::{Map, Value, json};

use super::case::Case;
use super::expected_error::{block_on, check_error, read};
use super::outcome::Outcome;
use super::resume::{Ended, Place, equal, json, listed};
use super::same_json::{Keys, same, same_but};
use super::scripted_replies::{ScriptedReplies, rollout_of};
use super::served_config::{ServedConfig, asks_for_metrics};

const OUT: &str = "out.jsonl";
const FAILURES: &str = "out_failures.jsonl";
const INPUTS: &str = "out_materialized_inputs.jsonl";
const METRICS: &str = "out_aggregate_metrics.json";

/// Runs a case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    block_on(async {
        let scene = Scene::start(case).await?;
        match case.json["operation"].as_str().unwrap_or_default() {
            "resume" => scene.resume(),
            "collect" => scene.collect(),
            other => Err(format!("there is no operation '{other}'")),
        }
    })?
}

struct Scene<'a> {
    case: &'a Case,
    place: Place,
    served: ServedConfig,
    /// The same as the servers follow.
    replies: ScriptedReplies,
}

impl<'a> Scene<'a> {
    async fn start(case: &'a Case) -> Result<Self, String> {
        let file = |name: &str| fs::read_to_string(case.directory.join(name)).ok();
        let named = |key: &str| case.json[key].as_str().and_then(file);
        let yaml = named("config").map_or_else(|| relays(case), Ok)?;
        let replies = || match (named("replies"), file("results.jsonl")) {
            (Some(replies), _) => ScriptedReplies::parse(&replies),
            (None, Some(results)) => ScriptedReplies::results(&results),
            (None, None) => Ok(ScriptedReplies::default()),
        };
        let place = Place::new(&case.json)?;
        for name in [OUT, FAILURES, INPUTS, METRICS] {
            if let Some(text) = file(name) {
                let path = place.folder.path().join(name);
                fs::write(path, text).map_err(|error| error.to_string())?;
            }
        }
        Ok(Self {
            case,
            place,
            served: ServedConfig::with_replies(&yaml, replies()?).await?,
            replies: replies()?,
        })
    }

    fn resume(&self) -> Result<Outcome, String> {
        let expected = &self.case.expected;
        let options = &self.case.json["options"];
        let is_resumed = self.case.json["resumed"] != false;
        let mut import = vec!["import", OUT, "--output=run", "--gym=0.7", "--json"];
        for (key, flag) in [
            ("retry_terminal_timeouts", "--retry-terminal-timeouts"),
            (
                "retry_invalid_judge_responses",
                "--retry-invalid-judge-responses",
            ),
        ] {
            if options[key] == true {
                import.push(flag);
            }
        }
        let import = if is_resumed || options["resume_from_cache"] == true {
            Some(self.place.run(&import)?)
        } else {
            None
        };
        match &import {
            Some(import) if !is_resumed && import.is_ok() => {
                return Err("imported what NeMo Gym starts over".into());
            }
            Some(import) if is_resumed && !import.is_ok() => return self.failed(import),
            _ => {}
        }
        let keys = "SELECT task_index, rollout_index FROM rollouts ORDER BY 1, 2";
        let done = is_resumed.then(|| self.place.keys(keys)).transpose()?;
        let ended = if is_resumed {
            self.rollstream(&["--resume".to_owned()])?
        } else {
            // NeMo Gym starts over what is there; here somebody has to say so.
            let mut options = self.input();
            options.push("--overwrite".to_owned());
            self.rollstream(&options)?
        };
        if !matches!(ended.code, Some(0 | 3)) {
            return self.failed(&ended);
        }
        let sent: Vec<String> = self.bodies()?;
        let wanted = read(&expected.join("dispatched.jsonl"))?;
        let wanted: Vec<&str> = wanted.lines().collect();
        equal("rows sent", &wanted.len(), &sent.len())?;
        for (wanted, sent) in wanted.iter().zip(&sent) {
            same(wanted, sent).map_err(|error| format!("dispatched: {error}"))?;
        }
        if let (Some(done), Some(import)) = (done, import) {
            let attempts = "SELECT task_index, rollout_index, attempt FROM attempts
                            WHERE dispatched_at > TIMESTAMP '1971-01-01' ORDER BY dispatched_at";
            let parts = ["task", "rollout", "attempt"];
            let remaining = listed(expected, "remaining_keys.json", &parts)?;
            equal("remaining", &remaining, &self.place.keys(attempts)?)?;
            let wanted = listed(expected, "done_keys.json", &parts[..2])?;
            let wanted: BTreeSet<Vec<i64>> = wanted.into_iter().collect();
            equal("done", &wanted.into_iter().collect::<Vec<_>>(), &done)?;
            self.summary(&import, done.len())?;
        }
        self.files(Vec::new())?;
        Ok(Outcome::Passed)
    }

    fn collect(&self) -> Result<Outcome, String> {
        let expected = &self.case.expected;
        let mut options = self.input();
        options.push("--max-attempts=1".to_owned());
        let error = read(&expected.join("error.json"));
        let error = error.and_then(|text| json(&text)).unwrap_or_default();
        let ends_the_run = error["stage"] == "run" && error["exception"] != "RuntimeError";
        if ends_the_run {
            options.push("--max-failures=1".to_owned());
        }
        let ended = self.rollstream(&options)?;
        if ends_the_run {
            return self.ended_by_failure(&ended, &error);
        }
        if !error.is_null() {
            if let Some(1) = ended.code {
                self.files(Vec::new())?;
            }
            return self.failed(&ended);
        }
        if !matches!(ended.code, Some(0 | 3)) {
            return Err(format!("collect: {}", ended.error));
        }
        self.files(Vec::new())?;
        let tried = "SELECT DISTINCT task_index, rollout_index FROM attempts ORDER BY 1, 2";
        let returned = listed(expected, "returned_keys.json", &["task", "rollout"])?;
        equal("returned", &returned, &self.place.keys(tried)?)?;
        if let Ok(text) = read(&expected.join("requests_per_rollout.json")) {
            let mut requests: BTreeMap<String, u64> = BTreeMap::new();
            for body in self.bodies()? {
                *requests.entry(rollout_of(&body)).or_default() += 1;
            }
            equal("requests", &json(&text)?, &json!(requests))?;
        }
        if let Ok(metrics) = read(&expected.join("aggregate_metrics.json")) {
            let keys = if self.case.has_tag("key_order_undefined") {
                Keys::Unordered
            } else {
                Keys::Ordered
            };
            let got = self.place.read(METRICS)?;
            same_but(&metrics, &got, keys).map_err(|error| format!("metrics: {error}"))?;
        }
        if let Ok(text) = read(&expected.join("agent_requests.json")) {
            let shown = self.shown_answers()?.to_string();
            same_but(&text, &shown, Keys::Unordered).map_err(|error| format!("shown: {error}"))?;
        }
        Ok(Outcome::Passed)
    }

    fn failed(&self, ended: &Ended) -> Result<Outcome, String> {
        if self.case.expects_error() && !ended.is_ok() {
            check_error(&self.case.directory, &self.case.expected, &ended.error)
        } else {
            Err(format!("ended with {:?}: {}", ended.code, ended.error))
        }
    }

    /// A failure never ends a sweep unless somebody asked for that, and then it is on record.
    fn ended_by_failure(&self, ended: &Ended, error: &Value) -> Result<Outcome, String> {
        equal("exit code", &Some(4), &ended.code)?;
        let rows = self.place.read(FAILURES)?;
        let mut rows = rows.lines().map(|row| self.shown(row));
        let message = error["message"].as_str().unwrap_or_default();
        let is_it = |row: &String| json(row).is_ok_and(|row| row["_ng_failure_message"] == message);
        let found = rows.find(is_it);
        let found = found.ok_or_else(|| format!("no failure says {message:?}"))?;
        self.files(vec![found])?;
        println!(
            "deliberate difference: a failure ends a sweep only where --max-failures says so, and is on record"
        );
        Ok(Outcome::Passed)
    }

    fn rollstream(&self, more: &[String]) -> Result<Ended, String> {
        let options = self.case.json["options"].as_object();
        let given = |name: &str| options.is_some_and(|options| options.contains_key(name));
        // NeMo Gym repeats no call for a status, and every call whose connection ends.
        let infra = if self.replies.has_disconnects() {
            50
        } else {
            1
        };
        let mut arguments: Vec<String> = vec![
            "collect".to_owned(),
            "--output=run".to_owned(),
            format!("--gym-output={OUT}"),
            "--gym=0.7".to_owned(),
            format!("--head-server={}", self.served.url()),
            format!("--infra-budget={infra}"),
            "--rate-limit-budget=1".to_owned(),
            "--data-budget=1".to_owned(),
            "--retry-backoff=1ms".to_owned(),
        ];
        if !given("disable_aggregation") {
            arguments.push("--disable-aggregation".to_owned());
        }
        let options = options.into_iter().flatten().filter(|(name, value)| {
            !matches!(name.as_str(), "output" | "resume_from_cache") && !value.is_null()
        });
        arguments.extend(options.map(|(name, value)| format!("++{name}={value}")));
        arguments.extend(more.iter().cloned());
        self.place.run(&arguments)
    }

    fn input(&self) -> Vec<String> {
        let input = self.case.json["input"].as_str().unwrap_or("input.jsonl");
        let input = self.case.directory.join(input);
        vec![format!("--input={}", input.display())]
    }

    /// The rollouts that the environment servers were sent, in order.
    fn bodies(&self) -> Result<Vec<String>, String> {
        let bodies = self.received()?.into_iter().map(|(_, body)| body);
        Ok(bodies.filter(|body| !asks_for_metrics(body)).collect())
    }

    /// The answers that each environment server was shown.
    fn shown_answers(&self) -> Result<Value, String> {
        let mut shown = Map::new();
        for (server, body) in self.received()? {
            if asks_for_metrics(&body) {
                shown.insert(server, json(&body)?["verify_responses"].take());
            }
        }
        Ok(shown.into())
    }

    /// What was sent, by server.
    fn received(&self) -> Result<Vec<(String, String)>, String> {
        let received = self.served.received();
        let parts = |line: &str| {
            let line = Object::parse(line).map_err(|error| error.to_string())?;
            let part = |name| line.get(name).unwrap_or_default();
            let server = unquote(part("server")).unwrap_or_default().into_owned();
            Ok((server, part("body").to_owned()))
        };
        received.lines().map(parts).collect()
    }

    fn summary(&self, import: &Ended, num_done: usize) -> Result<(), String> {
        let wanted = json(&read(&self.case.expected.join("summary.json"))?)?;
        let report = json(&import.stdout)?;
        for (theirs, ours) in [
            ("original_rows", &report["inputs"]),
            ("done_rows", &json!(num_done)),
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

    /// The files that are there at the end. `unexpected` are failures that are there beside the expected ones.
    fn files(&self, unexpected: Vec<String>) -> Result<(), String> {
        let expected = &self.case.expected;
        if let Ok(names) = read(&expected.join("files.json")) {
            let mut names: Vec<String> = serde_json::from_str(&names).map_err(|e| e.to_string())?;
            names.sort();
            let entries = fs::read_dir(self.place.folder.path()).map_err(|e| e.to_string())?;
            let entries = entries.flatten().map(|entry| entry.file_name());
            let mut found: Vec<String> = entries
                .filter_map(|name| name.into_string().ok())
                .filter(|name| name.starts_with("out"))
                .collect();
            found.sort();
            equal("files", &names, &found)?;
        }
        for name in [OUT, FAILURES, INPUTS] {
            let Ok(wanted) = read(&expected.join(name)) else {
                continue;
            };
            let mut wanted: Vec<String> = wanted.lines().map(str::to_owned).collect();
            let got = self.place.read(name)?;
            let mut got: Vec<String> = got.lines().map(|row| self.shown(row)).collect();
            if name == FAILURES {
                wanted.extend(unexpected.iter().cloned());
            }
            if name != INPUTS {
                // NeMo Gym writes answers in the order of completion; ours are sorted.
                wanted.sort_by_key(|row| rollout_of(row));
                got.sort_by_key(|row| rollout_of(row));
            }
            equal(&format!("rows of {name}"), &wanted.len(), &got.len())?;
            for (wanted, got) in wanted.iter().zip(&got) {
                let got = self.as_sent_once(name, got)?;
                let (wanted, got) = if self.case.has_tag("library_messages") {
                    (without_message(wanted), without_message(&got))
                } else {
                    (wanted.clone(), got)
                };
                same(&wanted, &got).map_err(|error| format!("{name}: {error}"))?;
            }
        }
        Ok(())
    }

    /// A row without the number of the attempt, where the attempts before it got no answer: each call of ours is an
    /// attempt with a number, and NeMo Gym's are those that the agent answered.
    fn as_sent_once(&self, name: &str, row: &str) -> Result<String, String> {
        let disconnects = self.replies.disconnects(&rollout_of(row));
        if name != OUT || disconnects == 0 {
            return Ok(row.to_owned());
        }
        println!(
            "deliberate difference: a call whose connection ended is an attempt, and numbered"
        );
        let parsed = Object::parse(row).map_err(|error| error.to_string())?;
        let attempt = parsed.get("_ng_attempt_index").unwrap_or_default();
        // The client sends again by itself where a connection that it had kept turns out to be closed.
        let attempt: usize = attempt.parse().unwrap_or_default();
        equal("attempts", &true, &(attempt <= disconnects))?;
        let mut kept = String::new();
        parsed.write_without(&["_ng_attempt_index"], &mut kept);
        Ok(kept)
    }

    /// A row with the place of its server for its address.
    fn shown(&self, row: &str) -> String {
        let parsed = Object::parse(row).unwrap_or_default();
        let server = parsed.get("_ng_environment_server").and_then(unquote);
        let address = self.served.address(&server.unwrap_or_default());
        match address {
            "" => row.to_owned(),
            address => row.replace(address, "{URL}"),
        }
    }
}

/// A row without a message that is the text of a library.
fn without_message(row: &str) -> String {
    let parsed = Object::parse(row).unwrap_or_default();
    let kind = parsed.get("_ng_failure_type").and_then(unquote);
    if kind.is_none() || kind.as_deref() == Some("ClientResponseError") {
        return row.to_owned();
    }
    let mut kept = String::new();
    parsed.write_without(&["_ng_failure_message"], &mut kept);
    kept
}

/// A configuration in which each agent of the case has a relay.
fn relays(case: &Case) -> Result<String, String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    names.extend(
        case.json["options"]["agent_name"]
            .as_str()
            .map(str::to_owned),
    );
    let input = fs::read_to_string(case.directory.join("input.jsonl")).unwrap_or_default();
    for line in input.lines() {
        let row: Value = serde_json::from_str(line).unwrap_or_default();
        names.extend(row["agent_ref"]["name"].as_str().map(str::to_owned));
    }
    let mut config = json!({});
    for name in names {
        let stem = name.strip_suffix("_agent").unwrap_or(&name);
        let address = json!({"entrypoint": "app.py", "host": "127.0.0.1", "port": 1});
        let mut relay = address.clone();
        relay["agent_server"] = json!({"type": "responses_api_agents", "name": name});
        config[format!("{stem}_environment_server")] =
            json!({"environment_servers": {"legacy_agent": relay}});
        config[&name] = json!({"responses_api_agents": {"simple_agent": address}});
    }
    serde_yaml_ng::to_string(&config).map_err(|error| error.to_string())
}
