//! What a query over a run does not read.
//!
//! Parts have no bloom filters. Rollouts land roughly in the order of tasks, so that the smallest and
//! largest `task_index` of a row group or page say where a task can be, and cost nothing; a filter would be
//! larger and help in no other place. Agents and metrics are few, and in nearly every row group.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::{ReadOptionsBuilder, SerializedFileReader};
use rollstream::call::RolloutKey;
use rollstream::measure::{MetricQueries, functions, plan, register_views, spool_scores};
use rollstream::outcome::{
    Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, attempts_of, rollouts_of,
};
use rollstream::schema::{ATTEMPTS, ROLLOUTS};
use rollstream::session::{self, RunTables, Spool};
use rollstream::store::{PartWriter, RunStore, part_name};

/// What differs from one machine and moment to another.
const FILTERS: [(&str, &str); 2] = [
    (
        r"[^\s\[,]*/(rollouts|attempts)/part-([0-9])\.parquet(:[0-9]+\.\.[0-9]+)?",
        "$1/$2",
    ),
    (r"\n *\n", "\n"),
];

fn outcome(task_index: i64, filler: usize) -> Outcome {
    // Such a text does not become smaller.
    let mut random = fastrand::Rng::with_seed(task_index.unsigned_abs());
    let filler: String = std::iter::repeat_with(|| random.alphanumeric())
        .take(filler)
        .collect();
    let turns = task_index % 5;
    let answer = format!(r#"{{"reward": 1, "turns": {turns}, "text": "{filler}"}}"#);
    let key = RolloutKey::new(task_index, 0, 0);
    Outcome {
        http_status: Some(200),
        times: Times {
            server: Some(Duration::from_millis(5)),
            ..Times::default()
        },
        ..Outcome::new(
            key,
            "sim",
            UNIX_EPOCH,
            Verdict::Ok(Answer::parse(answer).unwrap()),
        )
    }
}

/// A run with a part for each range of tasks, written in batches of `batch` rows, of which each has an
/// answer of `filler` bytes.
async fn run(place: &Path, parts: &[Range<i64>], batch: usize, filler: usize) -> RunStore {
    let run = RunStore::open(place.to_str().unwrap(), None).unwrap();
    for (number, tasks) in parts.iter().enumerate() {
        let name = format!("part-{number}");
        let mut writers = [ROLLOUTS, ATTEMPTS].map(|table| {
            let schema = match table {
                ROLLOUTS => rollstream::schema::rollouts(),
                _ => rollstream::schema::attempts(),
            };
            PartWriter::new(&run, table, &part_name(table, &name), schema).unwrap()
        });
        let tasks: Vec<i64> = tasks.clone().collect();
        for tasks in tasks.chunks(batch) {
            let mut builder = OutcomeBatchBuilder::new();
            for task in tasks {
                builder.append(outcome(*task, filler)).unwrap();
            }
            let outcomes = builder.finish().unwrap();
            let [rollouts, attempts] = &mut writers;
            rollouts
                .write(&rollouts_of(&outcomes).unwrap())
                .await
                .unwrap();
            attempts
                .write(&attempts_of(&outcomes).unwrap())
                .await
                .unwrap();
        }
        for writer in writers {
            writer.finish().await.unwrap();
        }
    }
    run
}

/// A session over a run, whose plans are the same on every machine.
async fn over(run: &RunStore) -> SessionContext {
    let session = SessionContext::new_with_config(session::config().with_target_partitions(1));
    functions::register(&session);
    let tables = RunTables::look(run).await.unwrap();
    tables.register(&session).await.unwrap();
    session
}

/// What EXPLAIN says of a query.
async fn explained(session: &SessionContext, query: &str) -> String {
    let plan = session
        .sql(query)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    displayable(plan.as_ref()).indent(true).to_string()
}

/// What EXPLAIN ANALYZE counts at the scan of a query: how much was left out, and how much not.
async fn counted(session: &SessionContext, query: &str, metric: &str) -> (usize, usize) {
    let plan = session
        .sql(query)
        .await
        .unwrap()
        .create_physical_plan()
        .await
        .unwrap();
    let collected = datafusion::physical_plan::collect(plan.clone(), session.task_ctx());
    collected.await.unwrap();
    let mut scan = plan;
    while let [child] = scan.children()[..] {
        scan = child.clone();
    }
    let metrics = scan.metrics().unwrap();
    let found = metrics.sum(|found| found.value().name() == metric);
    match found.unwrap() {
        datafusion::physical_plan::metrics::MetricValue::PruningMetrics {
            pruning_metrics, ..
        } => (pruning_metrics.pruned(), pruning_metrics.matched()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_family_reads_the_columns_that_it_needs_and_never_an_answer() {
    let place = tempfile::tempdir().unwrap();
    let run = run(place.path(), &[0..4, 4..8, 8..9], 4, 100).await;
    let session = over(&run).await;
    let parameters = HashMap::new();
    register_views(&session, &parameters).await.unwrap();
    let mut scans = String::new();
    for query in MetricQueries::embedded().unwrap().iter() {
        let table = plan(&session, query, &parameters)
            .await
            .unwrap()
            .into_view();
        let frame = session.read_table(table).unwrap();
        let physical = frame.create_physical_plan().await.unwrap();
        let physical = displayable(physical.as_ref()).indent(false).to_string();
        let mut lines: Vec<&str> = physical
            .lines()
            .map(str::trim)
            .filter(|line| line.contains("parquet"))
            .collect();
        lines.sort_unstable();
        lines.dedup();
        for line in &lines {
            let columns = line.split_once("projection=[").unwrap().1;
            let columns = columns.split_once(", file_type").unwrap().0;
            assert!(
                !columns.contains("result") && !columns.contains("info"),
                "{line}"
            );
        }
        scans += &format!("{}\n  {}\n", query.name, lines.join("\n  "));
    }
    insta::with_settings!({filters => FILTERS.to_vec()}, {
        insta::assert_snapshot!(scans);
    });
}

#[tokio::test]
async fn a_few_tasks_are_found_in_a_few_row_groups() {
    let place = tempfile::tempdir().unwrap();
    let run = run(place.path(), &[0..400, 400..800], 40, 40_000).await;
    let session = over(&run).await;
    let query = "SELECT task_index, reward FROM rollouts WHERE task_index BETWEEN 500 AND 510";
    let explained = explained(&session, query).await;
    insta::with_settings!({filters => FILTERS.to_vec()}, {
        insta::assert_snapshot!(explained);
    });
    let (pruned, matched) = counted(&session, query, "row_groups_pruned_statistics").await;
    assert!(
        pruned >= 4 && (1..=2).contains(&matched),
        "{pruned}, {matched}"
    );
}

#[tokio::test]
async fn a_few_tasks_are_found_in_a_few_pages_of_a_large_row_group() {
    let place = tempfile::tempdir().unwrap();
    let run = run(place.path(), std::slice::from_ref(&(0..45_000)), 1_000, 0).await;
    let name = place.path().join(part_name(ROLLOUTS, "part-0"));
    let options = ReadOptionsBuilder::new().with_page_index().build();
    let file = std::fs::File::open(name).unwrap();
    let reader = SerializedFileReader::new_with_options(file, options).unwrap();
    assert_eq!(reader.metadata().num_row_groups(), 1);
    assert!(reader.metadata().column_index().is_some());
    assert!(reader.metadata().offset_index().is_some());

    let session = over(&run).await;
    let query = "SELECT task_index, reward FROM rollouts WHERE task_index BETWEEN 44000 AND 44010";
    let (pruned, matched) = counted(&session, query, "page_index_rows_pruned").await;
    assert!(pruned >= 20_000 && matched <= 25_000, "{pruned}, {matched}");
}

#[tokio::test]
async fn the_kept_scores_of_a_metric_are_found_in_its_row_groups() {
    let place = tempfile::tempdir().unwrap();
    let run = run(place.path(), std::slice::from_ref(&(0..18_000)), 1_000, 0).await;
    let (source, session) = (over(&run).await, over(&run).await);
    let spool = Spool::new().unwrap();
    spool_scores(&spool, &source, &session, &HashMap::new())
        .await
        .unwrap();
    let query = "SELECT task_index, rollout_scores FROM scores WHERE metric = 'reward'";
    let filters = [(r"\[\[[^\]]*/scores[^\]]*\]\]", "[[scores]]")];
    let explained = explained(&session, query).await;
    insta::with_settings!({filters => filters.to_vec()}, {
        insta::assert_snapshot!(explained);
    });
    let (pruned, matched) = counted(&session, query, "row_groups_pruned_statistics").await;
    assert_eq!((pruned, matched), (1, 2));
}
