//! Identifies the rollout of a row and what ran it: [`RowKey`]; [`TaskKeys`], which numbers tasks named by strings;
//! and [`Runners`]: the environment servers that rows name (since NeMo Gym 0.7), or else the agents.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::common::utils::take_function_args;
use datafusion::logical_expr::{ColumnarValue, Expr, Volatility, create_udf, ident};
use indexmap::{IndexMap, IndexSet};

use super::error::{ImportError, RowProblem};
use super::lines::{LineRule, for_each_line};
use crate::gym::GymRules;
use crate::json::{Object, unquote};
pub(super) use crate::request::agent_name;
use crate::request::{ENVIRONMENT_SERVER, RESULT_TYPE};
use crate::schema::{AGENT_NAME, TASK_INDEX};
use crate::store::EnvironmentServer;

pub(super) const TASK: &str = "_ng_task_index";
pub(super) const ROLLOUT: &str = "_ng_rollout_index";

/// Task and rollout of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RowKey {
    /// Index of the task.
    pub task_index: i64,
    /// Index of the rollout within its task.
    pub rollout_index: i64,
}

impl RowKey {
    pub(crate) fn new(task_index: i64, rollout_index: i64) -> Self {
        Self {
            task_index,
            rollout_index,
        }
    }
}

/// The tasks of all files of an import.
#[derive(Debug, Default)]
pub(super) struct TaskKeys {
    names: IndexSet<String>,
    by_index: bool,
}

impl TaskKeys {
    /// Returns the key of a row. A task named by a string is numbered by first appearance until
    /// [`ranks`](Self::ranks) gives its rank.
    ///
    /// # Errors
    /// A part is missing or of a wrong type, or the task is of another kind than earlier ones.
    pub(super) fn key(&mut self, row: &Object<'_>) -> Result<RowKey, RowProblem> {
        for part in [TASK, ROLLOUT] {
            if !row.contains(part) {
                return Err(RowProblem::NoKey(part));
            }
        }
        self.key_or_zero(row)
    }

    /// Returns the key of a row, with zero for a missing part.
    ///
    /// # Errors
    /// A part is of a wrong type, or the task is of another kind than earlier ones.
    pub(super) fn key_or_zero(&mut self, row: &Object<'_>) -> Result<RowKey, RowProblem> {
        let task = row.get(TASK).unwrap_or("0");
        let rollout = row.get(ROLLOUT).unwrap_or("0");
        let rollout_index = rollout
            .parse()
            .map_err(|_| RowProblem::NotAnInteger(ROLLOUT))?;
        let task_index = if let Some(name) = unquote(task) {
            if self.by_index {
                return Err(RowProblem::OtherKind("a string"));
            }
            let (index, _) = self.names.insert_full(name.into_owned());
            i64::try_from(index).map_err(|_| RowProblem::NotAnInteger(TASK))?
        } else {
            if !self.names.is_empty() {
                return Err(RowProblem::OtherKind("not a string"));
            }
            self.by_index = true;
            task.parse().map_err(|_| RowProblem::NotAnInteger(TASK))?
        };
        Ok(RowKey::new(task_index, rollout_index))
    }

    /// Returns the names in order of code points and, for each number given so far, the rank of its name; `None` if
    /// tasks are integers.
    pub(super) fn ranks(&self) -> Option<(Vec<String>, Vec<i64>)> {
        if self.names.is_empty() {
            return None;
        }
        let mut order: Vec<usize> = (0..self.names.len()).collect();
        order.sort_by_key(|&number| self.names.get_index(number));
        let mut ranks = vec![0; order.len()];
        for (rank, &number) in (0..).zip(&order) {
            if let Some(place) = ranks.get_mut(number) {
                *place = rank;
            }
        }
        let names = order
            .iter()
            .filter_map(|&number| self.names.get_index(number));
        Some((names.cloned().collect(), ranks))
    }
}

impl std::fmt::Display for RowKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "({}, {})", self.task_index, self.rollout_index)
    }
}

/// The environment server of each agent that has one, by the agent's name.
pub type AgentServers = BTreeMap<String, String>;

/// All runners of rollouts, by name.
#[derive(Debug, Default)]
pub(super) struct Runners(IndexMap<String, Runner>);

#[derive(Debug)]
struct Runner {
    /// The agent that rows name for this runner.
    agent: Option<String>,
    is_server: bool,
}

impl Runners {
    /// Returns the name of what ran the rollout of a row; empty if nothing says so.
    pub(super) fn of(
        &mut self,
        row: &Object<'_>,
        servers: &AgentServers,
        rules: &GymRules,
    ) -> String {
        let agent = agent_name(row).filter(|name| !name.is_empty());
        let stamp = row.get(ENVIRONMENT_SERVER).filter(|_| rules.servers);
        let stamp = stamp.and_then(unquote).map(|name| name.into_owned());
        let known = || {
            let agent = agent.as_ref()?;
            let server = servers.get(agent).map(String::as_str);
            server.or_else(|| self.server_of(agent)).map(str::to_owned)
        };
        let server = stamp.or_else(known);
        let is_server = server.is_some();
        let Some(name) = server.or_else(|| agent.clone()) else {
            return String::new();
        };
        if !self.0.contains_key(&name) {
            self.0.insert(name.clone(), Runner { agent, is_server });
        }
        name
    }

    /// Returns the environment server of an agent, if only one server's rows name the agent.
    fn server_of(&self, agent: &str) -> Option<&str> {
        let mut servers = self
            .0
            .iter()
            .filter(|(_, runner)| runner.is_server && runner.agent.as_deref() == Some(agent));
        let (name, _) = servers.next()?;
        servers.next().is_none().then_some(name.as_str())
    }

    /// Returns the names in reports: an agent's name if it has only one runner, else the runner's own. Rows of an
    /// agent without a server count to the only server whose rows name the agent.
    pub(super) fn labels(&self) -> HashMap<&str, &str> {
        let alone =
            |name: &str, runner: &Runner| !runner.is_server && self.server_of(name).is_some();
        let mut of_agent: HashMap<&str, usize> = HashMap::new();
        for (name, runner) in &self.0 {
            if let Some(agent) = runner.agent.as_deref().filter(|_| !alone(name, runner)) {
                *of_agent.entry(agent).or_default() += 1;
            }
        }
        let all = self.0.iter().map(|(name, runner)| {
            let agent = runner.agent.as_deref();
            let agent = agent.filter(|agent| of_agent.get(agent) == Some(&1));
            (name.as_str(), agent.unwrap_or(name))
        });
        all.collect()
    }

    /// Returns the environment servers by their names in reports.
    pub(super) fn servers(&self) -> BTreeMap<String, EnvironmentServer> {
        let labels = self.labels();
        let servers = self.0.iter().filter(|(_, runner)| runner.is_server);
        let labelled = servers.filter_map(|(name, _)| {
            let label = labels.get(name.as_str())?;
            Some(((*label).to_owned(), EnvironmentServer::named(name.clone())))
        });
        labelled.collect()
    }

    /// Returns the column `agent_name` with the names of reports; `None` if it already has them.
    pub(super) fn labelled(&self) -> Option<Expr> {
        let labels = self.labels().into_iter();
        let labels = labels.filter(|(name, label)| name != label);
        let owned = labels.map(|(name, label)| (name.to_owned(), label.to_owned()));
        let labels: HashMap<String, String> = owned.collect();
        if labels.is_empty() {
            return None;
        }
        let label = move |column: &ArrayRef| -> ArrayRef {
            let names = column.as_string_view().iter();
            let label = |name| labels.get(name).map_or(name, String::as_str);
            Arc::new(
                names
                    .map(|name| name.map(label))
                    .collect::<StringViewArray>(),
            )
        };
        Some(replaced(AGENT_NAME, DataType::Utf8View, label))
    }
}

/// Returns the column `task_index` with the ranks of tasks in place of their numbers by first appearance.
pub(super) fn renumbered(ranks: Vec<i64>) -> Expr {
    replaced(TASK_INDEX, DataType::Int64, move |column| {
        let rank = |number: i64| {
            let place = usize::try_from(number).ok();
            let rank = place.and_then(|place| ranks.get(place));
            rank.copied().unwrap_or(number)
        };
        Arc::new(
            column
                .as_primitive::<Int64Type>()
                .unary::<_, Int64Type>(rank),
        )
    })
}

/// Returns a column whose values are replaced when it is read.
fn replaced(
    column: &'static str,
    kind: DataType,
    replace: impl Fn(&ArrayRef) -> ArrayRef + Send + Sync + 'static,
) -> Expr {
    let replace = move |values: &[ColumnarValue]| {
        let [values] = take_function_args(column, values)?;
        Ok(match values {
            ColumnarValue::Array(values) => ColumnarValue::Array(replace(values)),
            ColumnarValue::Scalar(value) => {
                let value = ScalarValue::try_from_array(&replace(&value.to_array()?), 0)?;
                ColumnarValue::Scalar(value)
            }
        })
    };
    let kinds = vec![kind.clone()];
    let function = create_udf(
        column,
        kinds,
        kind,
        Volatility::Immutable,
        Arc::new(replace),
    );
    function.call(vec![ident(column)])
}

/// Whether the first row of a file says which environment server it came from, as rows of NeMo Gym do since 0.7.
///
/// # Errors
/// The file cannot be read.
pub fn is_stamped(path: &Path) -> Result<bool, ImportError> {
    let shown = path.display().to_string();
    let mut is_stamped = false;
    let found = for_each_line(path, &shown, LineRule::Shard, |line| {
        // A malformed row is reported by whoever reads it.
        let row = line.row().unwrap_or_default();
        is_stamped = row.contains(ENVIRONMENT_SERVER) || row.contains(RESULT_TYPE);
        Err(ImportError::Abandoned)
    });
    match found {
        Err(ImportError::Abandoned) => Ok(is_stamped),
        found => found.map(|()| false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(keys: &mut TaskKeys, row: &str) -> Result<RowKey, RowProblem> {
        keys.key(&Object::parse(row).unwrap())
    }

    #[test]
    fn names_are_ranked_by_code_point() {
        let mut keys = TaskKeys::default();
        for (name, number) in [("b", 0), ("a", 1), ("b", 0), ("é", 2), ("B", 3)] {
            let row = format!(r#"{{"_ng_task_index": "{name}", "_ng_rollout_index": 7}}"#);
            assert_eq!(key(&mut keys, &row), Ok(RowKey::new(number, 7)));
        }
        let (names, ranks) = keys.ranks().unwrap();
        assert_eq!(names, ["B", "a", "b", "é"]);
        assert_eq!(ranks, [2, 1, 3, 0]);
    }

    #[test]
    fn a_key_that_cannot_be_put_in_order_is_refused() {
        let mut keys = TaskKeys::default();
        let number = r#"{"_ng_task_index": 1, "_ng_rollout_index": 0}"#;
        assert!(key(&mut keys, number).is_ok());
        assert_eq!(keys.ranks(), None);
        for (row, problem) in [
            (r#"{"_ng_rollout_index": 0}"#, RowProblem::NoKey(TASK)),
            (r#"{"_ng_task_index": 0}"#, RowProblem::NoKey(ROLLOUT)),
            (
                r#"{"_ng_task_index": 1.5, "_ng_rollout_index": 0}"#,
                RowProblem::NotAnInteger(TASK),
            ),
            (
                r#"{"_ng_task_index": "a", "_ng_rollout_index": 0}"#,
                RowProblem::OtherKind("a string"),
            ),
        ] {
            assert_eq!(key(&mut keys, row), Err(problem));
        }
    }

    #[test]
    fn an_agent_needs_a_name() {
        let name = |row: &str| agent_name(&Object::parse(row).unwrap());
        assert_eq!(
            name(r#"{"agent_ref": {"name": "a\"b"}}"#).as_deref(),
            Some("a\"b")
        );
        for row in [
            r#"{}"#,
            r#"{"agent_ref": null}"#,
            r#"{"agent_ref": {"name": 1}}"#,
        ] {
            assert_eq!(name(row), None, "{row}");
        }
    }
}
