//! The functions as queries see them, however rows are split and merged.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float64Builder, Int64Array, Int64Builder, MapBuilder, MapFieldNames,
    StringBuilder,
};
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::prelude::SessionContext;
use proptest::prelude::*;

use super::aggregate::GroupStates;
use super::gather_scores::Gathered;

async fn shown(sql: &str) -> String {
    let ctx = SessionContext::new();
    super::register(&ctx);
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

#[tokio::test]
async fn statistics_pass_over_what_is_missing() {
    let sql = "SELECT s['count'] AS n, s['mean'] AS mean, s['max'] AS max, s['min'] AS min, s['median'] AS median, \
               s['std'] AS std FROM (SELECT list_statistics(v) AS s FROM (VALUES ([1.0, NULL, 4.0, 2.5]), ([NULL]), \
               ([7.0])) AS t(v)) AS u";
    insta::assert_snapshot!(shown(sql).await, @r"
    +---+------+-----+-----+--------+-----+
    | n | mean | max | min | median | std |
    +---+------+-----+-----+--------+-----+
    | 3 | 2.5  | 4.0 | 1.0 | 2.5    | 1.5 |
    | 0 |      |     |     |        |     |
    | 1 | 7.0  | 7.0 | 7.0 | 7.0    |     |
    +---+------+-----+-----+--------+-----+
    ");
}

#[tokio::test]
async fn an_array_in_parts_is_the_array() {
    let sql = "SELECT statistics(v, start, 6) = first_value(list_statistics([0.1, 0.2, NULL, NULL, 0.3, 0.7])) AS same \
               FROM (VALUES ([0.3, 0.7], 4), ([0.1, 0.2], 0)) AS t(v, start)";
    insta::assert_snapshot!(shown(sql).await, @r"
    +------+
    | same |
    +------+
    | true |
    +------+
    ");
    let ctx = SessionContext::new();
    super::register(&ctx);
    let outside = ctx.sql("SELECT statistics([1.0], 3, 3)").await.unwrap();
    let error = outside.collect().await.unwrap_err().to_string();
    assert!(
        error.contains("a list of 1 at 3 is outside an array of 3"),
        "{error}"
    );
}

#[tokio::test]
async fn lists_of_any_numbers_are_taken() {
    let sql = "SELECT list_statistics(v)['mean'] AS mean, list_quantiles(v, [0, 1]) AS quantiles, \
               list_statistics(arrow_cast(v, 'LargeList(Int16)'))['mean'] AS large, \
               list_quantiles(arrow_cast([v[1], v[2]], 'FixedSizeList(2, Float32)'), [0.5]) AS fixed \
               FROM (SELECT array_agg(x) AS v FROM (VALUES (1), (2), (NULL), (6)) AS t(x)) AS u";
    insta::assert_snapshot!(shown(sql).await, @r"
    +------+------------+-------+-------+
    | mean | quantiles  | large | fixed |
    +------+------------+-------+-------+
    | 3.0  | [1.0, 6.0] | 3.0   | [1.5] |
    +------+------------+-------+-------+
    ");
}

#[tokio::test]
async fn each_row_may_have_a_path_of_its_own() {
    let sql = r#"SELECT json_at(j, p) AS json, json_text_at(j, p) AS text FROM (VALUES
               ('{"a": {"b": ["x"]}}', 'a.b[0]'), ('{"a": 1}', 'a'), ('{"a": null}', 'a'), ('{"a": 1}', 'b'),
               ('{"a": 1}', NULL), (NULL, 'a')) AS t(j, p)"#;
    insta::assert_snapshot!(shown(sql).await, @r#"
    +------+------+
    | json | text |
    +------+------+
    | "x"  | x    |
    | 1    | 1    |
    | null |      |
    |      |      |
    |      |      |
    |      |      |
    +------+------+
    "#);
    let ctx = SessionContext::new();
    super::register(&ctx);
    let wrong = ctx.sql("SELECT json_at('{}', 'a[x')").await.unwrap();
    let error = wrong.collect().await.unwrap_err().to_string();
    assert!(error.contains("a[x"), "{error}");
}

#[tokio::test]
async fn a_window_that_grows_keeps_its_rows() {
    let sql = "SELECT statistics([x], i, i + 1) OVER (ORDER BY i)['count'] AS n FROM (VALUES (0, 1.0), (1, 2.0), (2, 4.0)) \
               AS t(i, x)";
    insta::assert_snapshot!(shown(sql).await, @r"
    +---+
    | n |
    +---+
    | 1 |
    | 2 |
    | 3 |
    +---+
    ");
}

type Rollout = (i64, Vec<(usize, Option<f64>)>);

const NAMES: [&str; 4] = ["reward", "a", "b", "a long name"];

/// The arguments of `gather_scores` for some rollouts.
fn arguments(rollouts: &[Rollout]) -> Vec<ArrayRef> {
    let names = || MapFieldNames {
        entry: "key_value".into(),
        key: "key".into(),
        value: "value".into(),
    };
    let keys = StringBuilder::new;
    let mut metrics = MapBuilder::new(Some(names()), keys(), Float64Builder::new());
    let mut integers = MapBuilder::new(Some(names()), keys(), Int64Builder::new());
    for (_, scores) in rollouts {
        let all_integers = scores
            .iter()
            .all(|(_, score)| score.is_some_and(|score| score.fract() == 0.0));
        for (name, score) in scores {
            metrics.keys().append_value(NAMES[*name]);
            metrics.values().append_option(*score);
            if all_integers {
                integers.keys().append_value(NAMES[*name]);
                integers
                    .values()
                    .append_option(score.map(|score| score as i64));
            }
        }
        metrics.append(true).unwrap();
        integers.append(all_integers).unwrap();
    }
    let indices: Int64Array = rollouts.iter().map(|(index, _)| Some(*index)).collect();
    vec![
        Arc::new(indices),
        Arc::new(metrics.finish()),
        Arc::new(integers.finish()),
    ]
}

/// What `gather_scores` says of a metric: its scores in order, where it first appears, its integers.
type Gathering = (Vec<Option<f64>>, (i64, i64), i64, Option<(i64, i64)>);

/// The definition: what is gathered of some rollouts, by metric.
fn defined(rollouts: &[Rollout]) -> BTreeMap<String, Gathering> {
    let mut sorted: Vec<&Rollout> = rollouts.iter().collect();
    sorted.sort_by_key(|(index, _)| *index);
    let mut gathered = BTreeMap::new();
    for (number, name) in NAMES.iter().enumerate() {
        let of = |rollout: &Rollout| rollout.1.iter().position(|(metric, _)| *metric == number);
        let Some((first, ordinal)) = sorted
            .iter()
            .find_map(|rollout| Some((rollout.0, of(rollout)?)))
        else {
            continue;
        };
        let scores: Vec<Option<f64>> = sorted
            .iter()
            .map(|rollout| rollout.1[of(rollout)?].1)
            .collect();
        let whole = |rollout: &&&Rollout| {
            rollout
                .1
                .iter()
                .all(|(_, score)| score.is_some_and(|score| score.fract() == 0.0))
        };
        let integers: Vec<i64> = sorted
            .iter()
            .filter(whole)
            .filter_map(|rollout| Some(rollout.1[of(rollout)?].1? as i64))
            .collect();
        let extremes = integers
            .iter()
            .max()
            .copied()
            .zip(integers.iter().min().copied());
        let gathering = (
            scores,
            (first, ordinal as i64),
            integers.len() as i64,
            extremes,
        );
        gathered.insert((*name).to_owned(), gathering);
    }
    gathered
}

/// The result of `gather_scores` for one group.
fn read(lists: &ArrayRef, group: usize) -> BTreeMap<String, Gathering> {
    let structs = lists.as_list::<i32>().value(group);
    let structs = structs.as_struct();
    let integer = |column: usize, row: usize| {
        let column = structs.column(column).as_primitive::<Int64Type>();
        column.is_valid(row).then(|| column.value(row))
    };
    let mut gathered = BTreeMap::new();
    for row in 0..structs.len() {
        let name = structs.column(0).as_string::<i32>().value(row).to_owned();
        let scores = structs.column(1).as_list::<i32>().value(row);
        let scores = scores.as_primitive::<Float64Type>().iter().collect();
        let first = (integer(2, row).unwrap(), integer(3, row).unwrap());
        let extremes = integer(5, row).zip(integer(6, row));
        gathered.insert(name, (scores, first, integer(4, row).unwrap(), extremes));
    }
    gathered
}

/// Rollouts of two groups with different indices, in any order, in parts of any size.
fn parts() -> impl Strategy<Value = Vec<Vec<(usize, Rollout)>>> {
    let score = prop_oneof![3 => (-3..3i64).prop_map(|score| Some(score as f64)), 1 => Just(Some(0.5)), 1 => Just(None)];
    let scores = prop::sample::subsequence(vec![0, 1, 2, 3], 0..=4).prop_shuffle();
    let rollout = scores.prop_flat_map(move |names| {
        let count = names.len();
        prop::collection::vec(score.clone(), count)
            .prop_map(move |scores| names.iter().copied().zip(scores).collect::<Vec<_>>())
    });
    let rollouts = prop::collection::vec((0..2usize, rollout), 0..30);
    let numbered = rollouts.prop_map(|rollouts| {
        let numbered = rollouts.into_iter().enumerate();
        numbered
            .map(|(index, (group, scores))| (group, (index as i64, scores)))
            .collect::<Vec<_>>()
    });
    (numbered.prop_shuffle(), 1..10usize)
        .prop_map(|(rollouts, size)| rollouts.chunks(size).map(<[_]>::to_vec).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_gathered_does_not_depend_on_order_or_parts(parts in parts(), spilled in any::<u64>()) {
        let mut whole = Gathered::default();
        whole.grow(2);
        for (number, part) in parts.iter().enumerate() {
            let rollouts: Vec<Rollout> = part.iter().map(|(_, rollout)| rollout.clone()).collect();
            let groups: Vec<usize> = part.iter().map(|(group, _)| *group).collect();
            // Some parts come as the state of an aggregation before this one.
            if spilled >> (number % 64) & 1 == 1 {
                let mut partial = Gathered::default();
                partial.update_batch(&arguments(&rollouts), &groups, None, 2).unwrap();
                let state = partial.state(EmitTo::All).unwrap();
                whole.merge_batch(&state, &[0, 1], 2).unwrap();
            } else {
                whole.update_batch(&arguments(&rollouts), &groups, None, 2).unwrap();
            }
        }
        let gathered = whole.evaluate(EmitTo::All).unwrap();
        for group in 0..2 {
            let rollouts: Vec<Rollout> = parts
                .iter()
                .flatten()
                .filter(|(of, _)| *of == group)
                .map(|(_, rollout)| rollout.clone())
                .collect();
            prop_assert_eq!(read(&gathered, group), defined(&rollouts));
        }
        prop_assert!(whole.size() < 4096, "what was taken is still counted");
    }
}
