//! Keeps a few bytes about every rollout of a collection ([`Collection`]), and reads its answers and failures as
//! outcomes of attempts ([`answer`], [`flagged`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;
use indexmap::IndexSet;
use serde::Serialize;

use super::collection::CollectionRules;
use super::error::{ImportError, RowProblem};
use super::keys::{ROLLOUT, RowKey, TASK, TaskKeys};
use super::lines::Line;
use super::rows::outcome;
use crate::config::Settings;
use crate::json::{Object, ObjectError, unquote};
use crate::outcome::{Answer, AnswerFields, Outcome, Verdict, resume};
use crate::request::{ATTEMPT_INDEX, ENVIRONMENT_SERVER, RESULT_TYPE};
use crate::retry::{Failure, FailureClass};
use crate::store::{EnvironmentServer, InputRecord, RunCounts};

/// What was read of a collection.
#[derive(Debug, Default)]
pub struct Collection {
    /// The files that were read: materialized inputs, rollouts and, if there are any, failures.
    pub files: Vec<InputRecord>,
    /// Warnings about the files.
    pub warnings: Vec<String>,
    /// Rows of the table `tasks`.
    pub num_tasks: u64,
    /// Materialized inputs, including those with the key of an earlier one.
    pub inputs: u64,
    /// Rows of the file of rollouts, including those with the key of an earlier one.
    pub answers: u64,
    /// Rows of the file of failures, including those of rollouts that were not planned.
    pub failures: u64,
    /// The environment servers that answers came from, by agent.
    pub servers: BTreeMap<String, EnvironmentServer>,
    pub(super) agents: IndexSet<String>,
    pub(super) planned: HashMap<RowKey, Rollout>,
    /// Answers that became failures.
    pub(super) migrated: HashSet<[String; 4]>,
    /// Failures of rollouts that were not planned.
    pub(super) foreign: HashMap<RowKey, Failures>,
}

/// Failed attempts at a rollout.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Failures {
    pub(super) count: u32,
    pub(super) terminal: bool,
}

/// A planned rollout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rollout {
    /// Position of its agent's name in `agents`.
    agent: usize,
    /// Number of materialized inputs with its key.
    inputs: u32,
    pub(super) failures: Failures,
    pub(super) is_done: bool,
}

/// Counts of rollouts with failed attempts, by the current budgets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureCounts {
    /// Rollouts with failed attempts.
    #[serde(rename = "failed_rollouts")]
    pub rollouts: u64,
    /// Rollouts that must not be retried.
    #[serde(rename = "terminal_rollouts")]
    pub terminal: u64,
    /// Rollouts without attempts left.
    #[serde(rename = "exhausted_rollouts")]
    pub exhausted: u64,
}

impl Rollout {
    /// Whether the rollout is done or must not be retried, whatever the budgets are.
    pub(super) fn is_settled(&self) -> bool {
        self.is_done || self.failures.terminal
    }
}

impl Collection {
    /// Adds a materialized input.
    pub(super) fn plan(&mut self, key: RowKey, agent: &str) {
        self.inputs += 1;
        let agent = match self.agents.get_index_of(agent) {
            Some(known) => known,
            None => self.agents.insert_full(agent.to_owned()).0,
        };
        let rollout = self.planned.entry(key).or_insert(Rollout {
            agent,
            inputs: 0,
            failures: Failures::default(),
            is_done: false,
        });
        rollout.inputs += 1;
    }

    /// Adds a failure; returns the number of the attempt, if the rollout was planned.
    pub(super) fn fail(&mut self, key: RowKey, terminal: bool) -> Option<u32> {
        self.failures += 1;
        let planned = self.planned.get_mut(&key);
        let (failures, is_planned) = match planned {
            Some(rollout) => (&mut rollout.failures, true),
            None => (self.foreign.entry(key).or_default(), false),
        };
        let attempt = failures.count;
        failures.count += 1;
        failures.terminal |= terminal;
        is_planned.then_some(attempt)
    }

    /// Returns the name of the agent of a rollout.
    pub(super) fn agent_of(&self, key: RowKey) -> &str {
        let rollout = self.planned.get(&key);
        let name = rollout.and_then(|rollout| self.agents.get_index(rollout.agent));
        name.map_or("", String::as_str)
    }

    /// Notes which environment server an answer came from, if that of its agent is not known yet.
    pub(super) fn note_server(&mut self, key: RowKey, row: &Object<'_>) {
        let text = |name| row.get(name).and_then(unquote);
        let Some(name) = text(ENVIRONMENT_SERVER) else {
            return;
        };
        let agent = self.agent_of(key);
        if !self.servers.contains_key(agent) {
            let server = EnvironmentServer {
                implementation: text(RESULT_TYPE).unwrap_or_default().into_owned(),
                ..EnvironmentServer::named(name.into_owned())
            };
            self.servers.insert(agent.to_owned(), server);
        }
    }

    /// Returns the names of all agents.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.agents.iter().map(String::as_str)
    }

    /// Returns the number of repeated materialized inputs that are not sent again, as their rollouts are settled.
    pub(super) fn settled_copies(&self) -> u64 {
        let settled = self.planned.values().filter(|rollout| rollout.is_settled());
        settled.map(|rollout| u64::from(rollout.inputs - 1)).sum()
    }

    /// Prepares for reading the materialized inputs again, now that the settled rollouts are known.
    pub(super) fn begin_second_reading(&mut self) {
        let rollouts = self.planned.values_mut();
        rollouts.for_each(|rollout| rollout.inputs = 0);
    }

    /// Whether the second reading keeps an input: of a settled rollout's inputs, only the first.
    pub(super) fn keeps(&mut self, key: RowKey) -> bool {
        let Some(rollout) = self.planned.get_mut(&key) else {
            return false;
        };
        let keeps = rollout.inputs == 0 || !rollout.is_settled();
        rollout.inputs += u32::from(keeps);
        keeps
    }

    /// Counts rollouts by their state, with the budgets of `settings`.
    pub fn counts(&self, settings: &Settings) -> RunCounts {
        let budgets = self.budgets(settings);
        let mut counts = RunCounts::default();
        for rollout in self.planned.values() {
            let inputs = u64::from(rollout.inputs);
            let is_failed = rollout.failures.terminal
                || budgets
                    .get(rollout.agent)
                    .is_some_and(|most| rollout.failures.count >= *most);
            counts.planned += inputs;
            if rollout.is_done {
                counts.done += inputs;
            } else if is_failed {
                counts.failed += inputs;
            } else {
                counts.pending += inputs;
            }
        }
        counts
    }

    /// Counts rollouts with failed attempts, planned or not, by the budgets of `settings`.
    pub fn failure_counts(&self, settings: &Settings) -> FailureCounts {
        let budgets = self.budgets(settings);
        let planned = self.planned.values().map(|rollout| {
            let most = budgets.get(rollout.agent).copied();
            (rollout.failures, most.unwrap_or(settings.max_attempts))
        });
        let foreign = self.foreign.values();
        let foreign = foreign.map(|failures| (*failures, settings.max_attempts));
        let mut counts = FailureCounts::default();
        for (failures, most) in planned.chain(foreign) {
            counts.rollouts += u64::from(failures.count > 0);
            counts.terminal += u64::from(failures.terminal);
            counts.exhausted += u64::from(failures.count >= most);
        }
        counts
    }

    fn budgets(&self, settings: &Settings) -> Vec<u32> {
        let most = |agent: &String| settings.budgets(agent).attempts;
        self.agents.iter().map(most).collect()
    }
}

/// What a line of rollouts or failures is.
pub(super) enum Found {
    /// An answer.
    Answer(Box<Outcome>),
    /// A failed attempt, or an answer whose judge gave no valid answer.
    Failure(Box<Outcome>),
    /// An answer with the key of an earlier one.
    Again,
    /// A failure of a rollout that was not planned.
    Foreign,
    /// A blank line, a row without a key, or an answer that is among the failures already.
    Nothing,
}

/// Reads a line of the file of rollouts.
pub(super) fn answer(
    line: &Line<'_>,
    keys: &mut TaskKeys,
    collection: &mut Collection,
    rules: &CollectionRules,
) -> Result<Found, ImportError> {
    if rules.gym.blank_rollouts && line.text.trim_ascii().is_empty() {
        return Ok(Found::Nothing);
    }
    let row = line.row()?;
    if rules.retry_invalid_judge_responses && resume::is_judged_invalidly(&row) {
        if collection.migrated.contains(&migration(&row)) {
            return Ok(Found::Nothing);
        }
        let text = resume::migrated(&row);
        let line = Line {
            text: &text,
            ..*line
        };
        return flagged(&line, keys, collection, rules);
    }
    let key = keys.key(&row).map_err(|problem| line.problem(problem))?;
    let Some(rollout) = collection.planned.get_mut(&key) else {
        return Err(line.problem(RowProblem::UnknownKey(key.to_string())));
    };
    collection.answers += 1;
    if std::mem::replace(&mut rollout.is_done, true) {
        return Ok(Found::Again);
    }
    let stamped = row.get(ATTEMPT_INDEX).and_then(|text| text.parse().ok());
    let attempt = stamped.unwrap_or(rollout.failures.count);
    let verdict = Verdict::Ok(Answer {
        body: Bytes::copy_from_slice(line.text.as_bytes()),
        fields: fields(line)?,
    });
    if rules.gym.servers {
        collection.note_server(key, &row);
    }
    let outcome = outcome(key, attempt, collection.agent_of(key), verdict);
    Ok(Found::Answer(Box::new(outcome)))
}

/// Reads a line of the file of failures.
pub(super) fn flagged(
    line: &Line<'_>,
    keys: &mut TaskKeys,
    collection: &mut Collection,
    rules: &CollectionRules,
) -> Result<Found, ImportError> {
    if line.text.trim_ascii().is_empty() {
        return Ok(Found::Nothing);
    }
    let row = match Object::parse(line.text) {
        Ok(row) => row,
        Err(ObjectError::NotAnObject(_)) => return Ok(Found::Nothing),
        Err(ObjectError::Syntax(source)) => return Err(line.problem(RowProblem::Malformed(source))),
    };
    if !row.contains(TASK) || !row.contains(ROLLOUT) {
        return Ok(Found::Nothing);
    }
    // A key of another type than those of the inputs matches none of them.
    let Ok(key) = keys.key(&row) else {
        return Ok(Found::Nothing);
    };
    if resume::is_migrated(&row) {
        collection.migrated.insert(migration(&row));
    }
    let fields = fields(line)?;
    let class = fields.failure_class.as_deref();
    let terminal = if rules.retry_terminal_timeouts {
        resume::is_terminal(class, fields.failure_terminal)
    } else {
        fields.failure_terminal
    };
    let Some(attempt) = collection.fail(key, terminal) else {
        return Ok(Found::Foreign);
    };
    let mut error = match &fields.failure_class {
        Some(class) => format!("the agent reported a failure (_ng_failure_class: {class:?})"),
        None => "the agent reported a failure".to_owned(),
    };
    for part in ["_ng_failure_type", "_ng_failure_message"] {
        if let Some(text) = row.get(part).and_then(unquote) {
            error.push_str(": ");
            error.push_str(&text);
        }
    }
    let status = row.get("_ng_failure_http_status");
    let failure = Failure {
        failure_terminal: fields.failure_terminal,
        answer: Some(Bytes::copy_from_slice(line.text.as_bytes())),
        ..Failure::new(FailureClass::AgentFlagged, error)
    };
    let verdict = Verdict::Failed { failure, terminal };
    let outcome = Outcome {
        http_status: status.and_then(|status| status.parse().ok()),
        ..outcome(key, attempt, collection.agent_of(key), verdict)
    };
    Ok(Found::Failure(Box::new(outcome)))
}

/// The identity of an answer that became a failure: stage, task, rollout and attempt.
fn migration(row: &Object<'_>) -> [String; 4] {
    ["stage_index", TASK, ROLLOUT, ATTEMPT_INDEX].map(|name| match row.get(name) {
        None | Some("null") => "0".to_owned(),
        Some(value) => value.to_owned(),
    })
}

fn fields(line: &Line<'_>) -> Result<AnswerFields, ImportError> {
    AnswerFields::parse(line.text).map_err(|_| line.problem(RowProblem::NotAnObject))
}
