//! What the suites of metrics share: expected errors, and a place to run queries.

use std::fs;
use std::future::Future;
use std::path::Path;

use serde_json::Value;

use super::outcome::Outcome;

/// Runs to the end.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    Ok(runtime.block_on(future))
}

/// A file's text.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Compares a message with the one that a case expects.
pub fn check_error(case_dir: &Path, expected: &Path, message: &str) -> Result<Outcome, String> {
    let text = read(&expected.join("error.json"))?;
    let error: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let in_place = |key: &str| {
        let text = error[key].as_str().unwrap_or_default();
        text.replace("{CASE_DIR}", &case_dir.to_string_lossy())
    };
    let compare = error["compare"].as_str().unwrap_or_default();
    let (wanted, same) = match compare {
        "exact" => (in_place("message"), message == in_place("message")),
        "prefix" => (
            in_place("fragment"),
            message.starts_with(&in_place("fragment")),
        ),
        "contains" => (
            in_place("fragment"),
            message.contains(&in_place("fragment")),
        ),
        "any_error" => (String::new(), true),
        other => return Err(format!("unknown comparison {other}")),
    };
    if same {
        Ok(Outcome::Passed)
    } else {
        Err(format!("{compare}: expected {wanted:?}, got {message:?}"))
    }
}
