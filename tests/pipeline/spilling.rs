//! Metrics of a run that is larger than the memory they may take.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::util::pretty::pretty_format_batches;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use rollstream::call::RolloutKey;
use rollstream::measure::{MetricQueries, plan, register_views, spool_scores};
use rollstream::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use rollstream::schema;
use rollstream::session::{self, Spool};

/// Rollouts of 200 tasks, 50 each, in the order in which calls of many tasks would be answered.
fn rollouts() -> Vec<RecordBatch> {
    let mut builder = OutcomeBatchBuilder::new();
    let mut batches = Vec::new();
    for number in 0..10_000_i64 {
        let number = number * 7_919 % 10_000;
        let result = format!(
            r#"{{"reward": {}, "turns": {}, "share": {}.5, "long name of a metric": {}}}"#,
            number % 3 % 2,
            number % 17,
            number % 11,
            number % 5,
        );
        let key = RolloutKey::new(number / 50, number % 50, 0);
        let outcome = Outcome {
            http_status: Some(200),
            times: Times {
                server: Some(Duration::ZERO),
                ..Times::default()
            },
            ..Outcome::new(
                key,
                ["left", "right"][(number / 50 % 2) as usize],
                UNIX_EPOCH,
                Verdict::Ok(Answer::parse(result).unwrap()),
            )
        };
        builder.append(outcome).unwrap();
        if builder.len() == 500 {
            batches.push(rollouts_of(&builder.finish().unwrap()).unwrap());
        }
    }
    batches
}

fn register(session: &SessionContext, rollouts: &[RecordBatch]) {
    let partitions = vec![rollouts[..10].to_vec(), rollouts[10..].to_vec()];
    let table = MemTable::try_new(schema::rollouts(), partitions).unwrap();
    session.register_table("rollouts", Arc::new(table)).unwrap();
    let tasks = MemTable::try_new(schema::tasks(), vec![vec![]]).unwrap();
    session.register_table("tasks", Arc::new(tasks)).unwrap();
}

async fn scores(rollouts: &[RecordBatch], memory: usize) -> RecordBatch {
    let source = session::gathering(memory).unwrap();
    register(&source, rollouts);
    let spool = Spool::new().unwrap();
    let ctx = SessionContext::new();
    let spooled = spool_scores(&spool, &source, &ctx, &HashMap::new()).await;
    spooled.unwrap_or_else(|error| panic!("{memory} bytes: {error}"));
    let sql = "SELECT * FROM scores ORDER BY agent_name, metric, task_index";
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

#[tokio::test]
async fn scores_are_the_same_with_little_memory() {
    let rollouts = rollouts();
    let whole = scores(&rollouts, usize::MAX / 2).await;
    assert_eq!(whole.num_rows(), 200 * 4);
    for memory in [1 << 21, 1 << 19, 1 << 18] {
        assert_eq!(scores(&rollouts, memory).await, whole, "{memory} bytes");
    }
}

/// Every family as text, by name.
async fn families(rollouts: &[RecordBatch], memory: usize) -> Vec<(String, String)> {
    let source = session::gathering(memory).unwrap();
    let measuring = session::measuring(memory).unwrap();
    register(&source, rollouts);
    register(&measuring, rollouts);
    let (spool, parameters) = (Spool::new().unwrap(), HashMap::new());
    let spooled = spool_scores(&spool, &source, &measuring, &parameters).await;
    spooled.unwrap_or_else(|error| panic!("{memory} bytes: {error}"));
    let queries = MetricQueries::embedded().unwrap();
    let mut families = Vec::new();
    register_views(&measuring, &parameters).await.unwrap();
    for query in queries.iter() {
        let family = plan(&measuring, query, &parameters).await.unwrap();
        let name = family.name().to_owned();
        let rows = family.collect().await;
        let rows = rows.unwrap_or_else(|error| panic!("{memory} bytes, {name}: {error}"));
        families.push((name, pretty_format_batches(&rows).unwrap().to_string()));
    }
    families
}

#[tokio::test]
async fn no_family_fails_where_an_agent_s_scores_are_more_than_the_memory() {
    let rollouts = rollouts();
    let whole = families(&rollouts, usize::MAX / 2).await;
    assert!(whole.len() > 5);
    // The scores of one metric of one agent take 40,000 bytes.
    assert_eq!(families(&rollouts, 1 << 15).await, whole);
}
