//! Which metrics rollouts have: [`Names`] of metrics and of their [`Layout`]s, and the [`Keys`] that
//! say so.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::StringArray;
use datafusion::common::{Result, exec_datafusion_err};

/// Numbers of the metrics that a rollout has, in its order.
pub(super) type Layout = Arc<[u32]>;

/// Names of metrics and layouts by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
    pub(super) layouts: Vec<Layout>,
    layout_numbers: HashMap<Layout, u32>,
}

impl Names {
    pub(super) fn metric(&mut self, name: &str) -> Result<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = number(self.names.len())?;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        Ok(number)
    }

    pub(super) fn layout(&mut self, metrics: &[u32]) -> Result<u32> {
        if let Some(number) = self.layout_numbers.get(metrics) {
            return Ok(*number);
        }
        let (layout, number) = (Layout::from(metrics), number(self.layouts.len())?);
        self.layouts.push(Arc::clone(&layout));
        self.layout_numbers.insert(layout, number);
        Ok(number)
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> usize {
        (self.layouts.len() + self.names.len()) * 128
    }

    pub(super) fn name(&self, metric: u32) -> &str {
        let name = self.names.get(metric as usize);
        name.map_or("", |name| name)
    }
}

fn number(len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| exec_datafusion_err!("gather_scores: too many metrics"))
}

/// The keys of consecutive rows: most rows have the ones of the row before.
pub(super) struct Keys<'a> {
    keys: &'a StringArray,
    last: (usize, usize),
    pub(super) metrics: Vec<u32>,
    pub(super) layout: u32,
}

impl<'a> Keys<'a> {
    pub(super) fn new(keys: &'a StringArray) -> Self {
        Self {
            keys,
            last: (0, 0),
            metrics: Vec::new(),
            layout: 0,
        }
    }

    /// The bytes of the keys of a row, one after the other.
    fn bytes(&self, start: usize, end: usize) -> &'a [u8] {
        let offsets = self.keys.value_offsets();
        let at = |row: usize| offsets.get(row).and_then(|at| usize::try_from(*at).ok());
        let range = at(start).zip(at(end)).map(|(start, end)| start..end);
        let bytes = range.and_then(|range| self.keys.value_data().get(range));
        bytes.unwrap_or_default()
    }

    fn lengths_are_those_of_last(&self, start: usize) -> bool {
        let (from, to) = self.last;
        (0..to - from)
            .all(|at| self.keys.value_length(from + at) == self.keys.value_length(start + at))
    }

    /// Looks at the row whose keys are `start..end`.
    pub(super) fn look(&mut self, start: usize, end: usize, names: &mut Names) -> Result<()> {
        let (from, to) = self.last;
        let is_same = to > from
            && to - from == end - start
            && self.bytes(from, to) == self.bytes(start, end)
            && self.lengths_are_those_of_last(start);
        self.last = (start, end);
        if is_same {
            return Ok(());
        }
        self.metrics.clear();
        for key in start..end {
            self.metrics.push(names.metric(self.keys.value(key))?);
        }
        self.layout = names.layout(&self.metrics)?;
        Ok(())
    }
}
