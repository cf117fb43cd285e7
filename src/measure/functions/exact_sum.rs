//! The aggregate function `exact_sum`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Float64Builder, Int64Array, Int64Builder, ListArray,
    ListBuilder,
};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::AggregateUDF;

use super::aggregate::{Aggregate, Groups};
use super::aggregate_function::AggregateFunction;
use super::argument::{list_of, number};
use super::exact::ExactSum;

/// `exact_sum(value DOUBLE) -> DOUBLE`: the exact sum, rounded once. The order and the partitions in
/// which rows arrive make no difference to any bit of it, so that it is the same for every run of a
/// query (as `math.fsum` of Python, without its overflow). Infinite and NaN values count as in an
/// addition. Nulls are passed over; null for no number.
pub fn exact_sum() -> AggregateUDF {
    AggregateFunction {
        name: "exact_sum",
        about: "The exact sum, rounded once: the same for any order of the rows.",
        arguments: vec![number("value", "A number; nulls are passed over.")],
        returns: DataType::Float64,
        state: vec![
            ("special", DataType::Float64),
            ("low", DataType::Int64),
            ("limbs", list_of(DataType::Int64)),
        ],
        in_order: false,
        groups: |_| Ok(Groups::of(Sum)),
    }
    .udaf()
}

#[derive(Debug, Clone, Copy)]
struct Sum;

struct States<'a> {
    specials: &'a Float64Array,
    lows: &'a Int64Array,
    limbs: &'a ListArray,
}

impl Aggregate for Sum {
    type Group = Option<ExactSum>;
    type Rows<'a> = &'a Float64Array;
    type States<'a> = States<'a>;

    fn rows<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::Rows<'a>> {
        match columns {
            [values, ..] => Ok(values.as_primitive::<Float64Type>()),
            [] => exec_err!("exact_sum: no column"),
        }
    }

    fn update(&self, group: &mut Self::Group, rows: &Self::Rows<'_>, row: usize) -> Result<()> {
        if rows.is_valid(row) {
            group.get_or_insert_default().add(rows.value(row));
        }
        Ok(())
    }

    fn states<'a>(&self, columns: &'a [ArrayRef]) -> Result<Self::States<'a>> {
        match columns {
            [specials, lows, limbs] => Ok(States {
                specials: specials.as_primitive::<Float64Type>(),
                lows: lows.as_primitive::<Int64Type>(),
                limbs: limbs.as_list::<i32>(),
            }),
            _ => exec_err!("exact_sum: {} state columns", columns.len()),
        }
    }

    fn merge(&self, group: &mut Self::Group, states: &Self::States<'_>, row: usize) -> Result<()> {
        if states.specials.is_null(row) {
            return Ok(());
        }
        let low = states.lows.value(row);
        let low =
            usize::try_from(low).map_err(|_| exec_datafusion_err!("exact_sum: limb {low}"))?;
        let limbs = states.limbs.value(row);
        let limbs = limbs.as_primitive::<Int64Type>().values().to_vec();
        let sum = ExactSum::from_parts(states.specials.value(row), low, limbs);
        group.get_or_insert_default().merge(sum);
        Ok(())
    }

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        let mut specials = Float64Builder::with_capacity(groups.len());
        let mut lows = Int64Builder::with_capacity(groups.len());
        let mut all_limbs = ListBuilder::new(Int64Builder::new());
        for group in groups {
            let parts = group.map(ExactSum::parts);
            let (special, low, limbs) = match parts {
                Some((special, low, limbs)) => (Some(special), i64::try_from(low).ok(), limbs),
                None => (None, None, Vec::new()),
            };
            specials.append_option(special);
            lows.append_option(low);
            all_limbs.values().append_slice(&limbs);
            all_limbs.append(true);
        }
        Ok(vec![
            Arc::new(specials.finish()),
            Arc::new(lows.finish()),
            Arc::new(all_limbs.finish()),
        ])
    }

    fn evaluate(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let totals = groups
            .iter()
            .map(|group| group.as_ref().map(ExactSum::total));
        Ok(Arc::new(totals.collect::<Float64Array>()))
    }

    fn heap_size(group: &Self::Group) -> usize {
        group.as_ref().map_or(0, ExactSum::heap_size)
    }
}
