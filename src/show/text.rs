//! Numbers, times and tables as people read them.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment};
use indicatif::HumanCount;
use rustix::termios::tcgetwinsize;

use crate::report::AgentCoverage;

/// Formats a count with separators: `1,234,567`.
pub(super) fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// Formats a metric with the digits that a table has room for.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value.fract() == 0.0 && size < 1e15 {
        format!("{value:.0}")
    } else if (1e-4..1e7).contains(&size) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}

/// Formats a metric that may be missing.
pub(super) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// Formats a time: `1h02m`, `3m20s`, `4.2s`.
pub(super) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Formats failures by class: `3 failed (2 infra, 1 data)`.
pub(super) fn failures(by_class: &BTreeMap<String, u64>) -> String {
    if by_class.is_empty() {
        return "0 failed".to_owned();
    }
    let all = count(by_class.values().sum());
    let classes = by_class.iter();
    let classes = classes.map(|(class, failed)| format!("{} {class}", count(*failed)));
    let classes: Vec<String> = classes.collect();
    format!("{all} failed ({})", classes.join(", "))
}

/// Formats how much of an agent's rollouts is there.
pub(super) fn coverage(agent: &AgentCoverage) -> String {
    let counts = [agent.done, agent.planned, agent.failed, agent.pending];
    let [done, planned, failed, pending] = counts.map(|rollouts| count(rollouts.unsigned_abs()));
    let name = one_line(&agent.agent_name);
    format!("{name}: {done} of {planned} rollouts done, {failed} failed, {pending} pending")
}

/// Replaces control characters, line breaks included.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Returns the number of columns of a terminal; none if the output is none.
pub fn terminal_width(output: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(output).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// A table without lines: columns a space or two apart, numbers to the right.
pub(super) struct Table(comfy_table::Table);

impl Table {
    pub(super) fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_preset(comfy_table::presets::NOTHING)
            .set_header(header.into_iter().map(Cell::new));
        Self(table)
    }

    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| {
            // A name can hold anything, a line break included.
            let cell = one_line(&cell);
            let is_number =
                cell.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first));
            let alignment = if is_number {
                CellAlignment::Right
            } else {
                CellAlignment::Left
            };
            Cell::new(cell).set_alignment(alignment)
        });
        self.0.add_row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        self.0
            .lines()
            .try_for_each(|line| writeln!(formatter, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_read_well() {
        assert_eq!(
            [0, 999, 1000, 1234567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        let times =
            [4.25, 42.0, 200.0, 3720.0].map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["4.2s", "42s", "3m20s", "1h02m"]);
    }
}
