//! Suite `aggregate`: from rollouts, also in shards, to aggregate metrics.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::prelude::SessionContext;
use rollstream::gym::GymRules;
use rollstream::import::{
    AgentServers, Import, RolloutFiles, RolloutOptions, TaskLabels, Zeros, is_shard, merge,
};
use rollstream::json::{Object, quote};
use rollstream::measure::AggregateMetrics;
use rollstream::python::glob;
use rollstream::store::EnvironmentServer;
use rollstream::write_verify_responses;
use serde_json::Value;

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
    let keys = if case.has_tag("key_order_undefined") {
        Keys::Unordered
    } else {
        Keys::Ordered
    };
    match name {
        MERGED => same_lines(wanted, got),
        // Agents are listed in the order of completion.
        REQUESTS => same_but(wanted, got, keys),
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

/// The environment server of each agent, as the case's configuration has it. A case of an earlier version has none: then
/// it is the relay that NeMo Gym makes for an agent.
fn servers(case: &Case, shards: &[(PathBuf, String)]) -> Result<AgentServers, String> {
    let mut servers = AgentServers::new();
    if !case.rules.servers {
        return Ok(servers);
    }
    let Some(file) = case.json["config"].as_str() else {
        for (path, _) in shards {
            let rows = read(path)?;
            let rows = rows
                .lines()
                .filter_map(|row| serde_json::from_str::<Value>(row).ok());
            for row in rows {
                if let Some(agent) = row["agent_ref"]["name"].as_str() {
                    servers.insert(agent.to_owned(), format!("{agent}_environment_server"));
                }
            }
        }
        return Ok(servers);
    };
    let config: Value = serde_yaml_ng::from_str(&read(&case.directory.join(file))?)
        .map_err(|error| error.to_string())?;
    for (name, server) in config.as_object().into_iter().flatten() {
        let implementations = server["environment_servers"].as_object();
        for implementation in implementations.into_iter().flat_map(|all| all.values()) {
            if let Some(agent) = implementation["agent_server"]["name"].as_str() {
                servers.insert(agent.to_owned(), name.clone());
            }
        }
    }
    Ok(servers)
}

fn zeros(options: &Value) -> Zeros {
    let classes = options["count_failure_classes_as_zero"].as_array();
    let classes = classes.into_iter().flatten();
    Zeros {
        failure_classes: classes
            .filter_map(|class| class.as_str().map(str::to_owned))
            .collect(),
        missing: options["count_missing_rollouts_as_zero"] == true,
    }
}

async fn shards(case: &Case, output: &Path) -> Result<(), String> {
    let (case_dir, options) = (case.directory.as_path(), &case.json["options"]);
    let pattern = options["input_glob"].as_str().unwrap_or_default();
    let files: Vec<(PathBuf, String)> = glob(pattern, case_dir)
        .into_iter()
        .filter(|path| is_shard(path))
        .map(|shown| (case_dir.join(&shown), shown))
        .collect();
    if files.is_empty() {
        return Err(format!("No shards matched input_glob='{pattern}'"));
    }
    let ctx = SessionContext::new();
    let mut import = Import::new().map_err(|error| error.to_string())?;
    let rule = RolloutOptions {
        files: RolloutFiles::Shards,
        rules: case.rules,
        servers: servers(case, &files)?,
        zeros: zeros(options),
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
    let labels = imported.labels;
    // Cases of an earlier version have them by agent.
    let by_server = case.json["config"].is_string();
    write_requests(
        &ctx,
        &labels,
        case.rules,
        &imported.servers,
        by_server,
        output,
    )
    .await?;
    if imported.num_rollouts == 0 {
        return Ok(());
    }
    let metrics = AggregateMetrics::compute(&ctx, &labels, case.rules).await;
    let metrics = metrics.map_err(|error| error.to_string())?;
    let metrics = metrics.with_servers(imported.servers);
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
    let mut import = Import::new().map_err(|error| error.to_string())?;
    let rule = RolloutOptions {
        files: RolloutFiles::OfAgent(hooks::AGENT.into()),
        rules: case.rules,
        servers: AgentServers::new(),
        zeros: Zeros::default(),
    };
    import
        .rollouts(&[(path, shown)], &rule)
        .map_err(|error| error.to_string())?;
    let imported = import.register(&ctx).await;
    let imported = imported.map_err(|error| error.to_string())?;
    let unique = imported.check_aggregate(&ctx, false).await;
    unique.map_err(|error| error.to_string())?;
    let labels = imported.labels;
    let metrics = AggregateMetrics::compute(&ctx, &labels, case.rules).await;
    let metrics = metrics.map_err(|error| error.to_string())?;
    let custom = hooks::custom_metrics(&ctx, &metrics, &case.json["options"]).await?;
    let metrics = metrics.with_custom(HashMap::from([(hooks::AGENT.to_owned(), custom)]));
    let out = &mut create(&output.join(METRICS))?;
    let written = metrics.write_agent(hooks::AGENT, out).await;
    written.map_err(|error| error.to_string())
}

/// What the agents' servers would be asked, by agent, or by environment server.
async fn write_requests(
    ctx: &SessionContext,
    labels: &TaskLabels,
    rules: &'static GymRules,
    servers: &BTreeMap<String, EnvironmentServer>,
    by_server: bool,
    output: &Path,
) -> Result<(), String> {
    let agents = AggregateMetrics::compute(ctx, labels, rules).await;
    let agents = agents.map_err(|error| error.to_string())?.agents().await;
    // Rows of files bear their stamps.
    let stamps = Arc::default();
    let mut fields = Vec::new();
    for agent in agents.map_err(|error| error.to_string())? {
        let mut body = Vec::new();
        let written = write_verify_responses(ctx, &agent, labels, rules, &stamps, &mut body).await;
        let left_out = written.map_err(|error| error.to_string())?;
        if left_out > 0 {
            return Err(format!("{left_out} answers can't be read"));
        }
        let body = String::from_utf8(body).map_err(|error| error.to_string())?;
        let body = Object::parse(&body).map_err(|error| error.to_string())?;
        let rows = body.get("verify_responses").unwrap_or_default();
        let server = servers.get(&agent).filter(|_| by_server);
        let server = server.map_or(&agent, |server| &server.name);
        fields.push(format!("{}:{rows}", quote(server)));
    }
    std::fs::write(output.join(REQUESTS), format!("{{{}}}", fields.join(",")))
        .map_err(|error| error.to_string())
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}
