//! The columns of gathered scores: [`State`] reads them, [`Builder`] writes them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayBuilder, ArrayRef, AsArray, Float64Builder, Int64Array, Int64Builder, ListArray,
    StringArray, StringBuilder, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields, Float64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::argument::list_of;
use super::gathered_group::Group;
use super::layouts::Names;
use super::number_lists::range;

/// What stands for a metric.
pub(super) fn fields() -> Fields {
    let integer = |name: &str, nullable| Field::new(name, DataType::Int64, nullable);
    Fields::from(vec![
        Field::new("metric", DataType::Utf8, false),
        Field::new("values", list_of(DataType::Float64), false),
        integer("first_rollout_index", false),
        integer("ordinal", false),
        integer("integers", false),
        integer("integer_max", true),
        integer("integer_min", true),
    ])
}

/// Columns of a list of what [`fields`] says.
pub(super) struct State<'a> {
    pub(super) metrics: &'a StringArray,
    values: &'a ListArray,
    integers: [&'a Int64Array; 5],
}

impl<'a> State<'a> {
    pub(super) fn of(scores: &'a ListArray) -> Result<Self> {
        let scores = scores.values().as_struct();
        let [metrics, values, rest @ ..] = scores.columns() else {
            return exec_err!("gather_scores: no state");
        };
        let integers: Vec<&Int64Array> = rest.iter().map(|column| column.as_primitive()).collect();
        Ok(Self {
            metrics: metrics.as_string(),
            values: values.as_list(),
            integers: integers
                .try_into()
                .map_err(|_| exec_datafusion_err!("gather_scores: not a state"))?,
        })
    }

    pub(super) fn merge_known(&self, group: &mut Group, metric: u32, at: usize) {
        let [rollout, ordinal, integers, max, min] = self.integers;
        let first = (rollout.value(at), ordinal.value(at));
        let hint = group.known.len();
        let Some(known) = group.known(metric, hint, first) else {
            return;
        };
        known.integers += integers.value(at);
        if max.is_valid(at) && min.is_valid(at) {
            known.integer(max.value(at), min.value(at));
        }
    }

    pub(super) fn score(&self, at: usize, place: usize) -> Option<f64> {
        let places = range(self.values.value_offsets(), at)?;
        let scores = self.values.values().as_primitive::<Float64Type>();
        let place = places.start + place;
        (place < places.end && scores.is_valid(place)).then(|| scores.value(place))
    }
}

#[derive(Default)]
pub(super) struct Builder {
    indices: Int64Builder,
    index_counts: Vec<usize>,
    metrics: StringBuilder,
    scores: Float64Builder,
    score_counts: Vec<usize>,
    first: Int64Builder,
    ordinal: Int64Builder,
    integers: Int64Builder,
    max: Int64Builder,
    min: Int64Builder,
    metric_counts: Vec<usize>,
}

impl Builder {
    /// With room for as many scores as the groups come to: a builder that grows takes up to twice as much.
    pub(super) fn for_groups(groups: &[Group]) -> Self {
        let scores = groups
            .iter()
            .map(|group| group.rows.len() * group.known.len());
        Self {
            scores: Float64Builder::with_capacity(scores.sum()),
            indices: Int64Builder::with_capacity(groups.iter().map(|group| group.rows.len()).sum()),
            ..Self::default()
        }
    }

    pub(super) fn append(&mut self, mut group: Group, names: &Names) -> Result<()> {
        group.rows.sort_by_key(|row| row.rollout_index);
        let scores = self.scores.len() + group.rows.len() * group.known.len();
        if i32::try_from(scores).is_err() {
            return exec_err!("gather_scores: {scores} scores at a time are too many");
        }
        self.index_counts.push(group.rows.len());
        self.metric_counts.push(group.known.len());
        for row in &group.rows {
            self.indices.append_value(row.rollout_index);
        }
        for known in &group.known {
            self.metrics.append_value(names.name(known.metric));
            self.score_counts.push(group.rows.len());
            let (first, ordinal) = known.first;
            self.first.append_value(first);
            self.ordinal.append_value(ordinal);
            self.integers.append_value(known.integers);
            self.max.append_option(known.extremes.map(|(max, _)| max));
            self.min.append_option(known.extremes.map(|(_, min)| min));
            // Of the rows, most have the layout of the one before.
            let mut last = (u32::MAX, None);
            for row in &group.rows {
                if last.0 != row.layout {
                    let layout = names.layouts.get(row.layout as usize);
                    let at = layout.and_then(|layout| {
                        layout.iter().position(|metric| *metric == known.metric)
                    });
                    last = (row.layout, at);
                }
                let score = last
                    .1
                    .and_then(|at| group.scores.get(row.start + at).copied());
                self.scores
                    .append_option(score.filter(|score| !score.is_nan()));
            }
        }
        Ok(())
    }

    /// The indices of rollouts, and the structs.
    pub(super) fn finish(mut self) -> Result<(ListArray, ListArray)> {
        let item = |data_type| Arc::new(Field::new_list_field(data_type, true));
        let indices = ListArray::try_new(
            item(DataType::Int64),
            OffsetBuffer::from_lengths(self.index_counts),
            Arc::new(self.indices.finish()),
            None,
        )?;
        let values = ListArray::try_new(
            item(DataType::Float64),
            OffsetBuffer::from_lengths(self.score_counts),
            Arc::new(self.scores.finish()),
            None,
        )?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.metrics.finish()),
            Arc::new(values),
            Arc::new(self.first.finish()),
            Arc::new(self.ordinal.finish()),
            Arc::new(self.integers.finish()),
            Arc::new(self.max.finish()),
            Arc::new(self.min.finish()),
        ];
        let structs = StructArray::try_new(fields(), columns, None)?;
        let scores = ListArray::try_new(
            item(DataType::Struct(fields())),
            OffsetBuffer::from_lengths(self.metric_counts),
            Arc::new(structs),
            None,
        )?;
        Ok((indices, scores))
    }
}
