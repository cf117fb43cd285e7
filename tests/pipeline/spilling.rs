//! Metrics of a run that is larger than the memory they may take.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::Bytes;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use rollstream::answer::AnswerFields;
use rollstream::measure::{Spool, spool_scores};
use rollstream::outcome::{Answered, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use rollstream::{schema, session};

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
        let outcome = Outcome {
            task_index: number / 50,
            rollout_index: number % 50,
            attempt: 0,
            agent_name: ["left", "right"][(number / 50 % 2) as usize].into(),
            http_status: Some(200),
            dispatched_at: UNIX_EPOCH,
            response_headers: None,
            times: Times {
                server: Some(Duration::ZERO),
                ..Times::default()
            },
            concurrency_limit: None,
            verdict: Verdict::Ok(Answered {
                fields: AnswerFields::parse(&result).unwrap(),
                result: Bytes::from(result),
            }),
        };
        builder.append(outcome).unwrap();
        if builder.len() == 500 {
            batches.push(rollouts_of(&builder.finish().unwrap()).unwrap());
        }
    }
    batches
}

async fn scores(rollouts: &[RecordBatch], memory: usize) -> RecordBatch {
    let source = session::gathering(memory).unwrap();
    let partitions = vec![rollouts[..10].to_vec(), rollouts[10..].to_vec()];
    let table = MemTable::try_new(schema::rollouts(), partitions).unwrap();
    source.register_table("rollouts", Arc::new(table)).unwrap();
    let tasks = MemTable::try_new(schema::tasks(), vec![vec![]]).unwrap();
    source.register_table("tasks", Arc::new(tasks)).unwrap();
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
