//! Checks the health of rollouts, for `check --health` and at the end of `collect` and `aggregate`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::runs::{given_run, is_file, open, open_recorded};
use crate::error::Error;
use crate::health::{HealthOptions, HealthReport, check_files, check_run};
use crate::import::is_shard;
use crate::python::glob;
use crate::store::RunRecord;

/// A run or rollout files, and the report on their health.
pub(super) struct CheckedRun {
    given: String,
    report: HealthReport,
}

impl CheckedRun {
    /// Checks a run or files, and writes the reports into the run, or beside the first file.
    pub(super) async fn of(given: &str, options: &HealthOptions) -> Result<Self, Error> {
        let report = if is_file(given) {
            let files = glob(given, Path::new("."));
            let files: Vec<String> = files.into_iter().filter(|path| is_shard(path)).collect();
            let Some(first) = files.first() else {
                let usage = format!("no files of rollouts match '{given}'");
                return Err(Error::Usage(usage));
            };
            let place = open(&directory(first))?;
            let files = files.into_iter().map(|path| (PathBuf::from(&path), path));
            check_files(&files.collect::<Vec<_>>(), &place, options).await?
        } else {
            let (run, record) = open_recorded(&given_run(given)?.place).await?;
            check_run(&run, &record, &run, options).await?
        };
        Ok(Self {
            given: given.to_owned(),
            report,
        })
    }

    pub(super) fn is_passed(&self) -> bool {
        self.report.unhealthy == 0
    }

    /// Returns the result for people: a line, the checks that found something, and the files written.
    pub(super) fn text(&self) -> String {
        let word = if self.is_passed() { "ok  " } else { "FAIL " };
        let sentence = sentence(&self.report);
        let mut text = format!("{word}Health of {}: {sentence}\n", self.given);
        for check in self.report.checks.iter().filter(|check| check.found > 0) {
            let _ = writeln!(text, "{:>9}  {}", check.found, check.id);
        }
        for file in &self.report.written {
            let _ = writeln!(text, "  {file}");
        }
        text
    }

    /// Returns the result for programs.
    pub(super) fn json(&self) -> Value {
        json!({
            "run": self.given,
            "passed": self.is_passed(),
            "summary": self.report.run,
            "written": self.report.written,
        })
    }
}

fn sentence(report: &HealthReport) -> String {
    let mut text = format!(
        "{} rollouts, {} healthy, {} unhealthy, {} unobserved",
        report.checked, report.healthy, report.unhealthy, report.unobserved
    );
    if !report.ignored.is_empty() {
        text.push_str(&format!(" (without {})", report.ignored.join(", ")));
    }
    text
}

/// Checks the rollouts of a finished collection if the rules of its run ask for it. Returns a note on the result.
pub(super) async fn check_collected(
    rollouts: &str,
    run: &str,
    options: &HealthOptions,
) -> Result<Option<String>, Error> {
    let record = RunRecord::load(&open(run)?).await?;
    if !record.is_some_and(|record| record.rules().health) {
        let unasked = "the rules of NeMo Gym 0.5 include no health checks; add --gym 0.7, or use `rollstream check \
                       --health`";
        return Ok((!options.ignored.is_empty()).then(|| unasked.to_owned()));
    }
    check_file(rollouts, options).await.map(Some)
}

/// Checks the rollouts of a file, and writes the reports beside it. Returns a note on the result.
pub(super) async fn check_file(rollouts: &str, options: &HealthOptions) -> Result<String, Error> {
    let files = [(PathBuf::from(rollouts), rollouts.to_owned())];
    let report = check_files(&files, &open(&directory(rollouts))?, options).await?;
    Ok(format!("health of {rollouts}: {}", sentence(&report)))
}

fn directory(file: &str) -> String {
    let parent = Path::new(file).parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or_else(|| ".".to_owned(), |parent| parent.display().to_string())
}
