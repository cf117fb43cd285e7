//! Suite `health`: from rollouts to what their evidence says of them.

use rollstream::health::{HealthOptions, QUALITY_SUMMARY, ROLLOUT_VERDICTS, check_files};
use rollstream::store::RunStore;

use super::case::Case;
use super::expected_error::{block_on, read};
use super::outcome::Outcome;
use super::same_json::{same, same_lines};

/// Little, so that something goes to temporary files.
const MEMORY: usize = 1 << 22;

/// Runs a case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let output = tempfile::tempdir().map_err(|error| error.to_string())?;
    let name = case.json["rollouts"].as_str().unwrap_or_default();
    let ignored = case.json["options"]["ignored_checks"].as_array();
    let ignored = ignored.into_iter().flatten();
    let options = HealthOptions {
        ignored: ignored
            .filter_map(|check| check.as_str().map(str::to_owned))
            .collect(),
        memory: MEMORY,
    };
    let place = output.path().to_str().unwrap_or_default();
    let place = RunStore::open(place, None).map_err(|error| error.to_string())?;
    // The program was run in the case's folder.
    let files = [(case.directory.join(name), name.to_owned())];
    let checked = block_on(check_files(&files, &place, &options))?;
    checked.map_err(|error| error.to_string())?;
    let both = |name: &str| -> Result<_, String> {
        Ok((
            read(&case.expected.join(name))?,
            read(&output.path().join(name))?,
        ))
    };
    let (wanted, got) = both(ROLLOUT_VERDICTS)?;
    same_lines(&wanted, &got).map_err(|error| format!("{ROLLOUT_VERDICTS}: {error}"))?;
    let (wanted, got) = both(QUALITY_SUMMARY)?;
    same(&wanted, &got).map_err(|error| format!("{QUALITY_SUMMARY}: {error}"))?;
    Ok(Outcome::Passed)
}
