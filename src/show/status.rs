//! How a run is doing, for people or as JSON: [`StatusView`].

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::ShowError;
use super::text::{self, Table, one_line};
use crate::outcome::{OK, SUPERSEDED};
use crate::retry::FailureClass;
use crate::status::{Figures, LockStatus, ObservedState, RunStatus};

/// How the status of a run is shown, on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusForm {
    /// For people.
    Text(Look),
    /// For people, on a terminal, each in place of the one before.
    Screen(Look),
    /// One JSON document on several lines.
    Json,
    /// One JSON document a line.
    JsonLines,
}

/// What people see of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// With colours.
    pub colors: bool,
    /// With whole errors.
    pub verbose: bool,
}

/// Shows the status of a run, once or again and again.
#[derive(Debug)]
pub struct StatusView {
    form: StatusForm,
    screen: Option<ProgressBar>,
}

impl StatusView {
    /// Creates a view that shows nothing yet.
    pub fn new(form: StatusForm) -> Self {
        let screen = matches!(form, StatusForm::Screen(_)).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { form, screen }
    }

    /// Shows a status.
    pub fn show(&mut self, status: &RunStatus) -> Result<(), ShowError> {
        match (self.form, &self.screen) {
            (StatusForm::Screen(look), Some(screen)) => {
                screen.set_message(people(status, look).trim_end().to_owned());
                Ok(())
            }
            (form, _) => print(status, form),
        }
    }

    /// Ends the view. On a terminal, `last` stays on the screen.
    pub fn finish(self, last: Option<&RunStatus>) -> Result<(), ShowError> {
        let Some(screen) = &self.screen else {
            return Ok(());
        };
        screen.finish_and_clear();
        last.map_or(Ok(()), |last| print(last, self.form))
    }
}

impl Drop for StatusView {
    fn drop(&mut self) {
        if let Some(screen) = &self.screen {
            screen.finish_and_clear();
        }
    }
}

fn print(status: &RunStatus, form: StatusForm) -> Result<(), ShowError> {
    let text = match form {
        StatusForm::Text(look) | StatusForm::Screen(look) => people(status, look),
        StatusForm::Json => serde_json::to_string_pretty(status).map_err(io::Error::from)? + "\n",
        StatusForm::JsonLines => serde_json::to_string(status).map_err(io::Error::from)? + "\n",
    };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Formats a status for people.
fn people(status: &RunStatus, look: Look) -> String {
    let mut text = String::new();
    let width = text::terminal_width(io::stdout());
    // Writing to a String cannot fail.
    let _ = write(&mut text, status, look, width);
    text::wrapped(&text, 2, width)
}

fn write(text: &mut String, status: &RunStatus, look: Look, width: Option<usize>) -> fmt::Result {
    let total = &status.total;
    writeln!(
        text,
        "{} {}: {} of {} rollouts done{}, {}, {} pending",
        state(status.state, look.colors),
        one_line(&status.place),
        text::count(total.done),
        text::count(total.planned),
        percentage(total.done, total.planned),
        text::failures(&total.failed_by_class),
        text::count(total.pending),
    )?;
    if let Some(width) = width.filter(|width| *width >= WIDTH_OF_BARS) {
        let counts = [total.done, total.failed, total.pending];
        writeln!(text, "{}", bar(counts, width / 2, look.colors))?;
    }
    write_rate(text, status)?;
    for executor in &status.executors {
        writeln!(text, "{}", one_line(&executor.to_string()))?;
    }
    // Each executor has a lock for each shard.
    for lock in status.locks.iter().filter(|_| status.executors.is_empty()) {
        write_lock(text, lock)?;
    }
    if status.state != ObservedState::Running {
        let run = text::quoted(&one_line(&status.place));
        if total.pending > 0 {
            writeln!(
                text,
                "Nobody works on it; `rollstream resume {run}` goes on."
            )?;
        }
        if status.has_old_metrics {
            writeln!(
                text,
                "Its metrics are older than its rollouts; `rollstream aggregate {run}` computes them again."
            )?;
        }
    }
    writeln!(text, "\n{}", agents(status))?;
    if total.attempts > 0 {
        writeln!(
            text,
            "{} attempts: {}",
            text::count(total.attempts),
            outcomes(total)
        )?;
        write!(text, "\n{}", times(status))?;
    }
    write!(text, "{}", failures(status, width, look.verbose))
}

/// Columns that a terminal must have for bars.
const WIDTH_OF_BARS: usize = 70;

/// Draws what is done, failed and pending.
fn bar(counts: [u64; 3], length: usize, colors: bool) -> String {
    let cells = text::shares(counts, length);
    let parts = [("█", 32), ("▓", 31), ("░", 2)].into_iter().zip(cells);
    let parts = parts.filter(|(_, cells)| *cells > 0);
    let painted = parts.map(|((cell, color), cells)| painted(&cell.repeat(cells), color, colors));
    painted.collect()
}

/// Formats runs as a table, one line each.
pub fn runs(runs: &[RunStatus]) -> String {
    let mut table = Table::new([
        "run", "state", "done", "failed", "pending", "reward", "agents", "begun",
    ])
    .least(&["begun", "agents", "pending", "failed", "reward"]);
    for run in runs {
        let total = &run.total;
        let agents = run.agents.iter();
        let agents: Vec<&str> = agents.map(|agent| agent.agent_name.as_str()).collect();
        let done = format!(
            "{} of {}",
            text::count(total.done),
            text::count(total.planned)
        );
        table.row([
            run.place.clone(),
            run.state.to_string(),
            done,
            text::count(total.failed),
            text::count(total.pending),
            text::number_or_dash(total.mean_reward),
            agents.join(", "),
            run.created_at
                .chars()
                .take(16)
                .collect::<String>()
                .replace('T', " "),
        ]);
    }
    table.to_string()
}

fn write_rate(text: &mut String, status: &RunStatus) -> fmt::Result {
    let (Some(window), Some(rate)) = (&status.rate_window, status.total.rollouts_per_second) else {
        return Ok(());
    };
    let span = text::duration(Duration::from_secs_f64(window.seconds));
    if window.is_current {
        let eta = eta(&status.total);
        writeln!(text, "{rate:.1} rollouts/s in the last {span}, ETA {eta}")
    } else {
        writeln!(text, "{rate:.1} rollouts/s in the last {span} of its work")
    }
}

fn write_lock(text: &mut String, lock: &LockStatus) -> fmt::Result {
    let user = lock
        .user
        .as_ref()
        .map_or_else(String::new, |user| format!("{user}@"));
    let who = one_line(&format!("{user}{} (process {})", lock.host, lock.pid));
    let since = lock.since.format("%Y-%m-%d %H:%M:%S UTC");
    let silent = Duration::from_secs_f64(lock.heartbeat_age_seconds.max(0.0));
    let silent = text::duration(silent);
    if lock.alive {
        writeln!(
            text,
            "lock on {}: held by {who} since {since}, last heard of {silent} ago",
            lock.scope
        )
    } else {
        writeln!(
            text,
            "lock on {}: left behind by {who}, which took it at {since} and was last heard of {silent} ago",
            lock.scope
        )
    }
}

fn agents(status: &RunStatus) -> Table {
    let mut table = Table::new([
        "agent",
        "planned",
        "done",
        "failed",
        "pending",
        "in flight",
        "limit",
        "rollouts/s",
        "ETA",
        "mean reward",
    ])
    .least(&["limit", "in flight", "rollouts/s", "planned", "ETA"]);
    let mut row = |name: &str, figures: &Figures, limit: Option<u32>| {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        table.row([
            name.to_owned(),
            text::count(figures.planned),
            text::count(figures.done),
            text::count(figures.failed),
            text::count(figures.pending),
            or_dash(figures.in_flight.map(text::count)),
            or_dash(limit.map(|limit| text::count(limit.into()))),
            or_dash(figures.rollouts_per_second.map(|rate| format!("{rate:.1}"))),
            eta(figures),
            or_dash(figures.mean_reward.map(text::number)),
        ]);
    };
    for agent in &status.agents {
        row(&agent.agent_name, &agent.figures, agent.concurrency_limit);
    }
    if status.agents.len() > 1 {
        row("all", &status.total, None);
    }
    table
}

fn times(status: &RunStatus) -> Table {
    let mut table = Table::new([
        "mean time of an attempt",
        "permit wait",
        "rate wait",
        "connect",
        "server",
        "client",
    ])
    .least(&["client", "connect", "rate wait"]);
    for agent in &status.agents {
        let times = &agent.figures.mean_times;
        table.row([
            agent.agent_name.clone(),
            milliseconds(times.permit_wait_ms),
            milliseconds(times.rate_wait_ms),
            milliseconds(times.connect_ms),
            milliseconds(times.server_ms),
            milliseconds(times.client_ms),
        ]);
    }
    table
}

pub(super) fn counts(status: &RunStatus) -> Table {
    let mut table = Table::new(["agent", "planned", "done", "failed", "pending"]);
    for agent in &status.agents {
        let figures = &agent.figures;
        table.row([
            agent.agent_name.clone(),
            text::count(figures.planned),
            text::count(figures.done),
            text::count(figures.failed),
            text::count(figures.pending),
        ]);
    }
    table
}

/// Bytes of an error that are shown unless all are wanted.
const MAX_ERROR: usize = 300;

/// What failed and why, a line for each kind of error; empty if nothing did. `verbose`: whole errors.
pub(super) fn failures(status: &RunStatus, width: Option<usize>, verbose: bool) -> String {
    let mut lines = Vec::new();
    for agent in &status.agents {
        let name = one_line(&agent.agent_name);
        let mut others = num_failures(&agent.figures);
        for error in &agent.errors {
            others = others.saturating_sub(error.attempts);
            let what = attempts(error.attempts);
            let why = in_words(&error.outcome);
            let http = error.http_status.filter(|status| *status != 200);
            let http = http.map_or_else(String::new, |status| format!(" (HTTP {status})"));
            let mut error = one_line(&error.error);
            if error.len() > MAX_ERROR && !verbose {
                error.truncate(error.floor_char_boundary(MAX_ERROR));
                error.push_str("… (--verbose shows all)");
            }
            lines.push(format!("  {what} of {name}: {why}{http}: {error}"));
        }
        if others > 0 {
            lines.push(format!("  {} of {name}: other errors", attempts(others)));
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let heading = match status.total.failed {
        0 if status.total.pending > 0 => "Attempts that failed:".to_owned(),
        0 => "Attempts that failed and were retried:".to_owned(),
        1 => "1 rollout failed. Attempts that failed:".to_owned(),
        failed => format!(
            "{} rollouts failed. Attempts that failed:",
            text::count(failed)
        ),
    };
    let lines = lines
        .iter()
        .map(|line| text::wrapped(line, 4, width) + "\n");
    format!("\n{heading}\n{}", lines.collect::<String>())
}

fn attempts(count: u64) -> String {
    match count {
        1 => "1 attempt".to_owned(),
        _ => format!("{} attempts", text::count(count)),
    }
}

/// Says in words what a class of failures is.
fn in_words(class: &str) -> &str {
    match FailureClass::of_name(class) {
        Some(FailureClass::Infra) => "the network or the server failed",
        Some(FailureClass::Data) => "the request was refused, or its answer is unusable",
        Some(FailureClass::Timeout) => "it took too long",
        Some(FailureClass::AgentFlagged) => "the agent reported a failure",
        Some(FailureClass::NotPersisted) => "the agent discarded its answer",
        Some(FailureClass::Interrupted) | None => class,
    }
}

/// Counts the attempts that failed. One that was interrupted did not.
fn num_failures(figures: &Figures) -> u64 {
    let failed = figures
        .outcomes
        .iter()
        .filter(|(name, _)| ![OK, "interrupted", SUPERSEDED].contains(&name.as_str()));
    failed.map(|(_, outcome)| outcome.attempts).sum()
}

/// `1,234 ok, 54 infra (40 HTTP 500, 14 HTTP 429), 2 interrupted`.
fn outcomes(figures: &Figures) -> String {
    let mut parts = Vec::new();
    let ok = figures.outcomes.get_key_value(OK);
    let others = figures.outcomes.iter().filter(|(name, _)| *name != OK);
    for (name, outcome) in ok.into_iter().chain(others) {
        if outcome.attempts == 0 && name != OK {
            continue;
        }
        let statuses: Vec<String> = outcome
            .http_statuses
            .iter()
            .map(|(status, count)| format!("{} HTTP {status}", text::count(*count)))
            .collect();
        let statuses = if name == OK || statuses.is_empty() {
            String::new()
        } else {
            format!(" ({})", statuses.join(", "))
        };
        parts.push(format!(
            "{} {}{statuses}",
            text::count(outcome.attempts),
            one_line(name)
        ));
    }
    parts.join(", ")
}

fn state(state: ObservedState, colors: bool) -> String {
    let color = match state {
        ObservedState::Running => 36,
        ObservedState::Finished => 32,
        ObservedState::Incomplete | ObservedState::Stopped | ObservedState::Interrupted => 33,
        ObservedState::Died | ObservedState::Failed => 31,
    };
    painted(&state.to_string(), color, colors)
}

fn painted(text: &str, color: u8, colors: bool) -> String {
    if colors {
        format!("\x1b[1;{color}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

fn percentage(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        _ => {
            // Never 100.0 % before all are done.
            let thousandths = u128::from(part) * 1000 / u128::from(whole);
            format!(" ({}.{} %)", thousandths / 10, thousandths % 10)
        }
    }
}

fn eta(figures: &Figures) -> String {
    let eta = figures.eta_seconds;
    eta.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .map_or_else(|| "-".to_owned(), text::duration)
}

fn milliseconds(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 1000.0 => format!("{value:.1}ms"),
        Some(value) => text::duration(Duration::from_secs_f64(value / 1000.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_all_done_is_a_hundred_percent() {
        assert_eq!(percentage(999_999, 1_000_000), " (99.9 %)");
        assert_eq!(percentage(7, 7), " (100.0 %)");
        assert_eq!(percentage(0, 0), "");
    }

    #[test]
    fn only_a_terminal_gets_colours() {
        assert_eq!(state(ObservedState::Died, false), "died");
        assert_eq!(state(ObservedState::Died, true), "\x1b[1;31mdied\x1b[0m");
    }

    #[test]
    fn times_read_well() {
        let shown = [None, Some(0.25), Some(203.4), Some(61_000.0)].map(milliseconds);
        assert_eq!(shown, ["-", "0.2ms", "203.4ms", "1m01s"]);
    }
}
