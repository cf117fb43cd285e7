//! From tasks to the rollouts still pending: the plan of `expand::pending` over the tables of a run, with nothing and
//! with nearly everything done, beside nested loops over the same tasks in memory that make the same batches.

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, ensure};
use arrow::array::{
    ArrayRef, AsArray, Int64Array, RecordBatch, StringViewArray, StringViewBuilder,
};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use clap::Parser;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use rollstream::call::RolloutKey;
use rollstream::expand;
use rollstream::outcome::AnswerFields;
use rollstream::outcome::{
    Answer, Outcome, OutcomeBatchBuilder, Times, Verdict, attempts_of, rollouts_of,
};
use rollstream::retry::Budgets;
use rollstream::schema;
use rollstream::session::{self, RunTables};
use rollstream::store::{PartWriter, RunStore, part_name};
use tempfile::TempDir;

use common::{Options, Report, millions};

const BASELINE: &str = "nested loops";

/// Rows of a batch, as the collector asks for where tasks are small.
const BATCH_ROWS: usize = 4096;

/// Of this many rollouts one is left where nearly everything is done.
const LEFT_OF: i64 = 100;

/// Rollouts per second from the tables of a run to the rows that are sent.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Tasks [default: 100000; 10000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<i64>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeats_of_a_task: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let size = Size {
        num_tasks: cli
            .tasks
            .unwrap_or(if cli.options.quick { 10_000 } else { 100_000 }),
        num_repeats: cli.repeats_of_a_task,
    };
    let tasks = size.tasks()?;
    let mut report = Report::new("expand");
    for is_done in [false, true] {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let run = RunStore::open(
            directory
                .path()
                .to_str()
                .context("the temporary directory's name")?,
            None,
        )?;
        write(&run, schema::TASKS, [Ok(tasks.clone())]).await?;
        if is_done {
            write(
                &run,
                schema::ROLLOUTS,
                size.done().map(|rows| Ok(rollouts_of(&rows?)?)),
            )
            .await?;
            write(
                &run,
                schema::ATTEMPTS,
                size.done().map(|rows| Ok(attempts_of(&rows?)?)),
            )
            .await?;
        }
        let (mut pending, mut loops) = (Vec::new(), Vec::new());
        for _ in 0..cli.options.repeats() {
            let began = Instant::now();
            let rows = pending_rows(&run).await?;
            pending.push(millions(size.num_rollouts() as f64) / began.elapsed().as_secs_f64());
            let began = Instant::now();
            let expected = size.nested_loops(&tasks, is_done)?;
            loops.push(millions(size.num_rollouts() as f64) / began.elapsed().as_secs_f64());
            ensure!(
                rows == expected,
                "{rows} rollouts are pending, but {expected} should be"
            );
        }
        let done = if is_done { "99 % done" } else { "nothing done" };
        let case = format!("{} x {}, {done}", size.num_tasks, size.num_repeats);
        report.compare(&case, "rate", "M rollouts/s", &pending, (BASELINE, &loops));
    }
    report.finish(&cli.options)
}

const BUDGETS: Budgets = Budgets {
    infra: 5,
    rate_limit: 50,
    data: 2,
    attempts: 3,
    all: u32::MAX,
};

/// The rows of the plan, as the collector reads them: one partition, one batch at a time.
async fn pending_rows(run: &RunStore) -> anyhow::Result<usize> {
    let config = session::config()
        .with_target_partitions(1)
        .with_batch_size(BATCH_ROWS);
    let session = SessionContext::new_with_config(config);
    RunTables::look(run).await?.register(&session).await?;
    expand::prepare(
        &session,
        [("agent", BUDGETS)],
        expand::Terminal::AsStamped,
        true,
    )
    .await?;
    let mut rows = expand::pending(&session).await?.execute_stream().await?;
    let mut count = 0;
    while let Some(batch) = rows.try_next().await? {
        count += batch.num_rows();
    }
    Ok(count)
}

async fn write(
    run: &RunStore,
    table: &str,
    batches: impl IntoIterator<Item = anyhow::Result<RecordBatch>>,
) -> anyhow::Result<()> {
    let mut writer: Option<PartWriter> = None;
    for batch in batches {
        let batch = batch?;
        let writer = match &mut writer {
            Some(writer) => writer,
            none => none.insert(PartWriter::new(
                run,
                table,
                &part_name(table, "bench"),
                batch.schema(),
            )?),
        };
        writer.write(&batch).await?;
    }
    writer.context("nothing to write")?.finish().await?;
    Ok(())
}

#[derive(Clone, Copy)]
struct Size {
    num_tasks: i64,
    num_repeats: i64,
}

impl Size {
    fn num_rollouts(self) -> i64 {
        self.num_tasks * self.num_repeats
    }

    fn is_left(self, task: i64, rollout: i64) -> bool {
        (task * self.num_repeats + rollout) % LEFT_OF == 0
    }

    fn tasks(self) -> anyhow::Result<RecordBatch> {
        let texts = |of: &dyn Fn(i64) -> String| -> ArrayRef {
            Arc::new(
                (0..self.num_tasks)
                    .map(|task| Some(of(task)))
                    .collect::<StringViewArray>(),
            )
        };
        let integers = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
            Arc::new((0..self.num_tasks).map(of).collect::<Int64Array>())
        };
        let request = |task| {
            let question =
                "How many pieces of fruit does the basket hold, if nobody has taken one? "
                    .repeat(2);
            format!(
                r#"{{"responses_create_params":{{"input":"Basket {task}. {question}"}},"_ng_task_index":{task}}}"#
            )
        };
        let columns = vec![
            integers(&|task| task),
            texts(&|_| "sim".into()),
            integers(&|_| 0),
            integers(&|_| self.num_repeats),
            texts(&|_| "tasks.jsonl".into()),
            integers(&|task| task + 1),
            texts(&|task| format!("{task:032x}")),
            texts(&request),
        ];
        Ok(RecordBatch::try_new(schema::tasks(), columns)?)
    }

    /// Outcomes of all rollouts but those that are left.
    fn done(self) -> impl Iterator<Item = anyhow::Result<RecordBatch>> {
        let agent: Arc<str> = "sim".into();
        let of_tasks = move |first: i64| {
            let mut batch = OutcomeBatchBuilder::new();
            for task in first..(first + 64).min(self.num_tasks) {
                for rollout in (0..self.num_repeats).filter(|rollout| !self.is_left(task, *rollout))
                {
                    batch.append(outcome(task, rollout, &agent))?;
                }
            }
            Ok(batch.finish()?)
        };
        (0..self.num_tasks).step_by(64).map(of_tasks)
    }

    /// Makes the rows that the plan makes. What is done is known beforehand and only put into a set.
    fn nested_loops(self, tasks: &RecordBatch, is_done: bool) -> anyhow::Result<usize> {
        let column = |name: &str| {
            tasks
                .column_by_name(name)
                .with_context(|| format!("no column {name}"))
        };
        let indices = column(schema::TASK_INDEX)?.as_primitive::<Int64Type>();
        let agents = column(schema::AGENT_NAME)?.as_string_view();
        let requests = column(schema::REQUEST)?.as_string_view();
        let mut done = HashSet::new();
        if is_done {
            let all = (0..self.num_tasks)
                .flat_map(|task| (0..self.num_repeats).map(move |rollout| (task, rollout)));
            done.extend(all.filter(|(task, rollout)| !self.is_left(*task, *rollout)));
        }
        let mut batch = PendingBatch::default();
        let mut count = 0;
        for (row, task) in indices.values().iter().enumerate() {
            for rollout in 0..self.num_repeats {
                if done.contains(&(*task, rollout)) {
                    continue;
                }
                batch.task_index.push(*task);
                batch.rollout_index.push(rollout);
                batch.agent_name.append_value(agents.value(row));
                batch.request.append_value(requests.value(row));
                if batch.task_index.len() == BATCH_ROWS {
                    count += batch.finish()?.num_rows();
                }
            }
        }
        Ok(count + batch.finish()?.num_rows())
    }
}

#[derive(Default)]
struct PendingBatch {
    task_index: Vec<i64>,
    rollout_index: Vec<i64>,
    agent_name: StringViewBuilder,
    request: StringViewBuilder,
}

impl PendingBatch {
    fn finish(&mut self) -> anyhow::Result<RecordBatch> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(std::mem::take(&mut self.task_index))),
            Arc::new(Int64Array::from(std::mem::take(&mut self.rollout_index))),
            Arc::new(self.agent_name.finish()),
            Arc::new(self.request.finish()),
        ];
        Ok(RecordBatch::try_new(schema::pending(), columns)?)
    }
}

fn outcome(task_index: i64, rollout_index: i64, agent: &Arc<str>) -> Outcome {
    let fields = AnswerFields {
        reward: Some(1.0),
        ..AnswerFields::default()
    };
    let key = RolloutKey::new(task_index, rollout_index, 0);
    Outcome {
        http_status: Some(200),
        times: Times {
            server: Some(Duration::from_millis(1)),
            ..Times::default()
        },
        ..Outcome::new(
            key,
            Arc::clone(agent),
            UNIX_EPOCH,
            Verdict::Ok(Answer {
                body: Bytes::from_static(b"{}"),
                fields,
            }),
        )
    }
}
