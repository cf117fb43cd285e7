//! The keys of rows: [`RowKey`], and [`TaskKeys`], which counts tasks that are named by strings.

use indexmap::IndexSet;

use super::error::RowProblem;
use crate::json::{Object, unquote};
pub(super) use crate::request::agent_name;

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

/// The tasks of all files of an import.
#[derive(Debug, Default)]
pub(super) struct TaskKeys {
    names: IndexSet<String>,
    by_index: bool,
}

impl TaskKeys {
    /// The key of a row. A task that is named by a string gets its number by first appearance, until
    /// [`ranks`](Self::ranks) says its place in order.
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

    /// The same, with zero for a part that is missing.
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
                return Err(RowProblem::OtherKind("no string"));
            }
            self.by_index = true;
            task.parse().map_err(|_| RowProblem::NotAnInteger(TASK))?
        };
        Ok(RowKey {
            task_index,
            rollout_index,
        })
    }

    /// The names by code point and, for each number given so far, the place of its name there;
    /// nothing where tasks are integers.
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
            let expected = RowKey {
                task_index: number,
                rollout_index: 7,
            };
            assert_eq!(key(&mut keys, &row), Ok(expected));
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
