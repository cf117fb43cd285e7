//! Numbers, times and tables as people read them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement};
use console::measure_text_width;
use indicatif::HumanCount;
use rustix::termios::tcgetwinsize;

use crate::report::AgentCoverage;

/// Formats a count with separators: `1,234,567`.
pub(crate) fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

/// Formats a metric with the digits that a table has room for.
pub(crate) fn number(value: f64) -> String {
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
pub(crate) fn duration(time: Duration) -> String {
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

/// Returns how many of `length` cells of a bar each count gets: its share, and one at least if it is not zero.
pub(super) fn shares<const N: usize>(counts: [u64; N], length: usize) -> [usize; N] {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    let least = counts.map(|count| usize::from(count > 0));
    let spare = length.saturating_sub(least.iter().sum()) as f64;
    let (mut sum, mut end) = (0, 0);
    std::array::from_fn(|part| {
        sum += counts[part];
        // Rounded where two parts meet, so that the cells add up.
        let begin = std::mem::replace(&mut end, (sum as f64 / all * spare).round() as usize);
        least[part] + end - begin
    })
}

/// Puts a text into one line, and writes out what a terminal would obey.
pub(super) fn one_line(text: &str) -> String {
    visible(&text.replace(['\n', '\r', '\t'], " ")).into_owned()
}

/// Writes out what a terminal would obey in every line of a text.
pub(crate) fn visible_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

/// Whether a character could do something to a terminal, or hide what stands around it.
fn is_unsafe(character: char) -> bool {
    let is_direction = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (character.is_control() && character != '\t') || is_direction
}

/// Writes out what a terminal would obey: `\u{1b}`.
pub(crate) fn visible(line: &str) -> Cow<'_, str> {
    if !line.contains(is_unsafe) {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len());
    for piece in line.split_inclusive(is_unsafe) {
        let plain = piece.strip_suffix(is_unsafe);
        shown.push_str(plain.unwrap_or(piece));
        let last = piece.chars().next_back().filter(|_| plain.is_some());
        shown.extend(last.into_iter().flat_map(char::escape_default));
    }
    Cow::Owned(shown)
}

/// Cuts a text to a width in characters, with `…` at its end if it is longer.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept = text.chars().take(width.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// Quotes a word for a shell, where it needs that.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the number of columns of a terminal; none if the output is none.
pub fn terminal_width(output: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(output).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Joins the parts for which a line has room; the first is always there.
pub(super) fn fitting(parts: impl IntoIterator<Item = String>, width: usize) -> String {
    let mut parts = parts.into_iter();
    let mut line = parts.next().unwrap_or_default();
    for part in parts {
        if line.chars().count() + 2 + part.chars().count() <= width {
            line.push_str(", ");
            line.push_str(&part);
        }
    }
    line
}

/// Breaks the lines of a text to a width; what does not fit is indented. Without a width it stays as it is.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let broken = text.split('\n').map(|line| {
        let pieces = pieces(line, width, width.saturating_sub(indent));
        let lines: Vec<&str> = pieces.into_iter().map(str::trim_end).collect();
        lines.join(&format!("\n{}", " ".repeat(indent)))
    });
    broken.collect::<Vec<_>>().join("\n")
}

/// Breaks a page of Markdown to a width. Blocks of code stay as they are.
pub fn wrapped_page(page: &str, width: usize) -> String {
    let mut blocks: Vec<(String, bool)> = Vec::new();
    let (mut is_code, mut goes_on) = (false, false);
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_text = !is_code && !is_fence && !line.is_empty() && !line.starts_with(['|', '#']);
        let is_item = line.starts_with("- ");
        match blocks.last_mut() {
            Some((block, _)) if is_text && goes_on && !is_item => {
                block.push(' ');
                block.push_str(line.trim_start());
            }
            _ => blocks.push((line.to_owned(), is_code)),
        }
        goes_on = is_text;
    }
    let broken = blocks.into_iter().map(|(block, is_code)| {
        let indent = 2 * usize::from(block.starts_with(['-', '|']));
        wrapped(&block, indent, Some(width).filter(|_| !is_code)) + "\n"
    });
    broken.collect()
}

/// Breaks a line between words into pieces: one that fits the first width, and others that fit the second. A longer word
/// stays whole, and so does the indentation before it.
pub(super) fn pieces(line: &str, first: usize, others: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut end, mut used) = (0, 0, 0);
    for word in line.split_inclusive(' ') {
        let width = if pieces.is_empty() { first } else { others };
        let before = line.get(start..end).unwrap_or_default();
        if !before.trim().is_empty() && used + columns(word.trim_end()) > width {
            pieces.push(before);
            (start, used) = (end, 0);
        }
        used += columns(word);
        end += word.len();
    }
    pieces.extend(line.get(start..));
    pieces
}

/// Returns the columns that a text takes on a terminal.
fn columns(text: &str) -> usize {
    if text.is_ascii() && !text.contains('\x1b') {
        text.len()
    } else {
        measure_text_width(text)
    }
}

/// A table without lines: columns a space or two apart, numbers to the right. On a terminal it is no wider than that.
pub(super) struct Table {
    table: comfy_table::Table,
    header: Vec<String>,
    least: Vec<String>,
}

impl Table {
    pub(super) fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let header: Vec<String> = header.into_iter().map(str::to_owned).collect();
        let mut table = comfy_table::Table::new();
        table
            .load_preset(comfy_table::presets::NOTHING)
            .set_header(header.iter().map(Cell::new));
        Self {
            table,
            header,
            least: Vec::new(),
        }
    }

    /// Names the columns that a narrow terminal can do without, the least important first.
    pub(super) fn least(mut self, columns: &[&str]) -> Self {
        self.least = columns.iter().map(|column| (*column).to_owned()).collect();
        self
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
        self.table.add_row(cells);
    }

    /// Returns the lines for a terminal: it leaves out columns, and then breaks the cells of the others.
    fn fitted(&self, width: usize) -> Vec<String> {
        let mut table = self.table.clone();
        let widths = table.column_max_content_widths();
        let padded = widths.iter().map(|width| usize::from(*width) + 2);
        // Spaces at the end of a line are not printed.
        let mut needed = padded.sum::<usize>().saturating_sub(1);
        let mut left_out = Vec::new();
        for name in &self.least {
            let place = self.header.iter().position(|header| header == name);
            let Some((place, column)) =
                place.and_then(|place| Some((place, table.column_mut(place)?)))
            else {
                continue;
            };
            if needed <= width {
                break;
            }
            column.set_constraint(ColumnConstraint::Hidden);
            needed -= widths.get(place).map_or(0, |width| usize::from(*width) + 2);
            left_out.push(name.as_str());
        }
        if needed > width {
            table
                .set_content_arrangement(ContentArrangement::Dynamic)
                .set_width(u16::try_from(width + 1).unwrap_or(u16::MAX));
        }
        let mut lines: Vec<String> = table.lines().collect();
        if !left_out.is_empty() {
            let note = format!(" (a wider terminal also shows {})", left_out.join(", "));
            lines.extend(wrapped(&note, 2, Some(width)).lines().map(str::to_owned));
        }
        lines
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let lines = match terminal_width(io::stdout()) {
            Some(width) => self.fitted(width),
            None => self.table.lines().collect(),
        };
        let mut lines = lines.iter();
        lines.try_for_each(|line| writeln!(formatter, "{}", line.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_leaves_out_columns_and_then_breaks_cells() {
        let mut table = Table::new(["name", "value", "extra", "more"]).least(&["extra", "more"]);
        table.row(["a fine metric", "0.5", "17", "18"].map(str::to_owned));
        let widest = |width| {
            table
                .fitted(width)
                .iter()
                .map(|line| line.trim_end().len())
                .max()
        };
        assert_eq!(table.fitted(80).len(), 2);
        assert_eq!(table.fitted(34).len(), 2);
        let lines = table.fitted(29);
        assert!(
            lines[0].ends_with("more ") && !lines[0].contains("extra"),
            "{lines:?}"
        );
        assert_eq!(lines[2..].join(""), " (a wider terminal also shows  extra)");
        let lines = table.fitted(14);
        assert!(lines.len() > 4 && lines[1].contains("a fine"), "{lines:?}");
        for width in [14, 20, 29, 34] {
            assert!(
                widest(width) <= Some(width),
                "{width}: {:?}",
                table.fitted(width)
            );
        }
    }

    #[test]
    fn every_part_of_a_bar_shows() {
        assert_eq!(shares([50, 25, 25], 20), [10, 5, 5]);
        assert_eq!(shares([1, 1, 1], 10), [3, 4, 3]);
        assert_eq!(shares([1, 0, 999_999], 10), [1, 0, 9]);
        assert_eq!(shares([7, 0, 0], 10), [10, 0, 0]);
        assert_eq!(shares([0, 0], 10), [0, 0]);
        assert_eq!(shares([999_999, 1, 0], 10), [9, 1, 0]);
    }

    #[test]
    fn lines_hold_what_they_have_room_for() {
        let parts = || ["one", "fourteen", "two"].map(str::to_owned);
        assert_eq!(fitting(parts(), 80), "one, fourteen, two");
        assert_eq!(fitting(parts(), 9), "one, two");
        assert_eq!(fitting(parts(), 2), "one");
        assert_eq!(wrapped("one two three", 2, Some(8)), "one two\n  three");
        assert_eq!(wrapped("  one two", 4, Some(7)), "  one\n    two");
        assert_eq!(wrapped("one two three", 2, None), "one two three");
    }

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(
            visible("a\x1b[2Jb\tc\u{9b}31m\u{202e}\r"),
            "a\\u{1b}[2Jb\tc\\u{9b}31m\\u{202e}\\r"
        );
        assert_eq!(visible("plain ü"), "plain ü");
    }

    #[test]
    fn a_line_is_broken_between_words() {
        assert_eq!(pieces("a line of words", 7, 7), ["a line ", "of ", "words"]);
        assert_eq!(pieces("indivisible, so", 5, 5), ["indivisible, ", "so"]);
        assert_eq!(pieces("", 5, 5), [""]);
    }

    #[test]
    fn a_page_is_broken_between_words_but_for_its_code() {
        let page = "# A title\n\none two\nthree four\n\n- five six\n  seven\n- 8\n\n```sh\nnine ten eleven\n```\ntwelve\n";
        let broken = "# A title\n\none two three\nfour\n\n- five six\n  seven\n- 8\n\n```sh\nnine ten eleven\n```\ntwelve\n";
        assert_eq!(wrapped_page(page, 13), broken);
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_would_change_it() {
        assert_eq!(quoted("s3://bucket/run-1"), "s3://bucket/run-1");
        assert_eq!(quoted("it's 1"), r"'it'\''s 1'");
        assert_eq!(quoted("my run's"), r"'my run'\''s'");
        assert_eq!(quoted(""), "''");
    }

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
