//! [`InputErrors`]: all errors of the input, with their places.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::python::repr_list;

/// The number of findings kept of each kind; more are only counted.
const KEPT: usize = 20;

/// The number of findings shown of those that are all the same.
const SHOWN: usize = 5;

/// What is wrong with a line. A line has only the first kind that fits, and earlier kinds are reported first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// The line is not JSON in UTF-8.
    Malformed,
    /// The row has an input of its own although a prompt is configured.
    PromptConflict,
    /// The prompt's template does not fit the row.
    Prompt,
    /// The row lacks a field that every task has, or has no room for one that must be added.
    Task,
    /// The row names no agent.
    NoAgent,
    /// There is no number of repeats for the task's agent.
    UnlistedAgent,
    /// No agent can be found for the task source that the row names.
    TaskSource,
}

/// One line that cannot become a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The row's number over all inputs, from 0.
    pub row: u64,
    /// The name of the input.
    pub file: Arc<str>,
    /// The line in the input, from 1.
    pub line: u64,
    /// What is wrong; for [`Kind::UnlistedAgent`], the names by which `--num-repeats` could list the row.
    pub what: String,
}

/// All errors of the input. There is at least one finding.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
pub struct InputErrors {
    groups: BTreeMap<Kind, Group>,
    about: Box<About>,
}

/// What messages need besides the findings. Boxed, so that errors stay small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct About {
    unlisted_agents: BTreeSet<String>,
    listed_agents: Vec<String>,
    /// Errors of task sources, without repetition.
    sources: BTreeSet<String>,
    /// Whether rows are routed by the rules of NeMo Gym 0.7.
    is_routed: bool,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Group {
    kept: Vec<Finding>,
    count: u64,
}

impl InputErrors {
    /// Creates a collection without errors. `is_routed` says whether the messages are those of NeMo Gym 0.7.
    pub(super) fn new(is_routed: bool) -> Self {
        let mut errors = Self::default();
        errors.about.is_routed = is_routed;
        errors
    }

    /// Adds the warnings that a successful reading would have given.
    pub(super) fn warn(&mut self, warnings: Vec<String>) {
        self.about.warnings = warnings;
    }

    /// Returns the warnings besides the errors.
    pub fn warnings(&self) -> &[String] {
        &self.about.warnings
    }

    /// Whether there are no errors.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn add(&mut self, kind: Kind, finding: Finding) {
        if kind == Kind::UnlistedAgent && self.about.unlisted_agents.len() < KEPT {
            self.about.unlisted_agents.insert(finding.what.clone());
        }
        if kind == Kind::TaskSource && self.about.sources.len() < KEPT {
            self.about.sources.insert(finding.what.clone());
        }
        let group = self.groups.entry(kind).or_default();
        group.count += 1;
        if group.kept.len() < KEPT {
            group.kept.push(finding);
        }
    }

    /// Sets the agents that have a number of repeats, for the message about those that have none.
    pub(super) fn set_listed_agents(&mut self, agents: Vec<&str>) {
        self.about.listed_agents = agents.into_iter().map(str::to_owned).collect();
    }

    /// Returns, for each kind that was found, the number of findings and the first 20 of them.
    pub fn findings(&self) -> impl Iterator<Item = (Kind, u64, &[Finding])> {
        self.groups
            .iter()
            .map(|(kind, group)| (*kind, group.count, group.kept.as_slice()))
    }

    /// Returns the errors in NeMo Gym's words, the most basic first, with places only where NeMo Gym gives them.
    pub fn messages(&self) -> Vec<String> {
        let mut messages = Vec::new();
        for (kind, group) in &self.groups {
            match self.summary(*kind, group) {
                Some(summary) => messages.push(summary),
                None => messages.extend(group.kept.iter().map(|finding| finding.message(*kind))),
            }
        }
        messages
    }

    /// Returns the message that covers all findings of a kind; `None` if each finding has a message of its own.
    fn summary(&self, kind: Kind, group: &Group) -> Option<String> {
        Some(match kind {
            Kind::PromptConflict => format!(
                "Some rows have responses_create_params.input but prompt_config is also specified. These are \
                 mutually exclusive. Use one or the other. Violating rows: {}",
                group.rows()
            ),
            Kind::NoAgent if self.about.is_routed => format!(
                "No agent specified for rows {}. Provide +agent_name (or +agent_map with a _default entry), or include \
                 agent_ref or task_source in the data.",
                group.rows()
            ),
            Kind::NoAgent => format!(
                "No agent specified for rows {}. Either provide +agent_name config or include agent_ref in data.",
                group.rows()
            ),
            Kind::TaskSource => {
                let sources: Vec<&str> = self.about.sources.iter().map(String::as_str).collect();
                let sources = sources.join("; ");
                format!("Cannot resolve task_source to an agent: {sources}")
            }
            Kind::UnlistedAgent => {
                let names = if self.about.is_routed {
                    ["routing keys", "keys"]
                } else {
                    ["agents"; 2]
                };
                let [unlisted, listed] = names;
                format!(
                    "num_repeats dict has no entry for {unlisted} {} and no '_default' fallback. Listed {listed}: {}",
                    repr_list(&self.about.unlisted_agents),
                    repr_list(&self.about.listed_agents)
                )
            }
            Kind::Malformed | Kind::Prompt | Kind::Task => return None,
        })
    }
}

impl Group {
    fn rows(&self) -> String {
        let rows = self.kept.iter().map(|finding| finding.row.to_string());
        let rows = rows.collect::<Vec<_>>().join(", ");
        let more = self.count > self.kept.len() as u64;
        format!("[{rows}{}]", if more { ", ..." } else { "" })
    }

    /// Returns the findings that people see: few if they are all the same.
    fn shown(&self) -> &[Finding] {
        let mut whats = self.kept.iter().map(|finding| &finding.what);
        let first = whats.next();
        let is_same = whats.all(|what| Some(what) == first);
        let most = if is_same { SHOWN } else { KEPT };
        self.kept.get(..most).unwrap_or(&self.kept)
    }
}

impl Finding {
    /// Returns the message about this line, for kinds without a summary.
    fn message(&self, kind: Kind) -> String {
        let Self {
            file, line, what, ..
        } = self;
        match kind {
            Kind::Malformed => format!("Malformed JSON in '{file}' at line {line}: {what}"),
            Kind::Task => format!("Invalid task in '{file}' at line {line}: {what}"),
            _ => what.clone(),
        }
    }
}

/// Returns what the user can do about a kind of finding.
fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Malformed => {
            "Each line must be one JSON object in UTF-8; correct or remove these lines."
        }
        Kind::PromptConflict => "Leave out the prompt config, or remove the input of these rows.",
        Kind::Prompt => {
            "Name fields that every row has in the prompt config, or add them to these rows."
        }
        Kind::Task => {
            "Correct or remove these lines. Questions for a model need --model-url, --model and --check."
        }
        Kind::NoAgent => {
            "Name one agent for them with --agent, or an agent_ref.name in each; --model-url asks a model itself."
        }
        Kind::TaskSource => {
            "Start NeMo Gym with the servers that the task sources name, or send their rows elsewhere with --agent-map."
        }
        Kind::UnlistedAgent => "Add these agents to --num-repeats, or a _default for all others.",
    }
}

impl fmt::Display for InputErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (kind, group)) in self.groups.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            if let Some(summary) = self.summary(*kind, group) {
                writeln!(f, "{summary}")?;
            }
            let shown = group.shown();
            for finding in shown {
                let Finding {
                    file, line, what, ..
                } = finding;
                match kind {
                    Kind::Malformed | Kind::Task => writeln!(f, "{}", finding.message(*kind))?,
                    Kind::Prompt => writeln!(f, "{what}\n  at {file}:{line}")?,
                    Kind::UnlistedAgent => writeln!(f, "  at {file}:{line} (agent {what})")?,
                    Kind::PromptConflict | Kind::NoAgent | Kind::TaskSource => {
                        writeln!(f, "  at {file}:{line}")?;
                    }
                }
            }
            let more = group.count - shown.len() as u64;
            if more > 0 {
                writeln!(f, "  and {more} more")?;
            }
            write!(f, "{}", remedy(*kind))?;
        }
        for warning in &self.about.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(row: u64, what: &str) -> Finding {
        Finding {
            row,
            file: Arc::from("/in/a.jsonl"),
            line: row + 1,
            what: what.to_owned(),
        }
    }

    #[test]
    fn the_most_basic_errors_come_first_with_their_places() {
        let mut errors = InputErrors::default();
        errors.add(Kind::UnlistedAgent, finding(5, "gamma"));
        errors.add(Kind::UnlistedAgent, finding(6, "beta"));
        errors.add(Kind::NoAgent, finding(0, ""));
        errors.add(Kind::NoAgent, finding(2, ""));
        errors.add(Kind::Malformed, finding(3, "expected ':' at column 5"));
        errors.set_listed_agents(vec!["alpha"]);
        let messages = errors.messages();
        assert_eq!(
            messages,
            [
                "Malformed JSON in '/in/a.jsonl' at line 4: expected ':' at column 5",
                "No agent specified for rows [0, 2]. Either provide +agent_name config or include agent_ref in data.",
                "num_repeats dict has no entry for agents ['beta', 'gamma'] and no '_default' fallback. \
                 Listed agents: ['alpha']",
            ]
        );
        let shown = errors.to_string();
        assert!(
            messages.iter().all(|message| shown.contains(message)),
            "{shown}"
        );
        assert!(shown.contains("\n  at /in/a.jsonl:3\n"), "{shown}");
        assert!(shown.contains("--agent"), "{shown}");
        let counts = errors.findings().map(|(_, count, _)| count);
        assert_eq!(counts.sum::<u64>(), 5);
    }

    #[test]
    fn many_findings_are_counted_and_the_first_are_shown() {
        let mut errors = InputErrors::default();
        for row in 0..1000 {
            errors.add(Kind::NoAgent, finding(row, ""));
        }
        let shown = errors.to_string();
        assert!(
            shown.contains("rows [0, 1, ") && shown.contains("19, ...]"),
            "{shown}"
        );
        assert!(shown.contains("and 995 more"), "{shown}");
        assert_eq!(
            errors
                .findings()
                .map(|(_, count, kept)| (count, kept.len()))
                .collect::<Vec<_>>(),
            [(1000, 20)]
        );
    }
}
