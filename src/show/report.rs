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
                    "request_bytes": plan.request_bytes.get(&agent.agent_name),
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
    let bytes = plan.request_bytes.values().sum::<u64>() as f64 * plan.num_pending() as f64
        / planned.max(1) as f64;
    let summary = format!(
        "{} of {} rollouts would be sent, about {} of requests; nothing was.\n{}",
        text::count(plan.num_pending()),
        text::count(planned),
        bytesize::ByteSize(bytes as u64),
        time_and_cost(&plan.estimate)
    );
    let width = text::terminal_width(io::stdout());
    writeln!(output, "{}\n", text::wrapped(&summary, 2, width))?;
    let mut table = Table::new([
        "agent", "address", "tasks", "rollouts", "done", "failed", "pending",
    ])
    .least(&["tasks", "address"]);
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

/// Formats the end of a sweep: the verdict, the metrics, what failed and why, where it is, and what to do next.
fn end(report: &SweepReport, width: Option<usize>, verbose: bool) -> String {
    let mut text = text::wrapped(&verdict(report), 2, width) + "\n";
    if let Some(why) = why_stopped(report) {
        text.push_str(&(text::wrapped(why, 2, width) + "\n"));
    }
    if !report.metrics.is_empty() {
        let scores = report.metrics.iter().filter(|metric| metric.is_score);
        text.push_str(&format!("\n{}", metrics_table(scores, None)));
    }
    if let Some(status) = &report.status {
        if status.agents.len() > 1 {
            text.push_str(&format!("\n{}", status::counts(status)));
        }
        text.push_str(&status::failures(status, width, verbose));
    }
    let place = text::one_line(report.place.trim_end_matches('/'));
    text.push_str(&format!("\nresults: {place}\n"));
    if let Some(groups) = report.groups.as_ref().filter(|groups| groups.skipped > 0) {
        let (committed, skipped) = (text::count(groups.committed), text::count(groups.skipped));
        text.push_str(&format!(
            "groups for a trainer: {committed} prompts written, {skipped} left out because rollouts of them are missing\n"
        ));
    }
    let place = text::quoted(&place);
    for (command, what) in next_commands(report) {
        let command = format!("  rollstream {}", command.replace("RUN", &place));
        let comment = format!("{command:42}  # {what}");
        // Half a remark is worth nothing.
        let fits = width.is_none_or(|width| comment.chars().count() <= width);
        let line = if fits { comment } else { command };
        text.push_str(&format!("{line}\n"));
    }
    text
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

/// Prints the end of a sweep: the verdict, the metrics, what failed and why, and what to do next.
///
/// `verbose`: whole errors.
pub fn report(report: &SweepReport, as_json: bool, verbose: bool) -> Result<(), ShowError> {
    let mut output = io::stdout().lock();
    if as_json {
        writeln!(output, "{}", event("finished", &summary(report)))?;
    } else {
        let width = text::terminal_width(io::stdout());
        write!(output, "{}", end(report, width, verbose))?;
    }
    Ok(())
}

/// `finished in 0.2s (840.0 rollouts/s): 168 of 168 rollouts done, 0 failed, 0 pending`
fn verdict(report: &SweepReport) -> String {
    let counts = report.rollouts;
    let rate = if report.rollouts_per_second > 0.0 {
        let elapsed = text::duration(report.elapsed);
        format!(
            " in {elapsed} ({:.1} rollouts/s)",
            report.rollouts_per_second
        )
    } else {
        String::new()
    };
    format!(
        "{}{rate}: {} of {} rollouts done, {}, {} pending",
        report.state,
        text::count(counts.done),
        text::count(counts.planned),
        text::failures(&report.total.failed),
        text::count(counts.pending),
    )
}

fn why_stopped(report: &SweepReport) -> Option<&'static str> {
    Some(match (report.state, report.stopped_by) {
        (RunState::Finished, _) => return None,
        (_, Some(StopReason::DispatchBudget)) => {
            "Its --dispatch-budget-s is spent: the rest was not sent."
        }
        (_, Some(StopReason::Deadline)) => "Its --deadline has passed.",
        (_, Some(StopReason::MaxFailures)) => "--max-failures rollouts failed.",
        (_, Some(StopReason::MaxErrorRate)) => "More than --max-error-rate of it failed.",
        (RunState::Incomplete, _) => "Some rollouts are still pending.",
        _ => return None,
    })
}

/// Commands that are useful now, and what each does.
fn next_commands(report: &SweepReport) -> Vec<(&'static str, String)> {
    let mut commands = Vec::new();
    if report.rollouts.pending > 0 {
        let pending = text::count(report.rollouts.pending);
        commands.push((
            "resume RUN",
            format!("sends the {pending} that are pending"),
        ));
    }
    if report.rollouts.failed > 0 {
        commands.push(("show RUN --failed", "shows what failed".to_owned()));
    }
    if report.rollouts.done > 0 {
        commands.push(("show RUN --worst", "shows the worst answers".to_owned()));
        let compare = "compares it with another run";
        commands.push(("compare RUN OTHER", compare.to_owned()));
    }
    commands
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
        let names = hidden.into_iter().collect::<Vec<_>>().join(", ");
        let note = format!("not scores, shown with --all: {names}");
        let width = text::terminal_width(io::stdout());
        writeln!(output, "{}\n", text::wrapped(&note, 2, width))?;
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
    let first = metrics.clone().next().map(|metric| &metric.agent_name);
    let has_several = metrics
        .clone()
        .any(|metric| Some(&metric.agent_name) != first);
    let least: &[&str] = if has_several {
        &[
            BAR, "min", "max", "median", "std", "count", "pass^k", "pass@k",
        ]
    } else {
        &[
            BAR, "min", "max", "median", "std", "count", "agent", "pass^k",
        ]
    };
    let has_bars = text::terminal_width(io::stdout()).is_some_and(|width| width >= WIDTH_OF_BARS);
    let bars = has_bars.then_some(BAR);
    let header = [
        "mean", "stderr", "pass@k", "pass^k", "count", "std", "min", "median", "max",
    ];
    let names = ["agent", "metric"].into_iter().chain(by).chain(bound);
    let mut table = Table::new(names.chain(header).chain(bars)).least(least);
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
        let numbers = [
            number_or_dash(metric.mean),
            number_or_dash(metric.stderr),
            pass(|pass| pass.pass_at_k, '@'),
            pass(|pass| pass.pass_hat_k, '^'),
            text::count(metric.count),
            number_or_dash(metric.std),
            number_or_dash(metric.min),
            number_or_dash(metric.median),
            number_or_dash(metric.max),
        ];
        table.row(names.chain(numbers).chain(bars.map(|_| bar(metric))));
    }
    table
}

/// The name of the column of bars.
const BAR: &str = "mean, 0 to 1";

/// Columns that a terminal must have for a column of bars.
const WIDTH_OF_BARS: usize = 100;

/// Draws a mean of values between 0 and 1.
fn bar(metric: &AgentMetric) -> String {
    let is_share = metric.min >= Some(0.0) && metric.max.is_some_and(|max| max <= 1.0);
    let mean = metric.mean.filter(|_| is_share);
    mean.map_or_else(String::new, |mean| {
        let shares = [mean, 1.0 - mean].map(|share| (share * 1e6) as u64);
        let [full, empty] = text::shares(shares, BAR.len());
        "█".repeat(full) + &"░".repeat(empty)
    })
}

fn summary(report: &SweepReport) -> Value {
    json!({
        "state": report.state,
        "agents": report.status.as_ref().map(|status| &status.agents),
        "rollouts": report.rollouts,
        "failed": report.total.failed,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
        "rollouts_per_second": report.rollouts_per_second,
        "metrics": report.metrics,
        "groups": report.groups,
        "written": report.written,
    })
}
