//! Metrics over generated runs: the statistics and pass@k (families 1 and 2), all families, all with
//! `aggregate_metrics.json`, and the reward profile, beside DuckDB with the same statistics in its SQL over the same
//! files. Each is a process of its own; they take turns.
//!
//! ```sh
//! pip install duckdb
//! cargo bench --bench metrics -- --python python3            # 1,000 x 16 and 10,000 x 16
//! cargo bench --bench metrics -- --tasks 100000 --repeats-of-a-task 100 --body-size 1000 --repeats 1
//! ```

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use clap::{Parser, ValueEnum};
use rollstream::measure::MetricQueries;
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::schema;
use rollstream::store::{PartWriter, RunStore, part_name};
use rollstream::{Aggregation, AggregationSource, Measurement, Profile, ProfileTarget};
use tempfile::TempDir;

use common::{Answers, Child, Options, Report, Usage, itself, millions};

/// Families 1 and 2 of the comparison.
const STATISTICS: [&str; 3] = ["agent_statistics", "task_statistics", "pass_at_k"];

/// The same in DuckDB.
const DUCKDB: &str = include_str!("metrics.py");

/// Rows of a part, about as many as 128 MB hold.
const PART_ROWS: usize = 50 * 1024;

/// Time and memory of the metrics of a run, beside DuckDB over the same files.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Tasks [default: 1000 and then 10000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<i64>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 16)]
    repeats_of_a_task: i64,
    /// Bytes of an answer
    #[arg(long, value_name = "BYTES", default_value_t = 20_000)]
    body_size: usize,
    /// A Python that has the package duckdb
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// Memory of the metrics for what can go to temporary files, in MB
    #[arg(long, value_name = "MB", default_value_t = 256)]
    memory: usize,
    /// Do this with the run at RUN
    #[arg(long, hide = true, requires = "run")]
    work: Option<Work>,
    #[arg(long, hide = true)]
    run: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    Generate,
    Statistics,
    Families,
    Json,
    Profile,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let (Some(work), Some(run)) = (cli.work, &cli.run) {
        let runtime = tokio::runtime::Runtime::new()?;
        return runtime.block_on(work.done_with(&cli, run));
    }
    let sizes = match (cli.tasks, cli.options.quick) {
        (Some(tasks), _) => vec![tasks],
        (None, true) => vec![1_000],
        (None, false) => vec![1_000, 10_000],
    };
    let mut report = Report::new("metrics");
    for tasks in sizes {
        measure(&cli, tasks, &mut report)?;
    }
    report.finish(&cli.options)
}

/// What is compared: its name, its unit, and where it stands.
type Figure = (&'static str, &'static str, fn(&Usage) -> f64);

fn measure(cli: &Cli, tasks: i64, report: &mut Report) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let run = directory
        .path()
        .to_str()
        .context("the temporary directory's name")?;
    child(cli, tasks, Work::Generate, run)?;
    let ours = [
        (Work::Statistics, "statistics and pass@k"),
        (Work::Families, "all families"),
        (Work::Json, "all families and JSON"),
        (Work::Profile, "reward profile"),
    ];
    let mut usages: Vec<Vec<Usage>> = ours.iter().map(|_| Vec::new()).collect();
    let mut duckdb: Vec<Usage> = Vec::new();
    for _ in 0..cli.options.repeats() {
        duckdb.extend(duck(cli, Path::new(run))?);
        for ((work, _), usages) in ours.iter().zip(&mut usages) {
            usages.push(child(cli, tasks, *work, run)?);
        }
    }
    if duckdb.is_empty() {
        eprintln!(
            "{} has no package duckdb: the ratios are to our own statistics",
            cli.python
        );
        duckdb = usages.first().cloned().unwrap_or_default();
    }
    let case = format!("{tasks} x {}", cli.repeats_of_a_task);
    let figures: [Figure; 3] = [
        ("time", "s", |usage| usage.wall.as_secs_f64()),
        ("CPU", "s", |usage| usage.cpu.as_secs_f64()),
        ("peak memory", "MB", |usage| {
            millions(usage.peak_memory as f64)
        }),
    ];
    for ((_, name), usages) in ours.iter().zip(&usages) {
        for (figure, unit, of) in figures {
            let values: Vec<f64> = usages.iter().map(of).collect();
            let baseline: Vec<f64> = duckdb.iter().map(of).collect();
            let case = format!("{case}, {name}");
            report.compare(
                &case,
                figure,
                unit,
                &values,
                ("DuckDB, statistics and pass@k", &baseline),
            );
        }
    }
    Ok(())
}

fn child(cli: &Cli, tasks: i64, work: Work, run: &str) -> anyhow::Result<Usage> {
    let mut command = itself()?;
    let name = work.to_possible_value().context("work without a name")?;
    command.args(["--work", name.get_name(), "--run", run]);
    command.args(["--tasks", &tasks.to_string()]);
    command.args(["--repeats-of-a-task", &cli.repeats_of_a_task.to_string()]);
    command.args(["--body-size", &cli.body_size.to_string()]);
    command.args(["--memory", &cli.memory.to_string()]);
    Ok(Child::start(&mut command)?.finish()?.1)
}

/// DuckDB's part; nothing where it is not installed.
fn duck(cli: &Cli, run: &Path) -> anyhow::Result<Option<Usage>> {
    let probe = Command::new(&cli.python)
        .args(["-c", "import duckdb"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return Ok(None);
    }
    let mut command = Command::new(&cli.python);
    command
        .args(["-c", DUCKDB])
        .arg(run.join("rollouts"))
        .arg(run.join("duckdb"));
    Ok(Some(Child::start(&mut command)?.finish()?.1))
}

impl Work {
    async fn done_with(self, cli: &Cli, place: &str) -> anyhow::Result<()> {
        let run = RunStore::open(place, None)?;
        let queries = MetricQueries::embedded()?;
        let queries = match self {
            Self::Generate => return generate(cli, &run).await,
            Self::Statistics => queries.only(&STATISTICS)?,
            Self::Families | Self::Json => queries,
            Self::Profile => return profile(run, cli.memory << 20).await,
        };
        let report = Aggregation {
            source: AggregationSource::Runs(vec![run.clone()]),
            output: run,
            measurement: Measurement {
                json: self == Self::Json,
                ..Measurement::new(queries, cli.memory << 20)
            },
        };
        let report = report.run().await?;
        ensure!(
            report.metrics.len() == 16,
            "{} metrics of two agents",
            report.metrics.len()
        );
        Ok(())
    }
}

async fn profile(run: RunStore, memory: usize) -> anyhow::Result<()> {
    let profile = Profile::of_run(&run, memory).await?;
    profile.check(false).await?;
    let prefix = String::new();
    let written = profile.write(&ProfileTarget { place: run, prefix }).await?;
    ensure!(written.len() == 2, "{} files of a profile", written.len());
    Ok(())
}

async fn generate(cli: &Cli, run: &RunStore) -> anyhow::Result<()> {
    let (tasks, repeats) = (cli.tasks.unwrap_or(1_000), cli.repeats_of_a_task);
    let answers = Answers::new(tasks, repeats, cli.body_size);
    let mut batches = answers.batches();
    for part in 0.. {
        let name = |table| part_name(table, &format!("bench-{part:05}"));
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
