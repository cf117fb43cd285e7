//! The aggregate function `gather_scores(rollout_index, metrics, integer_metrics)`.

use arrow::datatypes::DataType;
use datafusion::logical_expr::AggregateUDF;

use super::aggregate_function::AggregateFunction;
use super::argument::{argument, integer, list_of};
use super::gathered::Gathered;
use super::gathered_columns::fields;
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
    AggregateFunction {
        name: "gather_scores",
        about: "Of the rollouts of a group, a struct for every metric with a list of its scores.",
        arguments: vec![
            integer("rollout_index", "Order of the scores."),
            argument("metrics", map(DataType::Float64), "Scores by name."),
            argument(
                "integer_metrics",
                map(DataType::Int64),
                "The same as integers; null unless all are.",
            ),
        ],
        returns: list_of(DataType::Struct(fields())),
        state: vec![
            ("rollout_indices", list_of(DataType::Int64)),
            ("scores", list_of(DataType::Struct(fields()))),
        ],
        in_order: true,
        groups: |_| Ok(Gathered::default()),
    }
    .udaf()
}
