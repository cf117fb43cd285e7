//! [`Identity`]: which lines are the same task, and how far each task's rollouts have been numbered.

use std::collections::HashMap;

use super::digest::LineKey;
use crate::python::{Key, Value};

/// Task indices from here down stand for values that are not whole numbers of 64 bits.
const STANDING_FOR_OTHERS: i64 = i64::MIN / 2;

/// The tasks seen so far.
#[derive(Default)]
pub(super) struct Identity {
    by_line: HashMap<LineKey, i64>,
    by_value: HashMap<Key, i64>,
    next_rollout: HashMap<i64, i64>,
}

impl Identity {
    /// The index of the task that a line is: lines are numbered as they first appear.
    pub fn of_line(&mut self, key: LineKey) -> i64 {
        let next = self.by_line.len() as i64;
        *self.by_line.entry(key).or_insert(next)
    }

    /// The index for a value that came with the row, given as JSON text; `None` for an array or object, which
    /// cannot be one.
    ///
    /// Whole numbers stand for themselves; anything else gets a number of its own that no row can come with.
    pub fn of_value(&mut self, value: &str) -> Option<i64> {
        let given = Value::parse(value)?.into_key()?;
        if let Key::Int(whole) = given
            && let Ok(index) = i64::try_from(whole)
            && index > STANDING_FOR_OTHERS
        {
            return Some(index);
        }
        let next = STANDING_FOR_OTHERS - self.by_value.len() as i64;
        Some(*self.by_value.entry(given).or_insert(next))
    }

    /// Numbers `count` further rollouts of a task; gives the first number.
    pub fn take_rollouts(&mut self, task_index: i64, count: u32) -> i64 {
        let next = self.next_rollout.entry(task_index).or_insert(0);
        let first = *next;
        *next += i64::from(count);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_as_they_first_appear() {
        let mut identity = Identity::default();
        let indices = [1, 2, 1, 3].map(|hash| identity.of_line(([0; 16], hash)));
        assert_eq!(indices, [0, 1, 0, 2]);
    }

    #[test]
    fn rollouts_go_on_where_the_task_left_off() {
        let mut identity = Identity::default();
        assert_eq!(identity.take_rollouts(7, 2), 0);
        assert_eq!(identity.take_rollouts(8, 1), 0);
        assert_eq!(identity.take_rollouts(7, 3), 2);
        assert_eq!(identity.take_rollouts(7, 1), 5);
    }

    #[test]
    fn values_that_python_holds_equal_are_one_task() {
        let mut identity = Identity::default();
        let mut index = |text: &str| identity.of_value(text).unwrap();
        for same in ["1", "1.0", "true", "1e0"] {
            assert_eq!(index(same), 1, "{same}");
        }
        for same in ["0", "-0", "-0.0", "false", "1e-999"] {
            assert_eq!(index(same), 0, "{same}");
        }
        assert_eq!(index("-5"), -5);
        let big = index("18446744073709551615");
        let groups = [
            vec![big, index("18446744073709551615")],
            vec![
                index("1e19"),
                index("10000000000000000000"),
                index("10000000000000000000.0"),
            ],
            vec![index("null")],
            vec![index("\"1\""), index(r#""\u0031""#)],
            vec![index("1.5"), index("15e-1")],
            vec![index("1e300"), index("1.0e300")],
            vec![index(&STANDING_FOR_OTHERS.to_string())],
            vec![index(&(STANDING_FOR_OTHERS - 1).to_string())],
        ];
        for (position, group) in groups.iter().enumerate() {
            assert!(
                group
                    .iter()
                    .all(|index| *index == group[0] && *index <= STANDING_FOR_OTHERS)
            );
            assert!(groups[..position].iter().all(|other| other[0] != group[0]));
        }
    }

    #[test]
    fn containers_cannot_be_an_index() {
        assert_eq!(Identity::default().of_value("[1]"), None);
        assert_eq!(Identity::default().of_value("{}"), None);
    }
}
