//! Runs made of what they ask and what was answered.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use rollstream::call::RolloutKey;
use rollstream::measure::compare::{
    Compared, ComparedPair, ComparisonOptions, MetricComparison, TaskMeans,
};
use rollstream::outcome::{Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, rollouts_of};
use rollstream::{schema, session};

const MEMORY: usize = 64 << 20;

/// A task of a run, and the answers to it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub agent: &'static str,
    pub request: String,
    pub answers: Vec<String>,
}

pub fn asked(question: &str, answers: &[&str]) -> Asked {
    Asked {
        agent: "sim",
        request: request(question),
        answers: answers.iter().map(|answer| (*answer).to_owned()).collect(),
    }
}

pub fn request(question: &str) -> String {
    format!(r#"{{"responses_create_params":{{"input":"{question}"}}}}"#)
}

/// The tables of a run.
pub fn run(tasks: &[Asked]) -> SessionContext {
    let ctx = session::measuring(MEMORY).unwrap();
    let table = |name: &str, batch: RecordBatch| {
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
        ctx.register_table(name, Arc::new(table)).unwrap();
    };
    let mut rollouts = OutcomeBatchBuilder::new();
    for (task_index, task) in (0..).zip(tasks) {
        for (rollout_index, answer) in (0..).zip(&task.answers) {
            rollouts
                .append(outcome(task, task_index, rollout_index, answer))
                .unwrap();
        }
    }
    let outcomes = rollouts.finish().unwrap();
    table("rollouts", rollouts_of(&outcomes).unwrap());
    table("tasks", task_rows(tasks));
    ctx
}

fn outcome(task: &Asked, task_index: i64, rollout_index: i64, answer: &str) -> Outcome {
    let key = RolloutKey::new(task_index, rollout_index, 0);
    Outcome {
        http_status: Some(200),
        times: Times {
            server: Some(std::time::Duration::ZERO),
            ..Times::default()
        },
        ..Outcome::new(
            key,
            task.agent,
            UNIX_EPOCH,
            Verdict::Ok(Answer::parse(answer.to_owned()).unwrap()),
        )
    }
}

fn task_rows(tasks: &[Asked]) -> RecordBatch {
    let integers = |of: fn((i64, &Asked)) -> i64| -> ArrayRef {
        Arc::new((0..).zip(tasks).map(of).collect::<Int64Array>())
    };
    let texts = |of: fn(&Asked) -> &str| -> ArrayRef {
        let texts = tasks.iter().map(|task| Some(of(task)));
        Arc::new(texts.collect::<StringViewArray>())
    };
    let columns = vec![
        integers(|(index, _)| index),
        texts(|task| task.agent),
        integers(|_| 0),
        integers(|(_, task)| task.answers.len() as i64),
        texts(|_| "tasks.jsonl"),
        integers(|(index, _)| index + 1),
        texts(|_| ""),
        texts(|task| &task.request),
    ];
    RecordBatch::try_new(schema::tasks(), columns).unwrap()
}

/// Two runs, joined.
pub async fn joined(base: &[Asked], candidate: &[Asked], options: &ComparisonOptions) -> Compared {
    let key = options.task_key.as_deref();
    let base = TaskMeans::of(&run(base), &run(base), key).await.unwrap();
    let means = TaskMeans::of(&run(candidate), &run(candidate), key)
        .await
        .unwrap();
    let pair = ComparedPair {
        candidate: "candidate".into(),
        base_agent: "sim".into(),
        candidate_agent: "sim".into(),
        base,
        means,
    };
    Compared::new(&[pair], options).await.unwrap()
}

/// Everything that a comparison of two runs gives.
pub async fn compare(
    base: &[Asked],
    candidate: &[Asked],
    options: &ComparisonOptions,
) -> Vec<MetricComparison> {
    let compared = joined(base, candidate, options).await;
    compared.comparisons().await.unwrap()
}
