//! A file for each suite, and [`run`], which picks it.

mod aggregate;
mod differences;
mod expected_error;
mod glob;
mod hooks;
mod multi_turn;
mod outcome;
mod preprocess;
mod recording_agent;
mod resume;
mod reward_profile;
mod same_json;
mod scripted_servers;

use std::path::Path;

use serde_json::Value;

pub use outcome::Outcome;

/// Runs a case; the error says what differs.
pub fn run(directory: &Path, case: &Value) -> Result<Outcome, String> {
    match case["suite"].as_str().unwrap_or_default() {
        "preprocess" => preprocess::run(directory, case).map(|()| Outcome::Passed),
        "glob" => glob::run(directory, case).map(|()| Outcome::Passed),
        "reward_profile" => reward_profile::run(directory, case),
        "aggregate" => aggregate::run(directory, case),
        "resume" => resume::run(directory, case),
        "multi_turn" => multi_turn::run(directory, case).map(|()| Outcome::Passed),
        other => Ok(Outcome::NotSupported(format!(
            "the suite '{other}' is about what is not built yet"
        ))),
    }
}
