//! `expand::pending` is what is planned without what is done, in order, for any tasks.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringViewArray,
};
use arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use rollstream::retry::Budgets;
use rollstream::{expand, schema, session};
use tokio::runtime::Runtime;

/// An input line: its task, and how many rollouts it stands for.
type Line = (i64, i64);

/// What a rollout was given: an answer, a failure for good, or a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Had {
    Answer,
    FailureForGood,
    Failure,
}

fn column<T: 'static + arrow::array::Array>(values: T) -> ArrayRef {
    Arc::new(values)
}

fn integers(values: impl Iterator<Item = i64>) -> ArrayRef {
    column(values.collect::<Int64Array>())
}

/// Rollouts in the order of the input, with the line that each comes from.
fn planned(lines: &[Line]) -> Vec<(i64, i64, usize)> {
    let first = |line: usize| {
        lines[..line]
            .iter()
            .filter(|other| other.0 == lines[line].0)
            .map(|other| other.1)
            .sum::<i64>()
    };
    let of_line = |line: usize| {
        (first(line)..first(line) + lines[line].1)
            .map(move |rollout| (lines[line].0, rollout, line))
    };
    (0..lines.len()).flat_map(of_line).collect()
}

fn tasks(lines: &[Line]) -> RecordBatch {
    let planned = planned(lines);
    let first = |line: usize| {
        planned
            .iter()
            .find(|row| row.2 == line)
            .map_or(0, |row| row.1)
    };
    let text = |of: &dyn Fn(usize) -> String| {
        column(
            (0..lines.len())
                .map(|line| Some(of(line)))
                .collect::<StringViewArray>(),
        )
    };
    let columns = vec![
        integers(lines.iter().map(|line| line.0)),
        text(&|line| format!("agent {}", line % 3)),
        integers((0..lines.len()).map(first)),
        integers(lines.iter().map(|line| line.1)),
        text(&|_| "tasks.jsonl".into()),
        integers((1..=lines.len()).map(|line| line as i64)),
        text(&|line| format!("digest {line}")),
        text(&|line| format!("a request that is long enough to be no inline view: {line}")),
    ];
    RecordBatch::try_new(schema::tasks(), columns).unwrap()
}

const AGENT: &str = "agent";

const BUDGETS: Budgets = Budgets {
    infra: 2,
    rate_limit: 2,
    data: 2,
    attempts: 2,
    all: u32::MAX,
};

/// The columns of `rollouts` or `attempts` that tell what is done.
fn done(had: impl Iterator<Item = (i64, i64, Had)>) -> RecordBatch {
    let rows: Vec<_> = had.collect();
    let text = |of: fn(Had) -> &'static str| {
        column(StringViewArray::from_iter_values(
            rows.iter().map(|row| of(row.2)),
        ))
    };
    let outcome = |had| match had {
        Had::Answer => "ok",
        Had::FailureForGood | Had::Failure => "agent_flagged",
    };
    let terminal = rows.iter().map(|row| Some(row.2 == Had::FailureForGood));
    RecordBatch::try_from_iter([
        (schema::TASK_INDEX, integers(rows.iter().map(|row| row.0))),
        (
            schema::ROLLOUT_INDEX,
            integers(rows.iter().map(|row| row.1)),
        ),
        (schema::ATTEMPT, integers(rows.iter().map(|_| 0))),
        (schema::AGENT_NAME, text(|_| AGENT)),
        (schema::OUTCOME, text(outcome)),
        (
            schema::HTTP_STATUS,
            column(Int32Array::from(vec![200; rows.len()])),
        ),
        (
            schema::SERVER_MS,
            column(Float64Array::from(vec![1.0; rows.len()])),
        ),
        (
            schema::FAILURE_TERMINAL,
            column(terminal.collect::<BooleanArray>()),
        ),
        (schema::ANSWER, text(|_| "{}")),
    ])
    .unwrap()
}

async fn pending(lines: &[Line], had: &BTreeSet<(i64, i64, Had)>) -> Vec<(i64, i64, usize)> {
    let config = session::config()
        .with_target_partitions(1)
        .with_batch_size(7);
    let session = SessionContext::new_with_config(config);
    let register = |name: &str, rows: RecordBatch| {
        let table = MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap();
        session.register_table(name, Arc::new(table)).unwrap();
    };
    let answered = had.iter().filter(|row| row.2 == Had::Answer);
    register("tasks", tasks(lines));
    register("rollouts", done(answered.copied()));
    register("attempts", done(had.iter().copied()));
    expand::prepare(
        &session,
        [(AGENT, BUDGETS)],
        expand::Terminal::AsStamped,
        true,
    )
    .await
    .unwrap();
    let mut rows = Vec::new();
    for batch in expand::pending(&session)
        .await
        .unwrap()
        .collect()
        .await
        .unwrap()
    {
        let integer = |name: &str| {
            batch
                .column_by_name(name)
                .unwrap()
                .as_primitive::<Int64Type>()
                .clone()
        };
        let text = |name: &str| batch.column_by_name(name).unwrap().as_string_view().clone();
        let (task, rollout) = (integer(schema::TASK_INDEX), integer(schema::ROLLOUT_INDEX));
        let (agent, request) = (text(schema::AGENT_NAME), text(schema::REQUEST));
        for row in 0..batch.num_rows() {
            let line: usize = request
                .value(row)
                .rsplit(' ')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(agent.value(row), format!("agent {}", line % 3));
            rows.push((task.value(row), rollout.value(row), line));
        }
    }
    rows
}

fn had() -> impl Strategy<Value = BTreeSet<(i64, i64, Had)>> {
    let had = prop_oneof![
        Just(Had::Answer),
        Just(Had::FailureForGood),
        Just(Had::Failure)
    ];
    let rollout = prop_oneof![0_i64..9, 60_i64..70, 120_i64..135];
    btree_set((-2_i64..8, rollout, had), 0..80)
}

/// Few repeats of most tasks, and of some more than a word has bits.
fn repeats() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 1_i64..9, 1 => 60_i64..140]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pending_is_planned_without_done_in_order(lines in vec((-2_i64..8, repeats()), 0..30), had in had()) {
        let is_done = |task: i64, rollout: i64| {
            [Had::Answer, Had::FailureForGood].iter().any(|done| had.contains(&(task, rollout, *done)))
        };
        let expected: Vec<_> = planned(&lines).into_iter().filter(|row| !is_done(row.0, row.1)).collect();
        let found = Runtime::new().unwrap().block_on(pending(&lines, &had));
        prop_assert_eq!(found, expected);
    }
}
