//! Suite `reward_profile`: from materialized inputs and rollouts to a profile.

use std::path::Path;

use rollstream::Error;
use rollstream::import::ImportError;
use rollstream::measure::CompletionSummary;
use rollstream::store::RunStore;
use rollstream::{Profile, ProfileTarget};
use serde_json::Value;

use super::case::Case;
use super::differences::NO_ERRORS;
use super::expected_error::{block_on, check_error, read};
use super::outcome::Outcome;
use super::same_json::{same, same_lines};

/// Little, so that something goes to temporary files.
const MEMORY: usize = 1 << 20;

/// Runs a case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let output = tempfile::tempdir().map_err(|error| error.to_string())?;
    let expected = &case.expected;
    let mut summary = None;
    let result = block_on(profile(case, output.path(), &mut summary))?;
    if let (Ok(wanted), Some(summary)) = (read(&expected.join("completion_summary.json")), summary)
    {
        let is_said = wanted.contains("masked_rollout_rows");
        let masked_rollout_rows = summary.masked_rollout_rows.filter(|_| is_said);
        let summary = serde_json::to_string(&CompletionSummary {
            masked_rollout_rows,
            ..summary
        });
        let summary = summary.map_err(|error| error.to_string())?;
        same(&wanted, &summary).map_err(|error| format!("completion_summary: {error}"))?;
    }
    if case.expects_error() {
        return match result {
            Ok(()) if is_deliberate(expected)? => Ok(Outcome::Passed),
            Ok(()) => Err("expected an error, got a profile".into()),
            Err(message) => check_error(&case.directory, expected, &message),
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
    let mut files = vec!["agent_metrics.json"];
    files.extend(case.rules.repeats.then_some("repeat_level_metrics.json"));
    for name in files {
        let (wanted, got) = both(name)?;
        same(&wanted, &got).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(Outcome::Passed)
}

/// Whether the expected error is one that we deliberately do not have.
fn is_deliberate(expected: &Path) -> Result<bool, String> {
    let error = read(&expected.join("error.json"))?;
    let error: Value = serde_json::from_str(&error).map_err(|error| error.to_string())?;
    let message = error["message"].as_str().unwrap_or_default();
    Ok(NO_ERRORS.iter().any(|no_error| no_error.message == message))
}

/// Writes the profile's files into `output`, as `rollstream profile` does.
async fn profile(
    case: &Case,
    output: &Path,
    summary: &mut Option<CompletionSummary>,
) -> Result<(), String> {
    let file = |field: &str, default: &str| {
        let name = case.json[field].as_str().unwrap_or(default);
        case.directory.join(name)
    };
    let inputs = file("materialized_inputs", "materialized_inputs.jsonl");
    let rollouts = file("rollouts", "rollouts.jsonl");
    let profile = Profile::of_files(&rollouts, &inputs, case.gym(), MEMORY).await;
    let profile = profile.map_err(message)?;
    *summary = Some(profile.completion().clone());
    let allow_partial = case.json["options"]["allow_partial_rollouts"].as_bool();
    let checked = profile.check(allow_partial.unwrap_or(false)).await;
    checked.map_err(message)?;
    let place = output.to_str().unwrap_or_default();
    let target = ProfileTarget {
        place: RunStore::open(place, None).map_err(|error| error.to_string())?,
        prefix: String::new(),
    };
    let written = profile.write(&target, &mut Vec::new()).await;
    written.map(drop).map_err(message)
}

/// What went wrong, without what the program was about to do.
fn message(error: Error) -> String {
    match error.cause::<ImportError>() {
        Some(error) => error.to_string(),
        None => error.to_string(),
    }
}
