//! [`StampIndex`]: the fields that NeMo Gym copies into an answer from the row that was sent.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use datafusion::common::Result as QueryResult;
use datafusion::prelude::SessionContext;
use indexmap::IndexSet;

use super::target::Key;
use crate::json::{Object, ObjectError, quote, splice, unquote};
use crate::request::{
    AGENT_REF, ATTEMPT_INDEX, ENVIRONMENT_SERVER, RESULT_TYPE, ROLLOUT_INDEX, SKILLS_REF,
    TASK_INDEX, TASK_SOURCE, agent_name,
};
use crate::session::{Rows, row};
use crate::store::EnvironmentServer;

const INPUTS: &str = include_str!("../../queries/export/inputs.sql");

row! {
    /// A line of a run's input: some rollouts of a task, and their request.
    pub(super) struct Input {
        task_index: i64,
        first_rollout_index: i64,
        num_repeats: i64,
        pub(super) request: String,
    }
}

impl Input {
    pub(super) fn rollouts(&self) -> Range<i64> {
        self.first_rollout_index..self.first_rollout_index.saturating_add(self.num_repeats)
    }
}

/// The input lines of a run in their order.
pub(super) async fn inputs(session: &SessionContext) -> QueryResult<Rows<Input>> {
    Rows::of(session, INPUTS, Input::rows).await
}

/// The field with the id under which an agent's server keeps a rollout.
const ROLLOUT_ID: &str = "_ng_rollout_id";

/// The fields that an answer gets from the row that was sent, behind those of its task and rollout.
const STAMPS: [&str; 7] = [
    AGENT_REF,
    TASK_SOURCE,
    SKILLS_REF,
    ATTEMPT_INDEX,
    ROLLOUT_ID,
    ENVIRONMENT_SERVER,
    RESULT_TYPE,
];

/// What an answer gets from the row that was sent.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stamps {
    /// `None` if it is the number in the run's tables.
    task_index: Option<String>,
    /// The values of [`STAMPS`].
    values: [Option<String>; STAMPS.len()],
}

/// The names of a task and a rollout in a trajectory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub task: String,
    pub rollout: String,
}

/// The environment servers of a run by agent; `None` if its version of NeMo Gym has no such stamps.
pub type EnvironmentServers = Option<BTreeMap<String, EnvironmentServer>>;

impl Stamps {
    fn of(request: &str, task_index: i64, servers: &EnvironmentServers) -> Self {
        let row = Object::parse(request).unwrap_or_default();
        let value = |name: &str| row.get(name).map(str::to_owned);
        let own = row.get(ENVIRONMENT_SERVER).and_then(unquote);
        let server = servers.as_ref().and_then(|servers| match own {
            Some(own) => servers.values().find(|server| server.name == *own),
            None => servers.get(&agent_name(&row)?),
        });
        Self {
            task_index: value(TASK_INDEX).filter(|text| *text != task_index.to_string()),
            values: STAMPS.map(|name| match name {
                ENVIRONMENT_SERVER => Some(quote(&server?.name)),
                RESULT_TYPE => Some(quote(&server?.implementation)),
                TASK_SOURCE if servers.is_none() => None,
                _ => value(name),
            }),
        }
    }

    fn identity(&self, (task_index, rollout_index, attempt): Key) -> Identity {
        let own =
            |text: &String| unquote(text).map_or_else(|| text.clone(), |text| text.into_owned());
        let task = self.task_index.as_ref().map(own);
        let task = task.unwrap_or_else(|| task_index.to_string());
        let attempt = if attempt > 0 {
            format!("-a{attempt}")
        } else {
            String::new()
        };
        let mut stamps = STAMPS.into_iter().zip(&self.values);
        let rollout =
            stamps.find_map(|(name, value)| value.as_ref().filter(|_| name == ROLLOUT_ID));
        let rollout = rollout.map(own);
        Identity {
            rollout: rollout.unwrap_or_else(|| format!("{task}-{rollout_index}{attempt}")),
            task,
        }
    }

    /// The stamps of a rollout as JSON texts, in their order.
    fn of_rollout(&self, key: Key) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let (task_index, rollout_index, attempt) = key;
        let numbers = [
            (TASK_INDEX, spelled(self.task_index.as_ref(), task_index)),
            (ROLLOUT_INDEX, spelled(None, rollout_index)),
        ];
        let stamps = STAMPS.into_iter().zip(&self.values);
        let stamps = stamps.filter_map(move |(name, value)| match value {
            // A retry overwrites what the row came with; the first attempt leaves it alone.
            _ if name == ATTEMPT_INDEX && attempt > 0 => Some((name, spelled(None, attempt))),
            Some(value) => Some((name, Cow::Borrowed(value.as_str()))),
            None => None,
        });
        numbers.into_iter().chain(stamps)
    }

    fn stamp(&self, answer: &str, key: Key) -> Result<String, ObjectError> {
        let stamps: Vec<_> = self.of_rollout(key).collect();
        Ok(one_line(splice(answer.trim_ascii(), &stamps)?))
    }
}

fn spelled(given: Option<&String>, number: i64) -> Cow<'_, str> {
    given.map_or_else(|| number.to_string().into(), |given| given.as_str().into())
}

/// The stamps of all tasks. Equal ones, as most are, are kept once.
#[derive(Debug, Default)]
pub struct StampIndex {
    servers: EnvironmentServers,
    stamps: IndexSet<Stamps>,
    tasks: Vec<Task>,
}

/// Some rollouts of a task.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Task {
    task_index: i64,
    first_rollout_index: i64,
    end: i64,
    stamps: usize,
}

impl StampIndex {
    /// Reads the stamps of all tasks of a session, in a run with these environment servers.
    ///
    /// # Errors
    /// The tasks can't be read.
    pub async fn read(session: &SessionContext, servers: EnvironmentServers) -> QueryResult<Self> {
        let mut index = Self {
            servers,
            ..Self::default()
        };
        let mut lines = inputs(session).await?;
        while let Some(line) = lines.next().await? {
            index.add(line.task_index, line.rollouts(), &line.request);
        }
        index.sort();
        Ok(index)
    }

    /// Adds rollouts of a task with their request.
    fn add(&mut self, task_index: i64, rollouts: Range<i64>, request: &str) {
        let (stamps, _) = self
            .stamps
            .insert_full(Stamps::of(request, task_index, &self.servers));
        self.tasks.push(Task {
            task_index,
            first_rollout_index: rollouts.start,
            end: rollouts.end,
            stamps,
        });
    }

    /// Sorts the tasks. Must be called after all are added, before the first look-up.
    fn sort(&mut self) {
        self.tasks.sort_unstable();
    }

    /// Returns an answer with its stamps, as one line. Existing fields stay in their place, and all other bytes as they
    /// came, except line breaks between values, which become spaces.
    ///
    /// # Errors
    /// NeMo Gym could not read the answer: it is malformed by its rules.
    pub fn stamp(&self, answer: &str, key: Key) -> Result<String, ObjectError> {
        let none = Stamps::default();
        self.of(key).unwrap_or(&none).stamp(answer, key)
    }

    /// Gives an answer its stamps.
    pub(crate) fn set(&self, answer: &mut Object<'_>, key: Key) {
        let none = Stamps::default();
        for (name, value) in self.of(key).unwrap_or(&none).of_rollout(key) {
            answer.set(name, value.into_owned());
        }
    }

    /// Returns the names of a rollout in its trajectory.
    pub(super) fn identity(&self, key: Key) -> Identity {
        let none = Stamps::default();
        self.of(key).unwrap_or(&none).identity(key)
    }

    fn of(&self, (task_index, rollout_index, _): Key) -> Option<&Stamps> {
        let is_before = |task: &Task| {
            (task.task_index, task.first_rollout_index) <= (task_index, rollout_index)
        };
        let place = self.tasks.partition_point(is_before).checked_sub(1);
        place
            .and_then(|place| self.tasks.get(place))
            .filter(|task| task.task_index == task_index && rollout_index < task.end)
            .and_then(|task| self.stamps.get_index(task.stamps))
    }
}

/// Replaces line breaks, which in JSON can only be between values, with spaces.
pub(super) fn one_line(text: String) -> String {
    if text.contains(['\n', '\r']) {
        return text.replace(['\n', '\r'], " ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"agent_ref":{"name":"a"},"_ng_task_index":"t","_ng_rollout_id":"r"}"#;

    fn index(request: &str) -> StampIndex {
        let mut index = StampIndex::default();
        index.add(7, 3..5, "{}");
        index.add(7, 0..3, request);
        index.sort();
        index
    }

    #[test]
    fn stamps_are_in_place_or_at_the_end_in_order() {
        let index = index(ROW);
        assert_eq!(
            index
                .stamp("{\"_ng_rollout_index\": 9,\n \"x\" : 1.0}\n", (7, 2, 0))
                .unwrap(),
            r#"{"_ng_rollout_index": 2,  "x" : 1.0,"_ng_task_index":"t","agent_ref":{"name":"a"},"_ng_rollout_id":"r"}"#
        );
        assert_eq!(
            index.stamp("{}", (7, 0, 1)).unwrap(),
            r#"{"_ng_task_index":"t","_ng_rollout_index":0,"agent_ref":{"name":"a"},"_ng_attempt_index":1,"_ng_rollout_id":"r"}"#
        );
        assert!(index.stamp(r#"{"x": 1e999}"#, (7, 0, 0)).is_err());
    }

    #[test]
    fn a_result_says_which_environment_server_it_came_from() {
        let server = EnvironmentServer {
            name: "e".into(),
            implementation: "legacy_agent".into(),
            agent: None,
        };
        let mut index = StampIndex {
            servers: Some(BTreeMap::from([("a".to_owned(), server)])),
            ..StampIndex::default()
        };
        index.add(0, 0..1, r#"{"agent_ref":{"name":"a"},"task_source":"s"}"#);
        index.add(1, 0..1, r#"{"_ng_environment_server":"e"}"#);
        index.sort();
        let ends = r#""_ng_environment_server":"e","_ng_result_type":"legacy_agent"}"#;
        let first = index.stamp("{}", (0, 0, 0)).unwrap();
        assert!(
            first.ends_with(&format!(r#""task_source":"s",{ends}"#)),
            "{first}"
        );
        let second = index.stamp("{}", (1, 0, 0)).unwrap();
        assert!(second.ends_with(ends), "{second}");
    }

    #[test]
    fn each_rollout_has_the_stamps_of_its_row() {
        let index = index(ROW);
        for (rollout, expected) in [
            (3, r#"{"_ng_task_index":7,"_ng_rollout_index":3}"#),
            (5, r#"{"_ng_task_index":7,"_ng_rollout_index":5}"#),
        ] {
            assert_eq!(index.stamp("{}", (7, rollout, 0)).unwrap(), expected);
        }
    }

    #[test]
    fn what_the_row_came_with_counts_for_the_first_attempt() {
        let index = index(r#"{"_ng_attempt_index":5,"skills_ref":[1]}"#);
        let stamped = |attempt| index.stamp("{}", (7, 0, attempt)).unwrap();
        assert_eq!(
            stamped(0),
            r#"{"_ng_task_index":7,"_ng_rollout_index":0,"skills_ref":[1],"_ng_attempt_index":5}"#
        );
        assert!(stamped(2).ends_with("\"_ng_attempt_index\":2}"));
    }
}
