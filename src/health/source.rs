//! Where the rows come from that are checked.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use super::check::{HealthCheck, HealthOptions};
use super::error::HealthError;
use super::report::{HealthReport, QUALITY_SUMMARY, ROLLOUT_VERDICTS};
use crate::export::RolloutRows;
use crate::store::{Document, RunRecord, RunStore};

/// Checks the rollouts in NeMo Gym's files, each a path and what people call it, and writes the two reports into
/// `place`. Blank lines are passed over.
///
/// # Errors
/// A file cannot be read, a record does not say which rollout it is, or the reports cannot be written.
pub async fn check_files(
    files: &[(PathBuf, String)],
    place: &RunStore,
    options: &HealthOptions,
) -> Result<HealthReport, HealthError> {
    let mut check = HealthCheck::new(options)?;
    for (number, (path, shown)) in files.iter().enumerate() {
        let failed = |source| HealthError::Read {
            path: path.clone(),
            source,
        };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        for line_number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
                break;
            }
            let row = line.trim_ascii();
            if !row.is_empty() {
                check.add(row, number, shown, line_number)?;
            }
        }
    }
    finish(check, place).await
}

/// Checks the rollouts of a run as its export has them, and writes the two reports into `place`.
///
/// # Errors
/// The run cannot be read, or the reports cannot be written.
pub async fn check_run(
    run: &RunStore,
    record: &RunRecord,
    place: &RunStore,
    options: &HealthOptions,
) -> Result<HealthReport, HealthError> {
    let mut check = HealthCheck::new(options)?;
    let shown = run.display("");
    let mut rows = RolloutRows::of(run, record).await?;
    let mut line = 0;
    while let Some(batch) = rows.next().await? {
        for row in batch {
            line += 1;
            check.add(row.as_bytes(), 0, &shown, line)?;
        }
    }
    finish(check, place).await
}

async fn finish(check: HealthCheck, place: &RunStore) -> Result<HealthReport, HealthError> {
    let mut verdicts = Document::create(place, ROLLOUT_VERDICTS)?;
    let mut summary = Document::create(place, QUALITY_SUMMARY)?;
    let mut report = check.finish(&mut verdicts, &mut summary).await?;
    for document in [summary, verdicts] {
        report.written.push(document.finish().await?);
    }
    Ok(report)
}
