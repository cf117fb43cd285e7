//! A run without a sweep: [`generate`].

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::schema;
use rollstream::store::{PartWriter, RunStore, part_name};

use crate::common::Answers;

/// Rows of a part, about as many as 128 MB hold.
const PART_ROWS: usize = 50 * 1024;

/// Writes the tables of a run of so many rollouts of each of so many tasks.
pub async fn generate(
    tasks: i64,
    repeats: i64,
    body_size: usize,
    run: &RunStore,
) -> anyhow::Result<()> {
    let answers = Answers::new(tasks, repeats, body_size);
    let mut batches = answers.batches();
    for part in 0.. {
        let name = |table| part_name(table, format!("bench-{part:05}"));
        let writer = |table, schema| PartWriter::new(run, table, &name(table), schema);
        let mut rollouts = writer(schema::ROLLOUTS, schema::rollouts())?;
        let mut attempts = writer(schema::ATTEMPTS, schema::attempts())?;
        let mut rows = 0;
        while rows < PART_ROWS
            && let Some(outcomes) = batches.next().transpose()?
        {
            rows += outcomes.num_rows();
            rollouts.write(&rollouts_of(&outcomes)?).await?;
            attempts.write(&attempts_of(&outcomes)?).await?;
        }
        if rows == 0 {
            break;
        }
        rollouts.finish().await?;
        attempts.finish().await?;
    }
    let name = part_name(schema::TASKS, "bench");
    let mut writer = PartWriter::new(run, schema::TASKS, &name, schema::tasks())?;
    writer.write(&task_rows(tasks, repeats)?).await?;
    writer.finish().await?;
    Ok(())
}

fn task_rows(num_tasks: i64, num_repeats: i64) -> anyhow::Result<RecordBatch> {
    let integers = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
        Arc::new((0..num_tasks).map(of).collect::<Int64Array>())
    };
    let texts = |of: &dyn Fn(i64) -> String| -> ArrayRef {
        let texts = (0..num_tasks).map(|task| Some(of(task)));
        Arc::new(texts.collect::<StringViewArray>())
    };
    let agent = |task: i64| if task % 2 == 0 { "left" } else { "right" };
    let request = |task| {
        format!(
            r#"{{"responses_create_params":{{"input":"Task {task}"}},"_ng_task_index":{task}}}"#
        )
    };
    let columns = vec![
        integers(&|task| task),
        texts(&|task| agent(task).into()),
        integers(&|_| 0),
        integers(&|_| num_repeats),
        texts(&|_| "tasks.jsonl".into()),
        integers(&|task| task + 1),
        texts(&|task| format!("{task:032x}")),
        texts(&request),
    ];
    Ok(RecordBatch::try_new(schema::tasks(), columns)?)
}
