//! Suite `glob`: the files that lists of patterns stand for.

use std::fs;
use std::path::Path;

use rollstream::python::glob;
use serde_json::Value;

/// Runs all queries of a case in its tree.
pub fn run(case_dir: &Path, case: &Value) -> Result<(), String> {
    let folder = case["working_directory"].as_str().unwrap_or("tree");
    let path = case_dir.join("expected/expanded.json");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let expected: Vec<Vec<String>> =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let queries: Vec<String> = serde_json::from_value(case["queries"].clone())
        .map_err(|error| format!("queries: {error}"))?;
    if queries.len() != expected.len() {
        return Err(format!(
            "{} queries, but {} expectations",
            queries.len(),
            expected.len()
        ));
    }
    for (query, expected) in queries.iter().zip(&expected) {
        let found = glob(query, &case_dir.join(folder));
        if found != *expected {
            return Err(format!("{query:?}: expected {expected:?}, got {found:?}"));
        }
    }
    Ok(())
}
