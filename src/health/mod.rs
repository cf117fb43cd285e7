//! Checks the health of rollouts as NeMo Gym 0.7 does.
//!
//! [`check_files`] and [`check_run`] give NeMo Gym's rows one by one to a `HealthCheck`, which makes tables of the
//! evidence in them. Every file of `queries/health` is a check: a query over these tables, whose rows are its findings.
//! A rollout with a finding is unhealthy; one for which a check has no evidence is unobserved; others are healthy.
//! [`HealthReport`] has the counts, and two files the details. `check --health` and the end of a collection use this.

mod calls;
mod check;
mod error;
mod evidence;
mod report;
mod rules;
mod shape;
mod tables;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

pub use check::HealthOptions;
pub use error::HealthError;
pub use report::{HealthReport, QUALITY_SUMMARY, ROLLOUT_VERDICTS};

use self::check::HealthCheck;
use self::evidence::Place;
use crate::export::RolloutRows;
use crate::store::{Document, RunRecord, RunStore};

/// Checks the rollouts in NeMo Gym's files, each a path and its name in messages, and writes the two reports into
/// `place`. Blank lines are skipped.
///
/// # Errors
/// A file cannot be read, a record does not say which rollout it is, or the reports cannot be written.
pub async fn check_files(
    files: &[(PathBuf, String)],
    place: &RunStore,
    options: &HealthOptions,
) -> Result<HealthReport, HealthError> {
    let mut check = HealthCheck::new(options)?;
    for (file, (path, shown)) in files.iter().enumerate() {
        let failed = |source| HealthError::Read {
            path: path.clone(),
            source,
        };
        let reader = BufReader::new(File::open(path).map_err(failed)?);
        for (line, text) in (1..).zip(reader.split(b'\n')) {
            let text = text.map_err(failed)?;
            let row = text.trim_ascii();
            if !row.is_empty() {
                check.add(row, Place { file, shown, line })?;
            }
        }
    }
    finish(check, place).await
}

/// Checks the rollouts of a run as its export would write them, and writes the two reports into `place`.
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
    while let Some(row) = rows.next().await? {
        line += 1;
        let (file, shown) = (0, &*shown);
        check.add(row.as_bytes(), Place { file, shown, line })?;
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
