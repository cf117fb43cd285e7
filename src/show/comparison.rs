//! What candidates have over a base, for people, as JSON or as Markdown.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use super::ShowError;
use super::text::{self, Table, number_or_dash};
use crate::report::{ComparedRun, ComparisonReport, MetricComparison, Overlap};
use crate::schema::REWARD;

/// Most metrics on a line.
const MAX_NAMES: usize = 10;

/// Prints a comparison, for people or as one JSON document.
pub fn comparison(report: &ComparisonReport, as_json: bool) -> Result<(), ShowError> {
    let text = if as_json {
        serde_json::to_string_pretty(report).map_err(io::Error::from)? + "\n"
    } else {
        text::wrapped(&people(report), 2, text::terminal_width(io::stdout()))
    };
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Formats a comparison as a document in Markdown.
pub fn comparison_markdown(report: &ComparisonReport) -> String {
    format!("# Comparison\n\n```text\n{}```\n", people(report))
}

fn people(report: &ComparisonReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &ComparisonReport) -> fmt::Result {
    for overlap in &report.overlaps {
        write_verdict(text, report, overlap)?;
    }
    writeln!(text)?;
    write_run(text, "base", &report.base)?;
    for candidate in &report.candidates {
        write_run(text, "candidate", candidate)?;
    }
    writeln!(text)?;
    for overlap in &report.overlaps {
        write_overlap(text, report, overlap)?;
    }
    writeln!(
        text,
        "Means over common tasks of the mean of their rollouts: each task weighs the same."
    )?;
    writeln!(text, "\n{}", table(report))?;
    let alpha = short(1.0 - report.options.confidence);
    let comparisons = match report.comparisons.len() as u64 {
        1 => "1 comparison".to_owned(),
        several => format!("{} comparisons", text::count(several)),
    };
    writeln!(
        text,
        "* p < {alpha} after Holm's correction for {comparisons}. MDE: the difference that a single test finds with power {}.",
        report.options.power,
    )?;
    writeln!(
        text,
        "gained, lost: tasks whose mean rose or fell across 0.5, or at all where scores are not 0 or 1."
    )?;
    write_left_out(text, report)?;
    if let Some(flips) = &report.flips {
        let flipped = match flips.num_rows {
            1 => "1 flip is".to_owned(),
            rows => format!("{} flips are", text::count(rows)),
        };
        writeln!(text, "{flipped} in {}", flips.path)?;
    }
    Ok(())
}

/// Says in words what follows from a comparison.
pub(crate) fn verdict(report: &ComparisonReport) -> String {
    let mut text = String::new();
    for overlap in &report.overlaps {
        // Writing to a String cannot fail.
        let _ = write_verdict(&mut text, report, overlap);
    }
    text
}

/// Says in words what follows from the numbers: a line for each significant difference, and one for the others.
fn write_verdict(text: &mut String, report: &ComparisonReport, overlap: &Overlap) -> fmt::Result {
    let name = text::one_line(&pair_of(report, overlap));
    let rows = report.comparisons.iter().filter(|row| {
        row.candidate == overlap.candidate && row.candidate_agent == overlap.candidate_agent
    });
    let (significant, others): (Vec<_>, Vec<_>) = rows.partition(|row| row.significant);
    let confidence = short(100.0 * report.options.confidence);
    let numbers = |row: &MetricComparison| {
        let p = row.p_holm.map(|p| format!(", p {}", probability(p)));
        let (difference, interval) = (signed(row.difference), interval(row));
        let p = p.unwrap_or_default();
        format!("{difference} ({confidence} % CI {interval}{p})")
    };
    for row in significant {
        let word = match (row.metric.as_str(), row.is_worse()) {
            (REWARD, true) => "worse",
            (REWARD, false) => "better",
            (_, true) => "lower",
            (_, false) => "higher",
        };
        let (metric, numbers) = (text::one_line(&row.metric), numbers(row));
        writeln!(text, "{name} is {word} in {metric}: {numbers}")?;
    }
    let line = match others.as_slice() {
        [] => return Ok(()),
        [row] => format!(
            "no significant difference in {}: {name} has {}",
            text::one_line(&row.metric),
            numbers(row)
        ),
        _ => {
            let metrics = others.iter().map(|row| row.metric.as_str());
            let metrics = listed(&metrics.collect::<Vec<_>>());
            format!("{name} shows no significant difference in {metrics}")
        }
    };
    writeln!(text, "{line}")
}

fn write_run(text: &mut String, role: &str, run: &ComparedRun) -> fmt::Result {
    let place = if run.place.trim_end_matches('/') == run.name {
        String::new()
    } else {
        format!(" ({})", run.place)
    };
    writeln!(text, "{role} {}{place}:", run.name)?;
    for agent in &run.agents {
        writeln!(text, "  {}", text::coverage(agent))?;
    }
    Ok(())
}

fn write_overlap(text: &mut String, report: &ComparisonReport, overlap: &Overlap) -> fmt::Result {
    let counts = &overlap.counts;
    write!(
        text,
        "{}: {} in common, {} only in the base, {} only in the candidate",
        pair_of(report, overlap),
        tasks(counts.in_common),
        text::count(counts.only_in_base),
        text::count(counts.only_in_candidate),
    )?;
    const POOLED: &str = "ask what an earlier one asks, and are taken together with it";
    const WITHOUT_KEY: &str = "have no such field";
    for (count, side, what) in [
        (counts.base_pooled, "base", POOLED),
        (counts.candidate_pooled, "candidate", POOLED),
        (counts.base_without_key, "base", WITHOUT_KEY),
        (counts.candidate_without_key, "candidate", WITHOUT_KEY),
    ] {
        if count > 0 {
            write!(text, "; {} of the {side} {what}", tasks(count))?;
        }
    }
    let missing = |of: fn(&MetricComparison) -> u64| {
        let same = report.comparisons.iter().filter(|row| {
            row.candidate == overlap.candidate && row.candidate_agent == overlap.candidate_agent
        });
        same.map(of).max().unwrap_or_default()
    };
    for (count, side) in [
        (missing(|row| row.without_base), "base"),
        (missing(|row| row.without_candidate), "candidate"),
    ] {
        if count > 0 {
            let count = text::count(count);
            write!(text, "; up to {count} have no score in the {side}")?;
        }
    }
    writeln!(text)
}

fn pair_of(report: &ComparisonReport, overlap: &Overlap) -> String {
    let (base_agent, agent) = (&overlap.base_agent, &overlap.candidate_agent);
    pair(report, &overlap.candidate, base_agent, agent)
}

/// Names the agents of a comparison, as short as is clear.
fn pair(report: &ComparisonReport, candidate: &str, base_agent: &str, agent: &str) -> String {
    let agents = report
        .overlaps
        .iter()
        .filter(|overlap| overlap.candidate == candidate);
    match agents.count() {
        0 | 1 => candidate.to_owned(),
        _ if base_agent == agent => format!("{candidate} {agent}"),
        _ => format!("{candidate} {agent} (base {base_agent})"),
    }
}

fn table(report: &ComparisonReport) -> Table {
    let interval = format!("{} % CI", short(100.0 * report.options.confidence));
    let has_pairs = report.overlaps.len() > 1;
    let header = [
        "metric",
        "base",
        "candidate",
        "difference",
        &interval,
        "p (Holm)",
        "test",
        "tasks",
        "gained",
        "lost",
        "MDE",
    ];
    let of = has_pairs.then_some("of");
    let mut table = Table::new(of.into_iter().chain(header)).least(&[
        "MDE",
        "test",
        "gained",
        "lost",
        "tasks",
        &interval,
        "p (Holm)",
        "base",
        "candidate",
    ]);
    for row in &report.comparisons {
        let (candidate, base) = (&row.candidate, &row.base_agent);
        let of = has_pairs.then(|| pair(report, candidate, base, &row.candidate_agent));
        table.row(of.into_iter().chain(cells(row)));
    }
    table
}

fn interval(row: &MetricComparison) -> String {
    match (row.ci_low, row.ci_high) {
        (Some(low), Some(high)) => format!("{} to {}", signed(low), signed(high)),
        _ => "-".to_owned(),
    }
}

fn cells(row: &MetricComparison) -> [String; 11] {
    let mark = if row.significant { " *" } else { "" };
    [
        row.metric.clone(),
        text::number(row.base_mean),
        text::number(row.candidate_mean),
        signed(row.difference) + mark,
        interval(row),
        row.p_holm.map_or_else(|| "-".to_owned(), probability),
        row.test.replace('_', " "),
        text::count(row.num_tasks),
        text::count(row.gained),
        text::count(row.lost),
        number_or_dash(row.mde),
    ]
}

fn write_left_out(text: &mut String, report: &ComparisonReport) -> fmt::Result {
    for overlap in &report.overlaps {
        let metrics: Vec<&str> = report
            .left_out
            .iter()
            .filter(|metric| {
                metric.candidate == overlap.candidate
                    && metric.candidate_agent == overlap.candidate_agent
            })
            .map(|metric| metric.metric.as_str())
            .collect();
        if metrics.is_empty() {
            continue;
        }
        let (pair, metrics) = (pair_of(report, overlap), listed(&metrics));
        writeln!(
            text,
            "{pair}: not on both sides of any common task: {metrics}"
        )?;
    }
    Ok(())
}

/// Lists the first metrics, and says how many more there are.
fn listed(metrics: &[&str]) -> String {
    let first: Vec<&str> = metrics.iter().take(MAX_NAMES).copied().collect();
    let first = first.join(", ");
    match metrics.len().saturating_sub(MAX_NAMES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn tasks(count: u64) -> String {
    match count {
        1 => "1 task".to_owned(),
        _ => format!("{} tasks", text::count(count)),
    }
}

fn signed(value: f64) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", text::number(value))
}

/// Formats a probability with the digits that mean something.
pub(crate) fn probability(p: f64) -> String {
    if p < 1e-4 {
        "<0.0001".to_owned()
    } else {
        format!("{p:.4}")
    }
}

/// Formats a given number without the digits that a subtraction adds.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.05, 95.0, 0.1, 99.9].map(short),
            ["0.05", "95", "0.1", "99.9"]
        );
        assert_eq!(short(1.0 - 0.95), "0.05");
        assert_eq!([0.0, 0.25, -0.5].map(signed), ["0", "+0.2500", "-0.5000"]);
        assert_eq!(
            [1.0, 0.04321, 1e-9].map(probability),
            ["1.0000", "0.0432", "<0.0001"]
        );
    }
}
