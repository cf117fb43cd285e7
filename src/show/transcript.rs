//! A rollout as people read it, and the list of tasks to choose one from. Control characters of an answer are shown, never
//! sent to the terminal. Long texts are cut unless all is wanted.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use console::{measure_text_width, truncate_str};
use serde_json::{Map, Value};

use super::ShowError;
use super::text::{count, duration, number_or_dash, one_line, pieces, visible};
use crate::config::DEFAULT_ENVIRONMENT;
use crate::json;
use crate::transcript::{Attempt, Item, Kind, RolloutState, TaskLine, Transcript};

/// Bytes of a text that are shown.
const MAX_TEXT: usize = 16 << 10;

/// Lines of a text that are shown.
const MAX_LINES: usize = 300;

/// Bytes of a rollout that are shown.
const MAX_SHOWN: usize = 256 << 10;

/// How a rollout is shown.
#[derive(Debug, Clone, Copy)]
pub struct TranscriptStyle {
    /// Whether there are colours.
    pub colors: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// Whether lines are broken between words where the terminal ends.
    pub wraps: bool,
    /// Whether long texts are shown whole.
    pub full: bool,
}

/// Colours, as the terminal numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paint {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "1;31",
            Self::Green => "1;32",
            Self::Yellow => "1;33",
            Self::Blue => "1;34",
            Self::Magenta => "1;35",
            Self::Cyan => "1;36",
        }
    }
}

/// Writes a rollout.
///
/// # Errors
/// The output is full or gone.
pub fn transcript(
    output: &mut dyn Write,
    transcript: &Transcript,
    style: TranscriptStyle,
) -> Result<(), ShowError> {
    let mut page = Page {
        output,
        style,
        shown: 0,
    };
    Ok(page.write(transcript)?)
}

struct Page<'a> {
    output: &'a mut dyn Write,
    style: TranscriptStyle,
    /// Bytes of texts that were written.
    shown: usize,
}

impl Page<'_> {
    fn write(&mut self, of: &Transcript) -> io::Result<()> {
        self.head(of)?;
        for (position, item) in of.items.iter().enumerate() {
            if self.shown > MAX_SHOWN && !self.style.full {
                let rest = of.items.get(position..).unwrap_or_default();
                let bytes: usize = rest.iter().map(|item| item.text.len()).sum();
                let rest = count(rest.len() as u64);
                self.more(&format!("{rest} more items, {}", size(bytes)))?;
                break;
            }
            // An environment that only scores says nothing.
            if item.name != "environment" || !item.text.is_empty() {
                self.item(item)?;
            }
        }
        self.fields("expected", Paint::Magenta, &of.expected)?;
        if of.state == RolloutState::Done {
            let reward = number_or_dash(of.reward);
            let paint = match of.reward {
                Some(reward) if reward > 0.0 => Paint::Green,
                Some(_) => Paint::Red,
                None => Paint::Yellow,
            };
            self.heading(&format!("reward {reward}"), paint)?;
            self.pairs(self.telling(&of.scores))?;
        } else {
            self.fields("failed answer", Paint::Red, &of.scores)?;
        }
        self.fields("task", Paint::Dim, &of.task)?;
        let is_plain = |attempt: &Attempt| attempt.outcome == "ok";
        if of.attempts.len() > 1 || !of.attempts.iter().all(is_plain) {
            self.heading("attempts", Paint::Yellow)?;
            for attempt in &of.attempts {
                self.attempt(attempt)?;
            }
        }
        Ok(())
    }

    fn head(&mut self, of: &Transcript) -> io::Result<()> {
        let title = format!(
            "task {}, rollout {} of agent {}",
            of.task_index, of.rollout_index, of.agent_name
        );
        self.line(&one_line(&title), Paint::Bold)?;
        let mut facts = vec![match of.state {
            RolloutState::Done => {
                format!("reward {}{}", number_or_dash(of.reward), compared(of))
            }
            RolloutState::Pending if of.attempts.is_empty() => {
                "pending, and no attempt has ended".to_owned()
            }
            state => state.name().to_owned(),
        }];
        if of.truncated {
            facts.push("truncated".to_owned());
        }
        if of.masked {
            facts.push("masked".to_owned());
        }
        let tokens = |tokens: Option<i64>| tokens.map(|tokens| count(tokens.unsigned_abs()));
        let (input, answer) = (tokens(of.input_tokens), tokens(of.output_tokens));
        facts.extend(input.map(|tokens| format!("{tokens} tokens in")));
        facts.extend(answer.map(|tokens| format!("{tokens} tokens out")));
        facts.extend(of.latency_ms.and_then(seconds));
        facts.push(format!("{}:{}", of.source_file, of.source_line));
        self.line(&one_line(&facts.join(", ")), Paint::Plain)?;
        if of.tools.is_empty() {
            return Ok(());
        }
        let tools = format!("tools: {}", of.tools.join(", "));
        self.line(&one_line(&tools), Paint::Plain)
    }

    fn item(&mut self, item: &Item) -> io::Result<()> {
        let id = item.call_id.as_deref().unwrap_or_default();
        let (title, paint) = match item.kind {
            Kind::Message => (item.name.clone(), role_paint(&item.name)),
            Kind::Reasoning => ("reasoning".to_owned(), Paint::Dim),
            Kind::FunctionCall => (format!("call {} {id}", item.name), Paint::Yellow),
            Kind::FunctionCallOutput => (format!("output {} {id}", item.name), Paint::Blue),
            Kind::Other => (item.name.clone(), Paint::Dim),
        };
        let words: Vec<&str> = title.split_whitespace().collect();
        self.heading(&words.join(" "), paint)?;
        let arguments = match item.kind {
            Kind::FunctionCall if item.text.len() <= MAX_TEXT => json::value(&item.text),
            _ => None,
        };
        match (arguments, item.kind) {
            (Some(Value::Object(arguments)), _) => self.pairs(arguments.iter()),
            (_, Kind::Reasoning) => self.text(&item.text, Paint::Dim),
            _ => self.text(&item.text, Paint::Plain),
        }
    }

    fn attempt(&mut self, attempt: &Attempt) -> io::Result<()> {
        let status = attempt.http_status.map(|status| format!("HTTP {status}"));
        let time = attempt.server_ms.and_then(seconds);
        let facts: Vec<String> = [Some(attempt.outcome.clone()), status, time]
            .into_iter()
            .flatten()
            .collect();
        let last = if attempt.terminal { ", the last" } else { "" };
        let line = format!(
            "{}  {}  {}{last}",
            attempt.attempt,
            attempt.dispatched_at,
            facts.join(", ")
        );
        self.line(&one_line(&line), Paint::Plain)?;
        match &attempt.error {
            Some(error) => self.text(error, Paint::Plain),
            None => Ok(()),
        }
    }

    fn fields(&mut self, title: &str, paint: Paint, fields: &Map<String, Value>) -> io::Result<()> {
        let mut fields = self.telling(fields).peekable();
        if fields.peek().is_none() {
            return Ok(());
        }
        self.heading(title, paint)?;
        self.pairs(fields)
    }

    /// Writes names and values. A text of several lines stands below its name.
    fn pairs<'a>(
        &mut self,
        fields: impl Iterator<Item = (&'a String, &'a Value)>,
    ) -> io::Result<()> {
        for (name, value) in fields {
            let name = one_line(name);
            let value = match value {
                Value::String(text) => Cow::Borrowed(text.as_str()),
                other => Cow::Owned(other.to_string()),
            };
            let between = if value.contains('\n') { ":\n" } else { ": " };
            write!(self.output, "{name}{between}")?;
            self.text(&value, Paint::Plain)?;
        }
        Ok(())
    }

    /// Returns the fields without those that tell people nothing.
    fn telling<'a>(
        &self,
        fields: &'a Map<String, Value>,
    ) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        let full = self.style.full;
        fields.iter().filter(move |(name, value)| match value {
            _ if full => true,
            Value::Null => false,
            Value::Array(items) if items.is_empty() => false,
            Value::Object(fields) if fields.is_empty() => false,
            value if *name == "task_name" => *value != DEFAULT_ENVIRONMENT,
            _ => !COUNTERS.contains(&name.as_str()),
        })
    }

    fn heading(&mut self, title: &str, paint: Paint) -> io::Result<()> {
        let title = one_line(title);
        let title = truncate_str(&title, self.style.width.saturating_sub(6).max(10), "…");
        let rule = self.style.width.min(100);
        let rule = rule.saturating_sub(measure_text_width(&title) + 4);
        writeln!(self.output)?;
        self.painted(&format!("── {title} {}", "─".repeat(rule)), paint)
    }

    /// Writes a line, which is broken between words where the terminal ends.
    fn line(&mut self, line: &str, paint: Paint) -> io::Result<()> {
        if !self.style.wraps {
            return self.painted(line, paint);
        }
        let mut pieces = pieces(line, self.style.width, self.style.width).into_iter();
        pieces.try_for_each(|piece| self.painted(piece.trim_end(), paint))
    }

    fn painted(&mut self, line: &str, paint: Paint) -> io::Result<()> {
        if self.style.colors && paint != Paint::Plain {
            writeln!(self.output, "\x1b[{}m{line}\x1b[0m", paint.code())
        } else {
            writeln!(self.output, "{line}")
        }
    }

    /// Writes a text, or its beginning.
    fn text(&mut self, text: &str, paint: Paint) -> io::Result<()> {
        let (head, rest) = if self.style.full {
            (text, 0)
        } else {
            beginning(text)
        };
        self.shown += head.len();
        for line in head.lines() {
            self.line(&visible(line), paint)?;
        }
        if rest > 0 {
            self.more(&format!("{} more", size(rest)))?;
        }
        Ok(())
    }

    fn more(&mut self, what: &str) -> io::Result<()> {
        self.painted(&format!("… {what}; --full shows all"), Paint::Yellow)
    }
}

/// Says what was answered and what was expected, if each is one short text.
fn compared(of: &Transcript) -> String {
    let short = |value: &Value| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        (text.len() <= 40).then(|| one_line(&text))
    };
    let mut expected = of.expected.values();
    let expected = expected.next().filter(|_| of.expected.len() == 1);
    let extracted = of.scores.get("extracted_answer");
    let extracted = extracted.filter(|value| !value.is_null());
    match (extracted.and_then(short), expected.and_then(short)) {
        (Some(answer), Some(expected)) => format!(" (answered {answer}, expected {expected})"),
        _ => String::new(),
    }
}

/// The fields of answers that count what the transcript shows.
const COUNTERS: [&str; 10] = [
    "assistant_tokens",
    "env_tokens",
    "max_turns_reached",
    "terminated",
    "total_tokens",
    "truncated",
    "turn_count",
    "turn_gen_tokens",
    "turn_input_tokens",
    "turn_total_tokens",
];

fn role_paint(role: &str) -> Paint {
    match role {
        "user" => Paint::Green,
        "assistant" => Paint::Cyan,
        "tool" | "environment" => Paint::Blue,
        _ => Paint::Magenta,
    }
}

fn size(bytes: usize) -> String {
    bytesize::ByteSize(bytes as u64).to_string()
}

fn seconds(milliseconds: f64) -> Option<String> {
    let time = Duration::try_from_secs_f64(milliseconds / 1000.0);
    time.ok().map(duration)
}

/// Returns the beginning of a text, and the number of bytes behind it.
fn beginning(text: &str) -> (&str, usize) {
    let lines = memchr::memchr_iter(b'\n', text.as_bytes()).nth(MAX_LINES - 1);
    let end = lines.unwrap_or(text.len()).min(MAX_TEXT);
    let head = text.get(..text.floor_char_boundary(end)).unwrap_or(text);
    (head, text.len() - head.len())
}

/// Writes the list of tasks, the one with the lowest mean reward first.
///
/// # Errors
/// The output is full or gone.
pub fn tasks(
    output: &mut dyn Write,
    tasks: &[TaskLine],
    style: TranscriptStyle,
) -> Result<(), ShowError> {
    let names = tasks.iter().map(|task| task.agent_name.as_str());
    let has_several = names.clone().any(|name| Some(name) != names.clone().next());
    let widest = names.map(measure_text_width).max().unwrap_or_default();
    let agent = widest.min(20).min(style.width / 6).max(5);
    let of_done = |task: &TaskLine| format!("{}/{}", task.num_done, task.num_rollouts);
    let widest = tasks.iter().map(|task| of_done(task).len()).max();
    let widest = widest.unwrap_or_default().max(4);
    let line = |[task, name, reward, done, failed]: [&str; 5]| {
        // A lone agent needs no column.
        let name = if has_several {
            let name = truncate_str(name, agent, "…");
            console::pad_str(&name, agent + 2, console::Alignment::Left, None).into_owned()
        } else {
            String::new()
        };
        format!("{task:>6}  {name}{reward:>6}  {done:>widest$}  {failed:>6}  ")
    };
    let head = line(["task", "agent", "reward", "done", "failed"]);
    let room = style.width.saturating_sub(head.len()).max(10);
    let mut page = Page {
        output,
        style,
        shown: 0,
    };
    page.painted(&format!("{head}prompt"), Paint::Bold)?;
    for task in tasks {
        let begin = line([
            &task.task_index.to_string(),
            &visible(&task.agent_name),
            &number_or_dash(task.mean_reward),
            &of_done(task),
            &task.num_failed.to_string(),
        ]);
        let question = visible(&task.question);
        let question = truncate_str(&question, room, "…");
        writeln!(page.output, "{begin}{}", question.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_after_some_lines() {
        let (head, rest) = beginning("short\n");
        assert_eq!((head, rest), ("short\n", 0));
        let long = "ü".repeat(MAX_TEXT);
        let (head, rest) = beginning(&long);
        assert_eq!((head.len(), head.len() + rest), (MAX_TEXT, long.len()));
        let lines = "x\n".repeat(MAX_LINES + 5);
        let (head, rest) = beginning(&lines);
        assert_eq!((head.lines().count(), rest), (MAX_LINES, 11));
    }
}
