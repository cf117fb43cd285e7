//! What a sweep would do, did and measured, for people or as JSON.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::text::{self, Table, number_or_dash};
use super::{ShowError, status};
use crate::report::{
    AgentMetric, Estimate, MetricsReport, PassAt, ProfileReport, StopReason, SweepPlan, SweepReport,
};
use crate::store::RunState;

/// Formats a JSON event: one object on one line.
pub fn event(kind: &str, fields: &Value) -> String {
    let mut object = serde_json::Map::new();
    object.insert("event".into(), kind.into());
    if let Value::Object(fields) = fields {
        object.extend(fields.clone());
    }
    Value::Object(object).to_string()
}

/// Prints what a sweep would do.
///
/// `verbose`: the physical plan, too.
pub fn plan(plan: &SweepPlan, as_json: bool, verbose: bool) -> Result<(), ShowError> {
    let mut output = io::stdout().lock();
    if as_json {
        let agents: Vec<Value> = plan
            .agents
            .iter()
            .map(|agent| {
                json!({
                    "agent_name": agent.agent_name,
                    "address": plan.addresses.get(&agent.agent_name),
                    "num_tasks": agent.num_tasks,
                    "num_rollouts": agent.num_rollouts,
                    "request_bytes": agent.request_bytes,
                    "num_done": agent.num_done,
                    "num_failed": agent.num_failed,
                })
            })
            .collect();
        let value = json!({
            "num_pending": plan.num_pending(),
            "agents": agents,
            "partitions": plan.partitions,
            "estimate": plan.estimate,
            "physical_plan": plan.physical,
        });
        writeln!(output, "{value:#}")?;
        return Ok(());
    }
    let planned: u64 = plan.agents.iter().map(|agent| agent.num_rollouts).sum();
    // Rollouts that are done are not sent again; their requests count as average ones.
    let bytes = plan.request_bytes() as f64 * plan.num_pending() as f64 / planned.max(1) as f64;
    writeln!(
        output,
        "{} of {} rollouts would be sent, about {} of requests; nothing was.",
        text::count(plan.num_pending()),
        text::count(planned),
        bytesize::ByteSize(bytes as u64),
    )?;
    writeln!(output, "{}\n", time_and_cost(&plan.estimate))?;
    let mut table = Table::new([
        "agent", "address", "tasks", "rollouts", "done", "failed", "pending",
    ]);
    for agent in &plan.agents {
        table.row([
            agent.agent_name.clone(),
            plan.addresses
                .get(&agent.agent_name)
                .cloned()
                .unwrap_or_default(),
            text::count(agent.num_tasks),
            text::count(agent.num_rollouts),
            text::count(agent.num_done),
            text::count(agent.num_failed),
            text::count(agent.num_pending()),
        ]);
    }
    writeln!(output, "{table}")?;
    if verbose {
        writeln!(output, "\n{}", plan.physical.trim_end())?;
    }
    Ok(())
}

fn time_and_cost(estimate: &Estimate) -> String {
    let span = |seconds: f64| text::duration(Duration::from_secs_f64(seconds.min(1e9)));
    let done = text::count(estimate.num_done);
    let cost = estimate.cost.map_or_else(String::new, |cost| {
        format!(", and about {cost:.2} for tokens")
    });
    match estimate.seconds {
        Some(seconds) if estimate.num_done > 0 => format!(
            "They would take about {}{cost}, going by the {done} that are done.",
            span(seconds)
        ),
        _ if estimate.least_seconds > 0.0 => format!(
            "They would take {} or longer, at this number of requests per second.",
            span(estimate.least_seconds)
        ),
        _ => "How long they take is not known before some are done: `collect --dispatch-budget-s 60` sends for a minute, \
              and `plan --resume` then says."
            .to_owned(),
    }
}

/// Prints what a sweep did: a table of key metrics per agent, its counts, and the paths of what it wrote.
pub fn report(report: &SweepReport, as_json: bool) -> Result<(), ShowError> {
    let mut output = io::stdout().lock();
    if as_json {
        writeln!(output, "{}", event("finished", &summary(report)))?;
        return Ok(());
    }
    if !report.metrics.is_empty() {
        let scores = report.metrics.iter().filter(|metric| metric.is_score);
        writeln!(output, "{}", metrics_table(scores, None))?;
    }
    let counts = report.rollouts;
    if let Some(status) = &report.status {
        writeln!(output, "{}", status::counts(status))?;
        writeln!(output, "{}", status::failures(status))?;
    }
    writeln!(
        output,
        "{} in {}: {} of {} rollouts done, {}, {} pending",
        report.state,
        text::duration(report.elapsed),
        text::count(counts.done),
        text::count(counts.planned),
        text::failures(&report.total.failed),
        text::count(counts.pending),
    )?;
    if let Some(groups) = &report.groups {
        let (committed, skipped) = (text::count(groups.committed), text::count(groups.skipped));
        writeln!(output, "groups: {committed} committed, {skipped} skipped")?;
    }
    for path in &report.written {
        writeln!(output, "  {path}")?;
    }
    let why = match (report.state, report.stopped_by) {
        (RunState::Finished, _) => return Ok(()),
        (_, Some(StopReason::DispatchBudget)) => {
            "Its --dispatch-budget-s is spent: the rest was not sent. "
        }
        (_, Some(StopReason::Deadline)) => "Its --deadline has passed. ",
        (_, Some(StopReason::MaxFailures)) => "--max-failures rollouts failed. ",
        (_, Some(StopReason::MaxErrorRate)) => "More than --max-error-rate of it failed. ",
        (RunState::Incomplete, _) => "Some rollouts are still pending. ",
        _ => "",
    };
    writeln!(output, "{why}Go on with the same command and --resume.")?;
    Ok(())
}

/// Prints what was measured: a table per agent and metric, and the share of the rollouts that it covers. Numbers that are
/// not scores are left out, unless `shows_all`.
pub fn metrics(report: &MetricsReport, as_json: bool, shows_all: bool) -> Result<(), ShowError> {
    let mut output = io::stdout().lock();
    if as_json {
        writeln!(output, "{:#}", json!(report))?;
        return Ok(());
    }
    let is_shown = |metric: &&AgentMetric| shows_all || metric.is_score;
    if !report.metrics.is_empty() {
        let by = report.by.as_deref();
        let shown = report.metrics.iter().filter(is_shown);
        writeln!(output, "{}", metrics_table(shown, by))?;
    }
    let hidden = report.metrics.iter().filter(|metric| !is_shown(metric));
    let hidden: BTreeSet<&str> = hidden.map(|metric| metric.metric.as_str()).collect();
    if !hidden.is_empty() {
        let names: Vec<&str> = hidden.into_iter().collect();
        writeln!(
            output,
            "not scores, shown with --all: {}\n",
            names.join(", ")
        )?;
    }
    for agent in &report.coverage {
        let masked = match agent.masked.unsigned_abs() {
            0 => String::new(),
            masked => format!(", {} masked", text::count(masked)),
        };
        writeln!(output, "{}{masked}", text::coverage(agent))?;
    }
    for path in &report.written {
        writeln!(output, "  {path}")?;
    }
    Ok(())
}

/// Prints how much of a sweep was profiled, and the paths of what was written.
pub fn profile(report: &ProfileReport, as_json: bool) -> Result<(), ShowError> {
    let mut output = io::stdout().lock();
    if as_json {
        writeln!(output, "{:#}", json!(report))?;
        return Ok(());
    }
    if let Value::Object(fields) = json!(report.completion) {
        for (name, value) in fields {
            writeln!(output, "{name:30} {value}")?;
        }
    }
    for path in &report.written {
        writeln!(output, "  {path}")?;
    }
    Ok(())
}

/// Returns a row for each metric. `by` names the column of the subsets.
fn metrics_table<'a>(
    metrics: impl Iterator<Item = &'a AgentMetric> + Clone,
    by: Option<&str>,
) -> Table {
    let has_bounds = metrics.clone().any(|metric| metric.bound.is_some());
    let bound = has_bounds.then_some("bound");
    let header = [
        "mean", "stderr", "std", "min", "median", "max", "count", "pass@k", "pass^k",
    ];
    let names = ["agent", "metric"].into_iter().chain(by).chain(bound);
    let mut table = Table::new(names.chain(header));
    for metric in metrics {
        let pass = |value: fn(&PassAt) -> f64, sign: char| {
            let pass = metric.pass_at.filter(|pass| pass.k > 1);
            let text =
                pass.map(|pass| format!("{} ({sign}{})", text::number(value(&pass)), pass.k));
            text.unwrap_or_default()
        };
        let subset = metric.subset.as_deref().unwrap_or("(all)");
        let bound = metric.bound.unwrap_or_default();
        let names = [metric.agent_name.clone(), metric.metric.clone()];
        let names = names.into_iter().chain(by.map(|_| subset.to_owned()));
        let names = names.chain(has_bounds.then(|| bound.to_owned()));
        table.row(names.chain([
            number_or_dash(metric.mean),
            number_or_dash(metric.stderr),
            number_or_dash(metric.std),
            number_or_dash(metric.min),
            number_or_dash(metric.median),
            number_or_dash(metric.max),
            text::count(metric.count),
            pass(|pass| pass.pass_at_k, '@'),
            pass(|pass| pass.pass_hat_k, '^'),
        ]));
    }
    table
}

fn summary(report: &SweepReport) -> Value {
    json!({
        "state": report.state,
        "agents": report.status.as_ref().map(|status| &status.agents),
        "rollouts": report.rollouts,
        "failed": report.total.failed,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
        "metrics": report.metrics,
        "groups": report.groups,
        "written": report.written,
    })
}
