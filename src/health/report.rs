//! [`HealthReport`], and the summary file.

use std::io::Write;

use datafusion::prelude::SessionContext;
use serde_json::{Map, Value, json};

use super::error::HealthError;
use super::rules::{Rule, Rules, Scope};
use crate::json::quote;
use crate::session::{Rows, row};

/// The name of the file with the counts.
pub const QUALITY_SUMMARY: &str = "quality_summary.json";
/// The name of the file with the verdicts.
pub const ROLLOUT_VERDICTS: &str = "rollout_verdicts.jsonl";

const TASKS: &str = include_str!("../../queries/health/report/tasks.sql");
const STATISTICS: &str = include_str!("../../queries/health/report/statistics.sql");
const FAILURES: &str = include_str!("../../queries/health/report/failures_by_status.sql");

/// How many rollouts are healthy, and what was found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HealthReport {
    /// Rollouts without a finding, for which every check had evidence.
    pub healthy: u64,
    /// Rollouts with a finding.
    pub unhealthy: u64,
    /// Rollouts without a finding, for which some check had no evidence.
    pub unobserved: u64,
    /// Checks that were left out.
    pub ignored: Vec<String>,
    /// All checks, in their order, and what they found.
    pub checks: Vec<Rule>,
    /// What the summary says of the run as a whole.
    pub run: Value,
    /// The paths or URLs of the files that were written.
    pub written: Vec<String>,
    /// The number of all rollouts.
    pub checked: u64,
    pub(super) num_tasks: u64,
}

impl HealthReport {
    pub(super) fn new(rules: &Rules, checked: u64) -> Self {
        Self {
            ignored: rules.ignored().into_iter().map(str::to_owned).collect(),
            checks: rules.0.clone(),
            checked,
            ..Self::default()
        }
    }

    pub(super) fn id(&self, rule: usize) -> &str {
        self.checks.get(rule).map_or("", |check| &check.id)
    }

    pub(super) fn count(&mut self, rule: usize, found: u64, unobserved: u64) {
        if let Some(check) = self.checks.get_mut(rule) {
            check.found += found;
            check.unobserved += unobserved;
        }
    }

    /// Counts a rollout; returns its verdict.
    pub(super) fn judged(&mut self, has_findings: bool, unobserved: &[usize]) -> &'static str {
        for rule in unobserved {
            self.count(*rule, 0, 1);
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
            let all = if check.scope == Scope::Tasks {
                self.num_tasks
            } else {
                self.checked
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
        let found = |check: &Rule| (check.id.clone(), check.found.into());
        self.checks.iter().map(found).collect()
    }
}

row! {
    #[derive(Default)]
    struct Sums {
        captures: i64,
        replayed_calls: i64,
        replaying_rollouts: i64,
        input_tokens: i64,
        output_tokens: i64,
        failed_calls: i64,
        failing_rollouts: i64,
        captured_input_tokens: i64,
        captured_output_tokens: i64,
        ended_on_failure: i64,
    }
}

row! {
    struct Failures {
        status: String,
        failed_calls: i64,
    }
}

row! {
    struct Task {
        name: String,
        repeats: i64,
        healthy: i64,
        unhealthy: i64,
        unobserved: i64,
        /// The rules that found something.
        flags: Vec<i64>,
    }
}

/// Writes the summary, task by task.
pub(super) async fn write_summary(
    report: &mut HealthReport,
    session: &SessionContext,
    out: &mut (dyn Write + Send),
) -> Result<(), HealthError> {
    let sums = Rows::of(session, STATISTICS, Sums::rows)
        .await?
        .next()
        .await?;
    let sums = sums.unwrap_or_default();
    let mut by_status = Map::new();
    let mut failures = Rows::of(session, FAILURES, Failures::rows).await?;
    while let Some(row) = failures.next().await? {
        by_status.insert(row.status, row.failed_calls.into());
    }
    report.run = json!({
        "ignored_checks": report.ignored,
        "artifacts": {
            "records": report.checked,
            "captures": sums.captures,
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
                "total": sums.failed_calls,
                "by_status": by_status,
                "rollouts_affected": sums.failing_rollouts,
                "ended_on_error": sums.ended_on_failure,
            },
            "duplicated_calls": {
                "replayed": sums.replayed_calls,
                "rollouts": sums.replaying_rollouts,
            },
            "tokens": {
                "prompt": sums.input_tokens,
                "completion": sums.output_tokens,
                "capture_prompt": sums.captured_input_tokens,
                "capture_completion": sums.captured_output_tokens,
            },
        },
    });
    write!(
        out,
        "{{\n  \"run\": {},\n  \"tasks\": {{",
        indented(&report.run, 2)
    )?;
    let mut tasks = Rows::of(session, TASKS, Task::rows).await?;
    let mut separator = "\n";
    while let Some(task) = tasks.next().await? {
        let flags = task.flags.iter().filter_map(|rule| (*rule).try_into().ok());
        let flags: Vec<&str> = flags.map(|rule| report.id(rule)).collect();
        let counts = json!({
            "repeats": task.repeats,
            "healthy": task.healthy,
            "unhealthy": task.unhealthy,
            "unobserved": task.unobserved,
            "flags": flags,
        });
        let (name, counts) = (quote(&task.name), indented(&counts, 4));
        write!(out, "{separator}    {name}: {counts}")?;
        separator = ",\n";
    }
    let end = if separator == "\n" { "" } else { "\n  " };
    Ok(write!(out, "{end}}}\n}}\n")?)
}

/// Formats a value over several lines, indented by `spaces`.
fn indented(value: &Value, spaces: usize) -> String {
    // In JSON text a raw line break can only stand between values.
    format!("{value:#}").replace('\n', &format!("\n{:spaces$}", ""))
}
