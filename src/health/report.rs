//! [`HealthReport`], and the summary file.

use std::io::Write;

use arrow::array::AsArray;
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use serde_json::{Map, Value, json};

use super::error::HealthError;
use super::rules::{Rules, Scope};
use crate::json::quote;
use crate::measure::Column;

/// The name of the file with the counts.
pub const QUALITY_SUMMARY: &str = "quality_summary.json";
/// The name of the file with the verdicts.
pub const ROLLOUT_VERDICTS: &str = "rollout_verdicts.jsonl";

const TASKS: &str = include_str!("../../queries/health/report/tasks.sql");
const STATISTICS: &str = include_str!("../../queries/health/report/statistics.sql");
const FAILURES: &str = include_str!("../../queries/health/report/failures_by_status.sql");

/// How many rollouts are healthy, and what was found.
#[derive(Debug, Clone, PartialEq)]
pub struct HealthReport {
    /// Rollouts without a finding that every check had evidence of.
    pub healthy: u64,
    /// Rollouts with a finding.
    pub unhealthy: u64,
    /// Rollouts without a finding that some check had no evidence of.
    pub unobserved: u64,
    /// Checks that were left out.
    pub ignored: Vec<String>,
    /// All checks, in their order.
    pub checks: Vec<CheckCount>,
    /// What the summary says of the run as a whole.
    pub run: Value,
    /// The files that were written, as a person names them.
    pub written: Vec<String>,
    pub(super) num_tasks: u64,
    num_records: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckCount {
    /// The check.
    pub id: String,
    /// Its findings.
    pub found: u64,
    unobserved: u64,
    is_ignored: bool,
    is_of_tasks: bool,
}

impl HealthReport {
    pub(super) fn new(rules: &Rules, num_records: u64) -> Self {
        let checks = rules.0.iter().map(|rule| CheckCount {
            id: rule.id.clone(),
            found: 0,
            unobserved: 0,
            is_ignored: rule.is_ignored,
            is_of_tasks: rule.scope == Scope::Tasks,
        });
        Self {
            healthy: 0,
            unhealthy: 0,
            unobserved: 0,
            ignored: rules.ignored().into_iter().map(str::to_owned).collect(),
            checks: checks.collect(),
            run: Value::Null,
            written: Vec::new(),
            num_tasks: 0,
            num_records,
        }
    }

    /// Rollouts in all.
    pub fn checked(&self) -> u64 {
        self.num_records
    }

    pub(super) fn id(&self, rule: usize) -> &str {
        self.checks.get(rule).map_or("", |check| &check.id)
    }

    pub(super) fn is_ignored(&self, rule: usize) -> bool {
        self.checks.get(rule).is_none_or(|check| check.is_ignored)
    }

    pub(super) fn found(&mut self, rule: usize) {
        if let Some(check) = self.checks.get_mut(rule) {
            check.found += 1;
        }
    }

    pub(super) fn found_of_tasks(&mut self, rule: i64, found: i64, unobserved: i64) {
        let rule = usize::try_from(rule).ok();
        if let Some(check) = rule.and_then(|rule| self.checks.get_mut(rule)) {
            check.found = found.unsigned_abs();
            check.unobserved = unobserved.unsigned_abs();
        }
    }

    /// Counts a rollout; returns its verdict.
    pub(super) fn judged(&mut self, has_findings: bool, unobserved: &[usize]) -> &'static str {
        for rule in unobserved {
            if let Some(check) = self.checks.get_mut(*rule) {
                check.unobserved += 1;
            }
        }
        let (count, verdict) = if has_findings {
            (&mut self.unhealthy, "unhealthy")
        } else if unobserved.is_empty() {
            (&mut self.healthy, "healthy")
        } else {
            (&mut self.unobserved, "unobserved")
        };
        *count += 1;
        verdict
    }

    fn coverage(&self) -> Map<String, Value> {
        let coverage = self.checks.iter().map(|check| {
            let all = if check.is_of_tasks {
                self.num_tasks
            } else {
                self.num_records
            };
            let counts = if check.is_ignored {
                json!({"evaluated": 0, "unobserved": 0, "ignored": all})
            } else {
                let evaluated = all.saturating_sub(check.unobserved);
                json!({"evaluated": evaluated, "unobserved": check.unobserved, "ignored": 0})
            };
            (check.id.clone(), counts)
        });
        coverage.collect()
    }

    fn issues(&self) -> Map<String, Value> {
        let checks = self.checks.iter();
        checks
            .map(|check| (check.id.clone(), check.found.into()))
            .collect()
    }
}

/// Writes the summary, task by task.
pub(super) async fn write_summary(
    report: &mut HealthReport,
    session: &SessionContext,
    out: &mut (dyn Write + Send),
) -> Result<(), HealthError> {
    let statistics = session.sql(STATISTICS).await?;
    let schema = statistics.schema().inner().clone();
    let sums = concat_batches(&schema, &statistics.collect().await?)?;
    let sum = |name: &str| -> Result<i64, HealthError> {
        Ok(i64::read(&sums, name)?.first().copied().unwrap_or_default())
    };
    let mut by_status = Map::new();
    for batch in session.sql(FAILURES).await?.collect().await? {
        let failed = i64::read(&batch, "failed_calls")?
            .into_iter()
            .map(Value::from);
        by_status.extend(String::read(&batch, "status")?.into_iter().zip(failed));
    }
    report.run = json!({
        "ignored_checks": report.ignored,
        "artifacts": {
            "records": report.num_records,
            "captures": sum("captures")?,
            "coverage": report.coverage(),
        },
        "verdicts": {
            "healthy": report.healthy,
            "unhealthy": report.unhealthy,
            "unobserved": report.unobserved,
        },
        "issues": report.issues(),
        "stats": {
            "model_call_errors": {
                "total": sum("failed_calls")?,
                "by_status": by_status,
                "rollouts_affected": sum("failing_rollouts")?,
                "ended_on_error": sum("ended_on_failure")?,
            },
            "duplicated_calls": {
                "replayed": sum("replayed_calls")?,
                "rollouts": sum("replaying_rollouts")?,
            },
            "tokens": {
                "prompt": sum("input_tokens")?,
                "completion": sum("output_tokens")?,
                "capture_prompt": sum("captured_input_tokens")?,
                "capture_completion": sum("captured_output_tokens")?,
            },
        },
    });
    write!(
        out,
        "{{\n  \"run\": {},\n  \"tasks\": {{",
        indented(&report.run, 2)
    )?;
    let tasks = session.sql(TASKS).await?;
    let mut batches = tasks.execute_stream().await?;
    let mut separator = "\n";
    while let Some(batch) = batches.try_next().await? {
        write_tasks(report, &batch, &mut separator, out)?;
    }
    let end = if separator == "\n" { "" } else { "\n  " };
    Ok(write!(out, "{end}}}\n}}\n")?)
}

fn write_tasks(
    report: &HealthReport,
    batch: &RecordBatch,
    separator: &mut &'static str,
    out: &mut (dyn Write + Send),
) -> Result<(), HealthError> {
    let names = String::read(batch, "name")?;
    let count = |name| i64::read(batch, name);
    let (repeats, healthy) = (count("repeats")?, count("healthy")?);
    let (unhealthy, unobserved) = (count("unhealthy")?, count("unobserved")?);
    let flags = batch.column_by_name("flags");
    let flags = flags.and_then(|flags| flags.as_list_opt::<i32>());
    for (row, name) in names.iter().enumerate() {
        // Null where there are none.
        let rules = flags.map(|flags| flags.value(row));
        let rules = rules
            .as_ref()
            .and_then(|rules| rules.as_primitive_opt::<Int64Type>());
        let rules = rules.into_iter().flatten().flatten();
        let rules = rules.filter_map(|rule| usize::try_from(rule).ok());
        let flags: Vec<&str> = rules.map(|rule| report.id(rule)).collect();
        let at = |counts: &[i64]| counts.get(row).copied().unwrap_or_default();
        let task = json!({
            "repeats": at(&repeats),
            "healthy": at(&healthy),
            "unhealthy": at(&unhealthy),
            "unobserved": at(&unobserved),
            "flags": flags,
        });
        write!(
            out,
            "{separator}    {}: {}",
            quote(name),
            indented(&task, 4)
        )?;
        *separator = ",\n";
    }
    Ok(())
}

/// A value over several lines, indented by `spaces`.
fn indented(value: &Value, spaces: usize) -> String {
    // In JSON text a raw line break can only stand between values.
    format!("{value:#}").replace('\n', &format!("\n{:spaces$}", ""))
}
