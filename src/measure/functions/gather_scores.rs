//! The aggregate function `gather_scores(rollout_index, metrics, integer_metrics)`.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::Result;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature,
    Volatility, scalar_doc_sections::DOC_SECTION_ARRAY,
};

use super::gathered::Gathered;
use super::one_group::OneGroup;
use super::statistics::list;
use crate::schema;

/// `gather_scores(rollout_index BIGINT, metrics MAP, integer_metrics MAP) -> STRUCT[]`: turns the
/// rollouts of a group by their side: a struct for every metric that one of them has, with
///
/// - `metric`, its name,
/// - `values`, an element for each rollout in the order of `rollout_index`, null where a rollout
///   lacks the metric,
/// - `first_rollout_index`, `ordinal`: where it first appears, and at which place among that
///   rollout's metrics,
/// - `integers`, `integer_max`, `integer_min`: how many rollouts have it and hold nothing but
///   integers, and the extremes of those.
///
/// Rollouts of the same index keep the order in which they arrive.
pub fn gather_scores() -> AggregateUDF {
    let map = |value| DataType::Map(schema::map_entries(value), false);
    AggregateUDF::from(Function {
        signature: Signature::exact(
            vec![
                DataType::Int64,
                map(DataType::Float64),
                map(DataType::Int64),
            ],
            Volatility::Immutable,
        ),
        documentation: Documentation::builder(
            DOC_SECTION_ARRAY,
            "Of the rollouts of a group, a struct for every metric with a list of its scores.",
            "gather_scores(rollout_index, metrics, integer_metrics)",
        )
        .with_argument("rollout_index", "Order of the scores.")
        .with_argument("metrics", "Scores by name.")
        .with_argument(
            "integer_metrics",
            "The same as integers; null unless all are.",
        )
        .build(),
    })
}

/// What stands for a metric.
pub(super) fn fields() -> Fields {
    let integer = |name: &str, nullable| Field::new(name, DataType::Int64, nullable);
    Fields::from(vec![
        Field::new("metric", DataType::Utf8, false),
        Field::new("values", list(DataType::Float64), false),
        integer("first_rollout_index", false),
        integer("ordinal", false),
        integer("integers", false),
        integer("integer_max", true),
        integer("integer_min", true),
    ])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    signature: Signature,
    documentation: Documentation,
}

impl AggregateUDFImpl for Function {
    fn name(&self) -> &str {
        "gather_scores"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(list(DataType::Struct(fields())))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |name: &str, data_type| {
            let name = format_state_name(args.name, name);
            Arc::new(Field::new(name, data_type, true))
        };
        Ok(vec![
            field("rollout_indices", list(DataType::Int64)),
            field("scores", list(DataType::Struct(fields()))),
        ])
    }

    fn accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let mut one = Gathered::default();
        one.grow(1);
        Ok(Box::new(OneGroup(one)))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::<Gathered>::default())
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// A column of the function's arguments or of its state.
pub(super) fn column(columns: &[ArrayRef], at: usize) -> Result<&ArrayRef> {
    columns
        .get(at)
        .ok_or_else(|| datafusion::common::exec_datafusion_err!("gather_scores: no column {at}"))
}
