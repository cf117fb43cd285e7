//! Joins the rollouts of a task with the task's statistics: [`Groups`] reads the two tables as
//! streams, one [`Group`] at a time.

use std::mem;

use datafusion::common::ScalarValue;
use datafusion::prelude::SessionContext;
use memchr::memmem;

use super::completion::percent;
use super::json_object::JsonObject;
use super::statistics::{Layout, Statistic};
use crate::gym::GymRules;
use crate::import::TaskLabels;
use crate::json::{Object, write_quoted};
use crate::measure::error::MeasureError;
use crate::measure::families::is_reserved;
use crate::measure::rows::{Rows, row};
use crate::outcome::MASK_SAMPLE;
use crate::request::agent_ref;

/// The start of a rollout's entry that has a number under the name of our id.
const OWN_ID: &str = "{\"rollout_id\":";

/// Whether the text of an entry may have a field of a reserved name ([`is_reserved`]).
fn may_be_reserved(text: &str) -> bool {
    let has = |start: &str| memmem::find(text.as_bytes(), start.as_bytes()).is_some();
    has("\"_") || has(MASK_SAMPLE)
}

/// The rollouts of one task, or of one agent at one task.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) agent_name: String,
    pub(super) task_index: i64,
    num_rollouts: i64,
    /// The entries of the rollouts as JSON objects, separated by commas.
    infos: String,
    statistics: Vec<Statistic>,
}

row! {
    struct Info {
        agent_name: String,
        task_index: i64,
        rollout_index: i64,
        info: String,
    }
}

/// What a group contains, and the order of the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupOrder {
    /// A group for each agent and task, sorted by agent.
    AgentTask,
    /// A group for each agent and task, sorted by task.
    TaskAgent,
    /// A group for each task, with the rollouts of all agents.
    Task,
}

/// Groups of rollouts, in ascending order.
pub(super) struct Groups<'a> {
    infos: Rows<Info>,
    statistics: Rows<Statistic>,
    labels: &'a TaskLabels,
    rules: &'static GymRules,
}

impl<'a> Groups<'a> {
    /// Starts reading. The table `task_statistics` must have the same groups.
    pub(super) async fn read(
        ctx: &SessionContext,
        labels: &'a TaskLabels,
        order: GroupOrder,
        rules: &'static GymRules,
    ) -> Result<Self, MeasureError> {
        let by_task = ("by_task", ScalarValue::from(order == GroupOrder::TaskAgent));
        let split_agents = ScalarValue::from(order != GroupOrder::Task);
        let parameters = [("split_agents", split_agents), by_task.clone()];
        let sql = include_str!("../../../queries/nemo_gym/rollout_infos.sql");
        let infos = Rows::with_parameters(ctx, sql, &parameters, Info::rows).await?;
        let sql = include_str!("../../../queries/nemo_gym/task_rows.sql");
        let statistics = Rows::with_parameters(ctx, sql, &[by_task], Statistic::rows).await?;
        Ok(Self {
            infos: infos.ahead(),
            statistics: statistics.ahead(),
            labels,
            rules,
        })
    }

    /// Returns the next group.
    pub(super) async fn next(&mut self) -> Result<Option<Group>, MeasureError> {
        let Some(first) = self.infos.next().await? else {
            return Ok(None);
        };
        let mut group = Group {
            agent_name: first.agent_name.clone(),
            task_index: first.task_index,
            num_rollouts: 0,
            infos: String::new(),
            statistics: Vec::new(),
        };
        let mut next = Some(first);
        while let Some(info) = next {
            group.append(self.labels, &info, self.rules);
            let same = |info: &Info| group.is(&info.agent_name, info.task_index);
            next = self.infos.next_if(same).await?;
        }
        loop {
            let same = |row: &Statistic| group.is(&row.agent_name, row.task_index);
            match self.statistics.next_if(same).await? {
                Some(row) => group.statistics.push(row),
                None => return Ok(Some(group)),
            }
        }
    }

    /// Skips the groups of agents whose names sort before `agent`.
    pub(super) async fn skip_to(&mut self, agent: &str) -> Result<(), MeasureError> {
        let before = |info: &Info| info.agent_name.as_str() < agent;
        while self.infos.next_if(before).await?.is_some() {}
        let before = |row: &Statistic| row.agent_name.as_str() < agent;
        while self.statistics.next_if(before).await?.is_some() {}
        Ok(())
    }

    /// Returns the next group if it is one of `agent`.
    pub(super) async fn next_of(&mut self, agent: &str) -> Result<Option<Group>, MeasureError> {
        match self.infos.peek().await? {
            Some(info) if info.agent_name == agent => self.next().await,
            _ => Ok(None),
        }
    }
}

impl Group {
    fn is(&self, agent_name: &str, task_index: i64) -> bool {
        self.task_index == task_index && self.agent_name == agent_name
    }

    fn append(&mut self, labels: &TaskLabels, info: &Info, rules: &GymRules) {
        if self.num_rollouts > 0 {
            self.infos.push(',');
        }
        let mut object = JsonObject::behind(mem::take(&mut self.infos));
        let rest = match info.info.strip_prefix(OWN_ID) {
            // The answer's number under this name replaces our id.
            Some(number) => {
                let (number, rest) = number.split_at(number.find([',', '}']).unwrap_or_default());
                object.raw("rollout_id", number);
                rest.trim_start_matches(',')
            }
            None => {
                let id = format!("{}:{}", labels.text(info.task_index), info.rollout_index);
                write_quoted(&id, object.field("rollout_id"));
                info.info.strip_prefix('{').unwrap_or_default()
            }
        };
        object.raw("_ng_task_index", &labels.json(info.task_index));
        object.integer("_ng_rollout_index", info.rollout_index);
        if rules.reserved || !may_be_reserved(rest) {
            object.append(rest.strip_suffix('}').unwrap_or_default());
        } else {
            let rest = format!("{{{rest}");
            let numbers = Object::parse(&rest).unwrap_or_default();
            let numbers = numbers.iter().filter(|(name, ..)| !is_reserved(name));
            numbers.for_each(|(_, quoted, value)| object.quoted(quoted).push_str(value));
        }
        self.infos = object.finish();
        self.num_rollouts += 1;
    }

    /// Returns the group as a JSON object: its statistics, a sample request, how complete it is, and every
    /// rollout. `agent` is the agent's name, if it is to be written. `expected` is the number of planned rollouts;
    /// `None` means that all of them are there.
    pub(super) fn to_json(
        &self,
        layout: &Layout,
        labels: &TaskLabels,
        sample: &str,
        expected: Option<i64>,
        agent: Option<&str>,
    ) -> String {
        let expected = expected.unwrap_or(self.num_rollouts);
        let mut object = JsonObject::default();
        object.raw("_ng_task_index", &labels.json(self.task_index));
        layout.write(&self.statistics, &mut object);
        if let Some(agent) = agent {
            object.raw("agent_ref", &agent_ref(agent));
        }
        object.raw("sample", sample);
        object.integer("num_rollouts", self.num_rollouts);
        object.integer("expected_num_rollouts", expected);
        object.integer("missing_num_rollouts", expected - self.num_rollouts);
        object.float(
            "reward_profile_completion_pct",
            percent(self.num_rollouts, expected),
        );
        object
            .field("rollout_infos")
            .extend(["[", &self.infos, "]"]);
        object.finish()
    }
}
