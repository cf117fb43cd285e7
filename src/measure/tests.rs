//! The embedded queries over tables of a run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::ScalarValue;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::{AggregateMetrics, MeasureError, MetricQueries, MetricTable, plan, register_views};
use crate::call::RolloutKey;
use crate::gym::GYM_05;
use crate::import::TaskLabels;
use crate::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use crate::schema;

fn answered(agent: &str, task_index: i64, rollout_index: i64, answer: &str) -> Outcome {
    let key = RolloutKey::new(task_index, rollout_index, 0);
    Outcome {
        http_status: Some(200),
        times: Times {
            server: Some(Duration::ZERO),
            ..Times::default()
        },
        ..Outcome::new(
            key,
            agent,
            UNIX_EPOCH,
            Verdict::Ok(Answer::parse(answer.to_owned()).unwrap()),
        )
    }
}

/// A session with one batch for each of the parts.
fn session(parts: Vec<Vec<Outcome>>) -> SessionContext {
    let batches: Vec<RecordBatch> = parts
        .into_iter()
        .map(|part| {
            let mut builder = OutcomeBatchBuilder::new();
            part.into_iter()
                .for_each(|outcome| builder.append(outcome).unwrap());
            rollouts_of(&builder.finish().unwrap()).unwrap()
        })
        .collect();
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(3));
    let partitions = batches.into_iter().map(|batch| vec![batch]).collect();
    let rollouts = MemTable::try_new(schema::rollouts(), partitions).unwrap();
    ctx.register_table("rollouts", Arc::new(rollouts)).unwrap();
    let tasks = MemTable::try_new(schema::tasks(), vec![vec![]]).unwrap();
    ctx.register_table("tasks", Arc::new(tasks)).unwrap();
    ctx
}

/// Plans every query over the tables of a session.
async fn run_families(
    ctx: &SessionContext,
    queries: &MetricQueries,
    parameters: &HashMap<String, ScalarValue>,
) -> Result<Vec<MetricTable>, MeasureError> {
    register_views(ctx, parameters).await?;
    let mut tables = Vec::new();
    for query in queries.iter() {
        tables.push(plan(ctx, query, parameters).await?);
    }
    Ok(tables)
}

async fn families(ctx: &SessionContext) -> Vec<MetricTable> {
    let queries = MetricQueries::embedded().unwrap();
    run_families(ctx, &queries, &HashMap::new()).await.unwrap()
}

async fn shown(ctx: &SessionContext, sql: &str) -> String {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

fn two_agents() -> SessionContext {
    session(vec![
        vec![
            answered("b", 1, 0, r#"{"x": 2, "reward": 1}"#),
            answered("a", 0, 1, r#"{"reward": 0.5, "y": 3}"#),
        ],
        vec![
            answered("b", 0, 0, r#"{"reward": 9007199254740993, "x": 1}"#),
            answered("a", 0, 2, r#"{"reward": 1.5}"#),
        ],
    ])
}

#[tokio::test]
async fn agents_have_their_statistics_in_the_order_of_appearance() {
    let ctx = two_agents();
    let labels = TaskLabels::default();
    let _metrics = AggregateMetrics::compute(&ctx, &labels, &GYM_05)
        .await
        .unwrap();
    let sql = "SELECT agent_name AS agent, metric, position AS p, run_position AS r, count AS n, num_rollouts AS of, \
               mean, median, std, integer_max AS imax FROM agent_statistics";
    insta::assert_snapshot!(shown(&ctx, sql).await, @r"
    +-------+--------+---+---+---+----+--------------------+--------------------+--------------------+------------------+
    | agent | metric | p | r | n | of | mean               | median             | std                | imax             |
    +-------+--------+---+---+---+----+--------------------+--------------------+--------------------+------------------+
    | a     | reward | 0 | 0 | 2 | 2  | 1.0                | 1.0                | 0.7071067811865476 |                  |
    | a     | y      | 1 | 2 | 1 | 2  | 3.0                | 3.0                |                    |                  |
    | b     | reward | 0 | 0 | 2 | 2  | 4503599627370496.0 | 4503599627370496.0 | 6369051672525772.0 | 9007199254740993 |
    | b     | x      | 1 | 1 | 2 | 2  | 1.5                | 1.5                | 0.7071067811865476 | 2                |
    +-------+--------+---+---+---+----+--------------------+--------------------+--------------------+------------------+
    ");
    let sql = "SELECT agent_name AS agent, task_index AS task, metric, count AS n, mean, std, integer_min AS imin \
               FROM task_statistics";
    insta::assert_snapshot!(shown(&ctx, sql).await, @r"
    +-------+------+--------+---+--------------------+--------------------+------------------+
    | agent | task | metric | n | mean               | std                | imin             |
    +-------+------+--------+---+--------------------+--------------------+------------------+
    | a     | 0    | reward | 2 | 1.0                | 0.7071067811865476 |                  |
    | a     | 0    | y      | 1 | 3.0                |                    |                  |
    | b     | 0    | reward | 1 | 9007199254740992.0 | 0.0                | 9007199254740993 |
    | b     | 0    | x      | 1 | 1.0                | 0.0                | 1                |
    | b     | 1    | x      | 1 | 2.0                | 0.0                | 2                |
    | b     | 1    | reward | 1 | 1.0                | 0.0                | 1                |
    +-------+------+--------+---+--------------------+--------------------+------------------+
    ");
}

#[tokio::test]
async fn aggregate_metrics_are_integers_for_the_agent_that_has_nothing_else() {
    let ctx = two_agents();
    let mut out = Vec::new();
    let labels = TaskLabels::default();
    let metrics = AggregateMetrics::compute(&ctx, &labels, &GYM_05)
        .await
        .unwrap();
    assert!(metrics.write(&mut out).await.unwrap().is_empty());
    let out = String::from_utf8(out).unwrap();
    for part in [
        r#"[{"agent_ref":{"name":"a"},"agent_metrics":{"mean/reward":1.0,"mean/y":3.0,"max/reward":1.5,"max/y":3.0,"#,
        r#""std/reward":0.7071067811865476},"key_metrics":{"mean/reward":1.0,"mean/y":3.0},"group_level_metrics":["#,
        r#"{"rollout_id":"0:2","_ng_task_index":0,"_ng_rollout_index":2,"reward":1.5}]}]},{"agent_ref":{"name":"b"},"#,
        r#""max/reward":9007199254740993,"max/x":2,"min/reward":1,"min/x":1,"median/reward":4503599627370496.0,"#,
        r#"{"_ng_task_index":1,"mean/reward":1.0,"mean/x":2.0,"max/reward":1,"max/x":2,"#,
        r#""sample":{"agent_ref":{"name":"agent"}},"num_rollouts":1,"expected_num_rollouts":1,"#,
    ] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
}

#[tokio::test]
async fn no_rollouts_give_no_numbers() {
    let ctx = session(vec![vec![]]);
    let labels = TaskLabels::default();
    let metrics = AggregateMetrics::compute(&ctx, &labels, &GYM_05)
        .await
        .unwrap();
    let mut out = Vec::new();
    metrics.write(&mut out).await.unwrap();
    metrics.write_agent("a", &mut out).await.unwrap();
    let empty = "[]\n{\"group_level_metrics\":[],\"agent_metrics\":{},\"key_metrics\":{}}\n";
    assert_eq!(String::from_utf8(out).unwrap(), empty);
}

#[tokio::test]
async fn no_statistic_reads_an_answer() {
    let ctx = two_agents();
    for table in families(&ctx).await {
        let name = table.name().to_owned();
        let plan = ctx
            .read_table(table.into_view())
            .unwrap()
            .into_optimized_plan()
            .unwrap();
        let plan = plan.display_indent().to_string();
        let scans: Vec<&str> = plan
            .lines()
            .filter(|line| line.contains("TableScan"))
            .collect();
        assert!(!scans.is_empty());
        for scan in scans {
            assert!(scan.contains("projection=["), "{scan}");
            assert!(!scan.contains("result"), "{name}: {scan}");
        }
    }
}

#[tokio::test]
async fn a_file_in_a_folder_is_a_family() {
    let folder = tempfile::tempdir().unwrap();
    let sql = "-- Rollouts above a threshold.\n-- Parameters:\n--   at_least = 1.0   the threshold\n\
               SELECT agent_name, count(*) AS n FROM rollouts WHERE reward >= $at_least \
               GROUP BY agent_name ORDER BY agent_name";
    std::fs::write(folder.path().join("good.sql"), sql).unwrap();
    let queries = MetricQueries::default()
        .with_directory(folder.path())
        .unwrap();
    let ctx = two_agents();
    for (parameters, expected) in [
        (HashMap::new(), "| a          | 1 |"),
        (
            HashMap::from([("at_least".to_owned(), 0.5.into())]),
            "| a          | 2 |",
        ),
    ] {
        let mut tables = run_families(&ctx, &queries, &parameters).await.unwrap();
        let table = tables.pop().unwrap();
        assert_eq!(table.name(), "good");
        let rows = table.collect().await.unwrap();
        let rows = pretty_format_batches(&rows).unwrap().to_string();
        assert!(rows.contains(expected), "{rows}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_query_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for sql in [
        "SELEC 1",
        "DROP TABLE rollouts",
        "SELECT nothing FROM rollouts",
    ] {
        std::fs::write(folder.path().join("bad.sql"), sql).unwrap();
        let queries = MetricQueries::default()
            .with_directory(folder.path())
            .unwrap();
        let error = run_families(&two_agents(), &queries, &HashMap::new()).await;
        match error {
            Err(MeasureError::Query { name, origin, .. }) => {
                assert_eq!(name, "bad");
                assert!(origin.ends_with("bad.sql"), "{origin}");
            }
            other => panic!("{sql}: {other:?}"),
        }
    }
}
