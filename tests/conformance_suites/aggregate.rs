//! Suite `aggregate`: from rollouts, also in shards, to aggregate metrics.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use datafusion::prelude::SessionContext;
use rollstream::gym::GymRules;
use rollstream::import::{AgentSource, Import, KeyRule, ResponseRule, RolloutOptions, merge};
use rollstream::json::{Object, quote};
use rollstream::measure::{AggregateMetrics, TaskLabels};
use rollstream::read::expand;
use rollstream::write_verify_responses;

use super::case::Case;
use super::expected_error::{block_on, check_error, read};
use super::hooks;
use super::outcome::Outcome;
use super::same_json::{Keys, items, same_but, same_lines};

const METRICS: &str = "aggregate_metrics.json";
const MERGED: &str = "merged_rollouts.jsonl";
const REQUESTS: &str = "agent_requests.json";

/// Runs a case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let output = tempfile::tempdir().map_err(|error| error.to_string())?;
    let operation = case.json["operation"].as_str().unwrap_or_default();
    let result = match operation {
        "aggregate_shards" if case.rules.repeats => {
            return Ok(Outcome::NotSupported(
                "shards are not grouped by environment server yet".into(),
            ));
        }
        "aggregate_shards" => block_on(shards(case, output.path()))?,
        "aggregate_metrics" => block_on(one_agent(case, output.path()))?,
        "pass_majority" => block_on(hooks::pass_majority(case))?,
        other => return Err(format!("there is no operation '{other}'")),
    };
    let expected = &case.expected;
    if case.expects_error() {
        return match result {
            Ok(()) => Err("expected an error, got metrics".into()),
            Err(message) => check_error(&case.directory, expected, &message),
        };
    }
    result.map_err(|message| format!("unexpected error: {message}"))?;
    for name in [METRICS, MERGED, REQUESTS] {
        let (wanted, got) = (expected.join(name), output.path().join(name));
        if wanted.exists() || got.exists() && name != REQUESTS {
            let (wanted, got) = (read(&wanted)?, read(&got)?);
            compare(case, name, &wanted, &got).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(Outcome::Passed)
}

fn compare(case: &Case, name: &str, wanted: &str, got: &str) -> Result<(), String> {
    let keys = match case.has_tag("key_order_undefined") {
        true => Keys::Unordered,
        false => Keys::Ordered,
    };
    match name {
        MERGED => same_lines(wanted, got),
        // Agents are listed in the order of completion.
        METRICS if wanted.trim().starts_with('[') => {
            same_but(&by_agent(wanted)?, &by_agent(got)?, keys)
        }
        _ => same_but(wanted, got, keys),
    }
}

fn by_agent(list: &str) -> Result<String, String> {
    let mut entries = Vec::new();
    for entry in items(list)? {
        let object = Object::parse(entry.get()).map_err(|error| error.to_string())?;
        let agent = object.get("agent_ref").unwrap_or_default().replace(' ', "");
        entries.push((agent, entry.get()));
    }
    entries.sort();
    let entries: Vec<&str> = entries.into_iter().map(|(_, entry)| entry).collect();
    Ok(format!("[{}]", entries.join(",")))
}

async fn shards(case: &Case, output: &Path) -> Result<(), String> {
    let (case_dir, options) = (case.directory.as_path(), &case.json["options"]);
    let glob = options["input_glob"].as_str().unwrap_or_default();
    let files: Vec<(PathBuf, String)> = expand(glob, case_dir)
        .into_iter()
        .map(|shown| (case_dir.join(&shown), shown))
        .collect();
    if files.is_empty() {
        return Err(format!("No shards matched input_glob='{glob}'"));
    }
    let ctx = SessionContext::new();
    let mut import = Import::new();
    let rule = RolloutOptions {
        is_shard: true,
        keys: KeyRule::AllOrNone,
        response: ResponseRule::Stripped,
        agent: AgentSource::Row,
        rules: case.rules,
    };
    import
        .rollouts(&files, &rule)
        .map_err(|error| error.to_string())?;
    let imported = import.register(&ctx).await;
    let imported = imported.map_err(|error| error.to_string())?;
    if options["merge_shards"].as_bool().unwrap_or(true) {
        let mut out = create(&output.join(MERGED))?;
        let merged = merge(&ctx, &files, &mut out).await;
        merged.map_err(|error| error.to_string())?;
    }
    let unique = imported.check_aggregate(&ctx, true).await;
    unique.map_err(|error| error.to_string())?;
    let labels = TaskLabels::from(imported.task_names);
    write_requests(&ctx, &labels, case.rules, output).await?;
    if imported.num_rollouts == 0 {
        return Ok(());
    }
    let metrics = AggregateMetrics::compute(&ctx, &labels, case.rules).await;
    let metrics = metrics.map_err(|error| error.to_string())?;
    let written = metrics.write(&mut create(&output.join(METRICS))?).await;
    written.map(drop).map_err(|error| error.to_string())
}

async fn one_agent(case: &Case, output: &Path) -> Result<(), String> {
    let name = case.json["verify_responses"].as_str();
    let path = case
        .directory
        .join(name.unwrap_or("verify_responses.jsonl"));
    let shown = path.display().to_string();
    let ctx = SessionContext::new();
    let mut import = Import::new();
    let rule = RolloutOptions {
        is_shard: false,
        keys: KeyRule::Optional,
        response: ResponseRule::Optional,
        agent: AgentSource::Fixed(hooks::AGENT.into()),
        rules: case.rules,
    };
    import
        .rollouts(&[(path, shown)], &rule)
        .map_err(|error| error.to_string())?;
    let imported = import.register(&ctx).await;
    let imported = imported.map_err(|error| error.to_string())?;
    let unique = imported.check_aggregate(&ctx, false).await;
    unique.map_err(|error| error.to_string())?;
    let labels = TaskLabels::from(imported.task_names);
    let metrics = AggregateMetrics::compute(&ctx, &labels, case.rules).await;
    let metrics = metrics.map_err(|error| error.to_string())?;
    let custom = hooks::custom_metrics(&ctx, &metrics, &case.json["options"]).await?;
    let metrics = metrics.with_custom(HashMap::from([(hooks::AGENT.to_owned(), custom)]));
    let out = &mut create(&output.join(METRICS))?;
    let written = metrics.write_agent(hooks::AGENT, out).await;
    written.map_err(|error| error.to_string())
}

/// What the agents' servers would be asked, by agent.
async fn write_requests(
    ctx: &SessionContext,
    labels: &TaskLabels,
    rules: &'static GymRules,
    output: &Path,
) -> Result<(), String> {
    let agents = AggregateMetrics::compute(ctx, labels, rules).await;
    let agents = agents.map_err(|error| error.to_string())?.agents().await;
    let mut fields = Vec::new();
    for agent in agents.map_err(|error| error.to_string())? {
        let mut body = Vec::new();
        let written = write_verify_responses(ctx, &agent, labels, &mut body).await;
        written.map_err(|error| error.to_string())?;
        let body = String::from_utf8(body).map_err(|error| error.to_string())?;
        let body = Object::parse(&body).map_err(|error| error.to_string())?;
        let rows = body.get("verify_responses").unwrap_or_default();
        fields.push(format!("{}:{rows}", quote(&agent)));
    }
    std::fs::write(output.join(REQUESTS), format!("{{{}}}", fields.join(",")))
        .map_err(|error| error.to_string())
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}
