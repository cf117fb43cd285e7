//! [`Group`]: the rollouts of a group and their scores.

use std::mem::size_of;

/// A rollout, and where its scores begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) rollout_index: i64,
    pub(super) start: usize,
    pub(super) layout: u32,
}

/// What is known of a metric beside its scores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) metric: u32,
    pub(super) first: (i64, i64),
    pub(super) integers: i64,
    pub(super) extremes: Option<(i64, i64)>,
}

impl Known {
    pub(super) fn integer(&mut self, max: i64, min: i64) {
        let (a, b) = self.extremes.unwrap_or((max, min));
        self.extremes = Some((a.max(max), b.min(min)));
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) rows: Vec<Row>,
    pub(super) scores: Vec<f64>,
    pub(super) known: Vec<Known>,
}

impl Group {
    pub(super) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>()
            + self.scores.capacity() * size_of::<f64>()
            + self.known.capacity() * size_of::<Known>()
    }

    /// The entry of a metric, likely the one at `hint`.
    pub(super) fn known(
        &mut self,
        metric: u32,
        hint: usize,
        first: (i64, i64),
    ) -> Option<&mut Known> {
        let is_it = |known: &Known| known.metric == metric;
        let at = match self.known.get(hint).is_some_and(is_it) {
            true => hint,
            false => match self.known.iter().position(is_it) {
                Some(at) => at,
                None => {
                    self.known.push(Known {
                        metric,
                        first,
                        integers: 0,
                        extremes: None,
                    });
                    self.known.len() - 1
                }
            },
        };
        let known = self.known.get_mut(at)?;
        known.first = known.first.min(first);
        Some(known)
    }
}
