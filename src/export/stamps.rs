use std::collections::BTreeMap;
use std::ops::Range;

use datafusion::common::Result as QueryResult;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use indexmap::IndexSet;

use super::columns::{at, integers, texts};
use super::sorted::Key;
use crate::json::{Object, ObjectError, quote, splice, unquote};
use crate::request::{
    AGENT_REF, ATTEMPT_INDEX, ENVIRONMENT_SERVER, RESULT_TYPE, ROLLOUT_INDEX, SKILLS_REF,
    TASK_INDEX, TASK_SOURCE, agent_name,
};
use crate::store::EnvironmentServer;

/// The tasks of a run, in the order of its lines.
pub(super) const INPUTS: &str = include_str!("../../queries/export/inputs.sql");

/// The id under which an agent's server keeps a rollout.
const ROLLOUT_ID: &str = "_ng_rollout_id";

/// What an answer is given from the row that was sent.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stamps {
    /// None where it is the number that the run's tables have.
    task_index: Option<String>,
    agent_ref: Option<String>,
    task_source: Option<String>,
    skills_ref: Option<String>,
    attempt_index: Option<String>,
    rollout_id: Option<String>,
    environment_server: Option<String>,
    result_type: Option<String>,
}

/// How a rollout is called in what was observed of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub task: String,
    pub rollout: String,
}

/// The environment servers of a run by agent; none where its version of NeMo Gym has no such stamps.
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
            agent_ref: value(AGENT_REF),
            task_source: value(TASK_SOURCE).filter(|_| servers.is_some()),
            skills_ref: value(SKILLS_REF),
            attempt_index: value(ATTEMPT_INDEX),
            rollout_id: value(ROLLOUT_ID),
            environment_server: server.map(|server| quote(&server.name)),
            result_type: server.map(|server| quote(&server.implementation)),
        }
    }

    fn identity(&self, (task_index, rollout_index, attempt): Key) -> Identity {
        let own = |text: &Option<String>| {
            let text = text.as_deref()?;
            Some(unquote(text).map_or_else(|| text.to_owned(), |text| text.into_owned()))
        };
        let task = own(&self.task_index).unwrap_or_else(|| task_index.to_string());
        let attempt = if attempt > 0 {
            format!("-a{attempt}")
        } else {
            String::new()
        };
        let rollout = own(&self.rollout_id);
        Identity {
            rollout: rollout.unwrap_or_else(|| format!("{task}-{rollout_index}{attempt}")),
            task,
        }
    }

    fn stamp(&self, answer: &str, key: Key) -> Result<String, ObjectError> {
        let (task_index, rollout_index, attempt) = key;
        let task_index = task_index.to_string();
        let task_index = self.task_index.as_ref().unwrap_or(&task_index);
        let rollout_index = rollout_index.to_string();
        // A retry overwrites what the row came with; the first attempt leaves it alone.
        let attempt = (attempt > 0).then(|| attempt.to_string());
        let mut fields = vec![
            (TASK_INDEX, task_index.as_str()),
            (ROLLOUT_INDEX, rollout_index.as_str()),
        ];
        let optional = [
            (AGENT_REF, self.agent_ref.as_deref()),
            (TASK_SOURCE, self.task_source.as_deref()),
            (SKILLS_REF, self.skills_ref.as_deref()),
            (
                ATTEMPT_INDEX,
                attempt.as_deref().or(self.attempt_index.as_deref()),
            ),
            (ROLLOUT_ID, self.rollout_id.as_deref()),
            (ENVIRONMENT_SERVER, self.environment_server.as_deref()),
            (RESULT_TYPE, self.result_type.as_deref()),
        ];
        fields.extend(
            optional
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Ok(one_line(splice(answer.trim_ascii(), &fields)?))
    }
}

/// The stamps of all tasks: those that are alike, as most are, are kept once.
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
    /// Those of all tasks of a session, in a run with these environment servers.
    ///
    /// # Errors
    /// The tasks can't be read.
    pub async fn read(session: &SessionContext, servers: EnvironmentServers) -> QueryResult<Self> {
        let mut index = Self {
            servers,
            ..Self::default()
        };
        let mut batches = session.sql(INPUTS).await?.execute_stream().await?;
        while let Some(batch) = batches.try_next().await? {
            let requests = texts(&batch, "request")?;
            let task_index = integers(&batch, "task_index")?;
            let first = integers(&batch, "first_rollout_index")?;
            let repeats = integers(&batch, "num_repeats")?;
            for row in 0..batch.num_rows() {
                let first = at(&first, row);
                let rollouts = first..first.saturating_add(at(&repeats, row));
                index.add(at(&task_index, row), rollouts, requests.value(row));
            }
        }
        index.sort();
        Ok(index)
    }

    /// Adds rollouts of a task, from the first on, whose request this is.
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

    /// To be called when all are added, and before the first is asked for.
    fn sort(&mut self) {
        self.tasks.sort_unstable();
    }

    /// An answer with its stamps, as one line. What is there already stays where it is, and every other byte as it
    /// came, but for line breaks between values, which become spaces.
    ///
    /// # Errors
    /// NeMo Gym could not read the answer: it is malformed by its rules.
    pub fn stamp(&self, answer: &str, key: Key) -> Result<String, ObjectError> {
        match self.of(key) {
            Some(stamps) => stamps.stamp(answer, key),
            None => Stamps::default().stamp(answer, key),
        }
    }

    /// How a rollout is called by whoever observes it.
    pub(super) fn identity(&self, key: Key) -> Identity {
        match self.of(key) {
            Some(stamps) => stamps.identity(key),
            None => Stamps::default().identity(key),
        }
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

/// In JSON a raw line break can only stand between values.
pub(super) fn one_line(text: String) -> String {
    match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], " "),
        false => text,
    }
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
