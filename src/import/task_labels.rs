//! [`TaskLabels`]: the names of tasks in what is written.

use crate::json::{quote, unquote};
use crate::python::repr_str;

/// How a task's index is written: as the index itself, or as a string for each index from 0. Tasks are counted by
/// integers throughout; imported files may name them by strings, and then the index is the rank of the string.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskLabels(pub(super) Option<Vec<String>>);

impl TaskLabels {
    /// Returns the label as JSON.
    pub fn json(&self, task_index: i64) -> String {
        match self.name(task_index) {
            Some(name) => quote(name),
            None => task_index.to_string(),
        }
    }

    /// Returns the label as it appears within other text.
    pub fn text(&self, task_index: i64) -> String {
        match self.name(task_index) {
            Some(name) => name.to_owned(),
            None => task_index.to_string(),
        }
    }

    /// Returns a rollout's key as Python shows it.
    pub fn key(&self, task_index: i64, rollout_index: i64) -> String {
        match self.name(task_index) {
            Some(name) => format!("({}, {rollout_index})", repr_str(name)),
            None => format!("({task_index}, {rollout_index})"),
        }
    }

    /// Parses the JSON label of a task as its index.
    pub fn index(&self, json: &str) -> Option<i64> {
        let Some(names) = &self.0 else {
            return json.parse().ok();
        };
        let name = unquote(json)?;
        let place = names.iter().position(|known| *known == *name)?;
        i64::try_from(place).ok()
    }

    fn name(&self, task_index: i64) -> Option<&str> {
        let index = usize::try_from(task_index).ok()?;
        self.0.as_ref()?.get(index).map(String::as_str)
    }
}
