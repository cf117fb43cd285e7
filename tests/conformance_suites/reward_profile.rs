//! Suite `reward_profile`: from materialized inputs and rollouts to a profile.

use std::fs::File;
use std::path::Path;

use datafusion::prelude::SessionContext;
use rollstream::import::{AgentSource, Import, KeyRule, ResponseRule, RolloutOptions};
use rollstream::measure::{CompletionSummary, RewardProfile, TaskLabels};
use serde_json::Value;

use super::expected_error::{block_on, check_error, read};
use super::outcome::Outcome;
use super::same_json::{same, same_lines};

/// Cases where this crate deliberately answers otherwise, and why.
pub const DIFFERENCES: &[(&str, &str)] = &[(
    "Too many bins for data range. Cannot create 64 finite-sized bins.",
    "the reference fails on large values that are close together, in a histogram that it does not write; \
     the statistics are well defined, and are given",
)];

/// Runs a case.
pub fn run(case_dir: &Path, case: &Value) -> Result<Outcome, String> {
    let output = tempfile::tempdir().map_err(|error| error.to_string())?;
    let expected = case_dir.join("expected");
    let mut summary = None;
    let result = block_on(profile(case_dir, case, output.path(), &mut summary))?;
    if let (Ok(wanted), Some(summary)) = (read(&expected.join("completion_summary.json")), summary)
    {
        let summary = serde_json::to_string(&summary).map_err(|error| error.to_string())?;
        same(&wanted, &summary).map_err(|error| format!("completion_summary: {error}"))?;
    }
    if expected.join("error.json").exists() {
        return match result {
            Ok(()) if is_deliberate(&expected)? => Ok(Outcome::Passed),
            Ok(()) => Err("expected an error, got a profile".into()),
            Err(message) => check_error(case_dir, &expected, &message),
        };
    }
    result.map_err(|message| format!("unexpected error: {message}"))?;
    let both = |name: &str| -> Result<_, String> {
        Ok((
            read(&expected.join(name))?,
            read(&output.path().join(name))?,
        ))
    };
    let (wanted, got) = both("reward_profiling.jsonl")?;
    same_lines(&wanted, &got).map_err(|error| format!("reward_profiling: {error}"))?;
    let (wanted, got) = both("agent_metrics.json")?;
    same(&wanted, &got).map_err(|error| format!("agent_metrics: {error}"))?;
    Ok(Outcome::Passed)
}

fn is_deliberate(expected: &Path) -> Result<bool, String> {
    let error = read(&expected.join("error.json"))?;
    let error: Value = serde_json::from_str(&error).map_err(|error| error.to_string())?;
    Ok(DIFFERENCES
        .iter()
        .any(|(message, _)| error["message"] == *message))
}

/// Writes the profile's files into `output`.
async fn profile(
    case_dir: &Path,
    case: &Value,
    output: &Path,
    summary: &mut Option<CompletionSummary>,
) -> Result<(), String> {
    let file = |field: &str, default: &str| {
        let path = case_dir.join(case[field].as_str().unwrap_or(default));
        let shown = path.display().to_string();
        (path, shown)
    };
    let ctx = SessionContext::new();
    let mut import = Import::new();
    let (path, shown) = file("materialized_inputs", "materialized_inputs.jsonl");
    let read = import.materialized_inputs(&path, &shown);
    read.map_err(|error| error.to_string())?;
    let options = RolloutOptions {
        is_shard: false,
        keys: KeyRule::Required,
        response: ResponseRule::Required,
        agent: AgentSource::Inputs,
    };
    let read = import.rollouts(&[file("rollouts", "rollouts.jsonl")], &options);
    read.map_err(|error| error.to_string())?;
    let imported = import.register(&ctx).await;
    let imported = imported.map_err(|error| error.to_string())?;
    let unique = imported.check_profile(&ctx).await;
    unique.map_err(|error| error.to_string())?;
    let labels = TaskLabels::from(imported.task_names);
    let allow_partial = case["options"]["allow_partial_rollouts"].as_bool();
    write(
        &ctx,
        &labels,
        allow_partial.unwrap_or(false),
        output,
        summary,
    )
    .await
    .map_err(|error| error.to_string())
}

async fn write(
    ctx: &SessionContext,
    labels: &TaskLabels,
    allow_partial: bool,
    output: &Path,
    summary: &mut Option<CompletionSummary>,
) -> Result<(), rollstream::measure::MeasureError> {
    let completion = summary.insert(CompletionSummary::of(ctx).await?);
    completion.check(ctx, labels, allow_partial).await?;
    let profile = RewardProfile::compute(ctx, labels).await?;
    let create = |name: &str| {
        File::create(output.join(name)).map_err(rollstream::measure::MeasureError::Write)
    };
    profile
        .write_tasks(&mut create("reward_profiling.jsonl")?)
        .await?;
    profile
        .write_agents(&mut create("agent_metrics.json")?)
        .await?;
    Ok(())
}
