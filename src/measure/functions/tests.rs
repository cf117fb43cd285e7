//! `pairwise_sum` against its definition, however its rows are split and merged.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::Float64Type;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::prelude::{SessionConfig, SessionContext};
use proptest::prelude::*;

use super::groups::PairwiseGroups;
use super::pairwise::{PairwiseError, PairwiseSum};

/// The definition, read off its recursive form.
fn defined(elements: &[f64]) -> f64 {
    let len = elements.len();
    if len > 128 {
        let half = len / 2 - (len / 2) % 8;
        let (low, high) = elements.split_at(half);
        return defined(low) + defined(high);
    }
    let mut rest = elements;
    let mut sum = 0.0;
    if len >= 8 {
        let blocks = len / 8 * 8;
        let lane = |lane: usize| {
            let column = elements[..blocks].iter().skip(lane).step_by(8);
            column
                .copied()
                .reduce(|sum, element| sum + element)
                .unwrap()
        };
        let pair = |first: usize| lane(first) + lane(first + 1);
        sum = (pair(0) + pair(2)) + (pair(4) + pair(6));
        rest = &elements[blocks..];
    }
    rest.iter().fold(sum, |sum, element| sum + element)
}

/// The exact sum of floats, rounded once: partial sums that do not overlap.
fn exact(elements: &[f64]) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    for &element in elements {
        let mut carry = element;
        let mut kept = Vec::new();
        for &partial in &partials {
            let (large, small) = if carry.abs() < partial.abs() {
                (partial, carry)
            } else {
                (carry, partial)
            };
            let sum = large + small;
            let lost = small - (sum - large);
            if lost != 0.0 {
                kept.push(lost);
            }
            carry = sum;
        }
        kept.push(carry);
        partials = kept;
    }
    partials.iter().sum()
}

type Row = (f64, i64);

fn columns(rows: &[Row], length: usize) -> Vec<ArrayRef> {
    let values: Float64Array = rows.iter().map(|row| Some(row.0)).collect();
    let positions: Int64Array = rows.iter().map(|row| Some(row.1)).collect();
    let lengths = Int64Array::from(vec![length as i64; rows.len()]);
    vec![Arc::new(values), Arc::new(positions), Arc::new(lengths)]
}

/// Rows of an array with gaps, in any order, cut into parts of any size.
fn parts() -> impl Strategy<Value = (Vec<f64>, Vec<Vec<Row>>)> {
    let element = prop_oneof![
        Just(0.1),
        Just(1e16),
        -1e3..1e3,
        any::<i32>().prop_map(f64::from),
    ];
    let length = prop_oneof![1usize..20, 120usize..140, 250usize..1200];
    (length, 0.0..1.0)
        .prop_flat_map(move |(length, gaps)| {
            let elements = prop::collection::vec((element.clone(), 0.0..1.0), length);
            (elements, Just(gaps), 1usize..200, any::<bool>())
        })
        .prop_flat_map(|(elements, gaps, size, in_order)| {
            let elements: Vec<f64> = elements
                .into_iter()
                .map(|(element, draw)| if draw * 2.0 < gaps { 0.0 } else { element })
                .collect();
            let rows: Vec<Row> = elements.iter().copied().zip(0..).collect();
            let rows: Vec<Row> = rows.into_iter().filter(|row| row.0 != 0.0).collect();
            let shuffled = match in_order {
                true => Just(rows).boxed(),
                false => Just(rows).prop_shuffle().boxed(),
            };
            (
                Just(elements),
                shuffled.prop_map(move |rows| cut(&rows, size)),
            )
        })
}

fn cut(rows: &[Row], size: usize) -> Vec<Vec<Row>> {
    rows.chunks(size).map(<[Row]>::to_vec).collect()
}

proptest! {
    #[test]
    fn any_split_gives_the_defined_sum((elements, parts) in parts(), stages in prop::collection::vec(0u8..3, 16)) {
        let length = elements.len();
        let mut all = PairwiseGroups::default();
        for (part, stage) in parts.iter().zip(stages.iter().cycle()) {
            let columns = columns(part, length);
            let groups = vec![1; part.len()];
            match stage {
                0 => all.update_batch(&columns, &groups, None, 2).unwrap(),
                1 => {
                    let state = all.convert_to_state(&columns, None).unwrap();
                    all.merge_batch(&state, &groups, 2).unwrap();
                }
                _ => {
                    let mut partial = PairwiseGroups::default();
                    partial.update_batch(&columns, &groups, None, 2).unwrap();
                    let state = partial.state(EmitTo::All).unwrap();
                    all.merge_batch(&state, &[0, 1], 2).unwrap();
                }
            }
        }
        let sums = all.evaluate(EmitTo::All).unwrap();
        let sums: Vec<Option<f64>> = sums.as_primitive::<Float64Type>().iter().collect();
        match parts.is_empty() {
            true => prop_assert!(sums.is_empty()),
            false => {
                prop_assert_eq!(sums[0], None);
                prop_assert_eq!(sums[1].unwrap().to_bits(), (0.0 + defined(&elements)).to_bits());
            }
        }
    }

    #[test]
    fn a_sum_is_close_to_the_exact_one(elements in prop::collection::vec(0.0..1e6, 1..2000)) {
        let mut sum = PairwiseSum::default();
        for (element, position) in elements.iter().zip(0..) {
            sum.add(*element, position, elements.len() as i64).unwrap();
        }
        let (sum, exact) = (sum.total().unwrap(), exact(&elements));
        // Every term passes through at most 16 + 3 + 7 + log2(2000 / 64) additions.
        prop_assert!((sum - exact).abs() <= 32.0 * f64::EPSILON * exact, "{sum} {exact}");
    }
}

#[test]
fn ten_tenths_are_one() {
    let mut sum = PairwiseSum::default();
    for position in 0..10 {
        sum.add(0.1, position, 10).unwrap();
    }
    assert_eq!(sum.total(), Some(1.0));
}

#[test]
fn memory_does_not_grow_with_an_array_that_comes_in_order() {
    let length = 1 << 20;
    let mut sum = PairwiseSum::default();
    for position in 0..length {
        sum.add(1.0, position, length).unwrap();
        assert!(sum.heap_size() < 4096);
    }
    assert_eq!(sum.total(), Some(length as f64));
}

#[test]
fn terms_that_do_not_fit_are_refused() {
    let mut sum = PairwiseSum::default();
    for (position, length) in [(-1, 3), (3, 3), (0, 0), (0, -1)] {
        let error = PairwiseError::Position { position, length };
        assert_eq!(sum.add(1.0, position, length), Err(error));
    }
    sum.add(1.0, 0, 3).unwrap();
    let error = PairwiseError::Length {
        first: 3,
        second: 4,
    };
    assert_eq!(sum.add(1.0, 1, 4), Err(error));
}

#[tokio::test]
async fn sql_gives_the_defined_sum_over_partitions() {
    let elements: Vec<f64> = (0..5000).map(|i| 0.1 + f64::from(i % 7)).collect();
    let rows: Vec<Row> = elements.iter().copied().zip(0..).collect();
    let batch = |rows: &[Row]| {
        let names = ["value", "position", "length"];
        RecordBatch::try_from_iter(names.into_iter().zip(columns(rows, elements.len()))).unwrap()
    };
    let partitions: Vec<Vec<RecordBatch>> =
        rows.chunks(700).map(|part| vec![batch(part)]).collect();
    let config = SessionConfig::new()
        .with_target_partitions(4)
        .with_batch_size(64);
    let ctx = SessionContext::new_with_config(config);
    super::register(&ctx);
    let table = MemTable::try_new(partitions[0][0].schema(), partitions).unwrap();
    ctx.register_table("terms", Arc::new(table)).unwrap();
    for sql in [
        "SELECT pairwise_sum(value, position, length) FROM terms",
        "SELECT pairwise_sum(value, position, length) FROM terms GROUP BY length",
        "SELECT pairwise_sum(value, position, length) FILTER (WHERE position >= 0) FROM terms",
    ] {
        let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let sum = batches[0].column(0).as_primitive::<Float64Type>().value(0);
        assert_eq!(sum.to_bits(), defined(&elements).to_bits(), "{sql}");
    }
    let nothing = "SELECT pairwise_sum(value, position, length) FROM terms WHERE position < 0";
    let batches = ctx.sql(nothing).await.unwrap().collect().await.unwrap();
    assert_eq!(batches[0].column(0).null_count(), 1);
}
