//! Metrics over generated runs: the statistics and pass@k (families 1 and 2), all families, all with
//! `aggregate_metrics.json`, and the reward profile, beside DuckDB with the same statistics in its SQL over the same
//! files. Each is a process of its own; they take turns.
//!
//! ```sh
//! pip install duckdb
//! cargo bench --bench goals -- metrics --python python3     # 10,000 x 16 of 20 KB; 50,000 x 4 and 100,000 x 100 of few bytes
//! ```

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use clap::{Args, ValueEnum};
use rollstream::gym::GymChoice;
use rollstream::measure::MetricQueries;
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::schema;
use rollstream::store::{PartWriter, RunStore, part_name};
use rollstream::{Aggregation, AggregationSource, Measurement, Profile, ProfileTarget};
use tempfile::TempDir;

use super::Settings;
use crate::common::{Answers, Child, Goal, Growth, Report, Usage, itself};

/// Families 1 and 2 of the comparison.
const STATISTICS: [&str; 3] = ["agent_statistics", "task_statistics", "pass_at_k"];

/// The same in DuckDB.
const DUCKDB: &str = include_str!("metrics.py");

const BASELINE: &str = "DuckDB, statistics and pass@k";

/// A run of this many rollouts is measured once and without what reads its answers.
const MANY: i64 = 1_000_000;

/// Time and memory of the metrics of a run, beside DuckDB over the same files.
#[derive(Debug, Clone, Args)]
pub struct Metrics {
    /// Tasks [default: 10000 and, of 4 and 100 rollouts with 300 bytes, 50000 and 100000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<i64>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 16)]
    repeats_of_a_task: i64,
    /// Bytes of an answer
    #[arg(long, value_name = "BYTES", default_value_t = 20_000)]
    body_size: usize,
    /// Memory of the metrics for what can go to temporary files, in MB
    #[arg(long, value_name = "MB", default_value_t = 128)]
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

impl Work {
    fn title(self) -> &'static str {
        match self {
            Self::Generate => "made",
            Self::Statistics => "statistics and pass@k",
            Self::Families => "all families",
            Self::Json => "all families and JSON",
            Self::Profile => "reward profile",
        }
    }

    /// Of time in seconds and memory in MB, at the size that the goals are for.
    fn goals(self, size: Size) -> (Option<Goal>, Option<Goal>) {
        match (self, size.rollouts()) {
            (Self::Json, 200_000) => (Some(Goal::RatioAtMost(4.0)), None),
            (Self::Families, MANY..) => (Some(Goal::AtMost(60.0)), Some(Goal::AtMost(2147.0))),
            (Self::Profile, 160_000) => (Some(Goal::AtMost(1.0)), None),
            _ => (None, None),
        }
    }
}

/// A run.
#[derive(Debug, Clone, Copy)]
struct Size {
    tasks: i64,
    repeats: i64,
    /// Bytes of an answer.
    body_size: usize,
}

impl Size {
    fn rollouts(self) -> i64 {
        self.tasks * self.repeats
    }
}

impl Metrics {
    /// What is done in this process.
    pub fn work(&self) -> Option<anyhow::Result<()>> {
        let (work, run) = (self.work?, self.run.as_ref()?);
        let runtime = tokio::runtime::Runtime::new().map_err(anyhow::Error::from);
        Some(runtime.and_then(|runtime| runtime.block_on(work.done_with(self, run))))
    }

    pub fn measure(&self, settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let of = |tasks| Size {
            tasks,
            repeats: self.repeats_of_a_task,
            body_size: self.body_size,
        };
        let small = |tasks, repeats| Size {
            tasks,
            repeats,
            body_size: 300,
        };
        let sizes = match (self.tasks, settings.options.quick) {
            (Some(tasks), _) => vec![of(tasks)],
            (None, true) => vec![of(1_000)],
            (None, false) => vec![of(10_000), small(50_000, 4), small(100_000, 100)],
        };
        for size in sizes {
            let mut growth = Growth::default();
            for tasks in settings.sizes_up_to(usize::try_from(size.tasks)?) {
                let tasks = i64::try_from(tasks)?.max(1);
                self.measure_size(Size { tasks, ..size }, settings, report, &mut growth)?;
                report.save(&settings.options)?;
            }
            growth.report(&format!("metrics, x {}", size.repeats), report);
        }
        Ok(())
    }

    fn measure_size(
        &self,
        size: Size,
        settings: &Settings,
        report: &mut Report,
        growth: &mut Growth,
    ) -> anyhow::Result<()> {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let run = directory.path().to_str();
        let run = run.context("the temporary directory's name")?;
        self.child(size, Work::Generate, run)?;
        let works: &[Work] = match size.rollouts() {
            MANY.. => &[Work::Statistics, Work::Families],
            _ => &[Work::Statistics, Work::Families, Work::Json, Work::Profile],
        };
        let repeats = match size.rollouts() {
            MANY.. => settings.options.repeats_or(1),
            _ => settings.options.repeats(),
        };
        let mut usages: Vec<Vec<Usage>> = vec![Vec::new(); works.len()];
        let mut duckdb: Vec<Usage> = Vec::new();
        for _ in 0..repeats {
            duckdb.extend(duck(&settings.python, Path::new(run))?);
            for (work, usages) in works.iter().zip(&mut usages) {
                usages.push(self.child(size, *work, run)?);
            }
        }
        if duckdb.is_empty() {
            let python = settings.python.display();
            report.note(format!(
                "metrics: {python} has no duckdb, so that nothing is compared with it"
            ));
        }
        for (work, usages) in works.iter().zip(&usages) {
            let case = format!(
                "metrics, {} x {}, {}",
                size.tasks,
                size.repeats,
                work.title()
            );
            let (of_time, of_memory) = work.goals(size);
            let goals = [of_time, None, of_memory];
            for (figure, goal) in Usage::FIGURES.into_iter().zip(goals) {
                let values: Vec<f64> = usages.iter().map(figure.2).collect();
                let name = format!("{}, {}", work.title(), figure.0);
                growth.add(&name, usize::try_from(size.rollouts())?, &values);
                let measured = report.measured(&case, figure, usages, (BASELINE, &duckdb));
                measured.goal = goal;
            }
        }
        Ok(())
    }

    fn child(&self, size: Size, work: Work, run: &str) -> anyhow::Result<Usage> {
        let mut command = itself()?;
        let name = work.to_possible_value().context("work without a name")?;
        command.args(["metrics", "--work", name.get_name(), "--run", run]);
        command.args(["--tasks", &size.tasks.to_string()]);
        command.args(["--repeats-of-a-task", &size.repeats.to_string()]);
        command.args(["--body-size", &size.body_size.to_string()]);
        command.args(["--memory", &self.memory.to_string()]);
        Ok(Child::start(&mut command)?.finish()?.1)
    }
}

/// DuckDB's part; nothing where it is not installed.
fn duck(python: &Path, run: &Path) -> anyhow::Result<Option<Usage>> {
    let probe = Command::new(python).args(["-c", "import duckdb"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return Ok(None);
    }
    let mut command = Command::new(python);
    command
        .args(["-c", DUCKDB])
        .arg(run.join("rollouts"))
        .arg(run.join("duckdb"));
    Ok(Some(Child::start(&mut command)?.finish()?.1))
}

impl Work {
    async fn done_with(self, row: &Metrics, place: &str) -> anyhow::Result<()> {
        let run = RunStore::open(place, None)?;
        let queries = MetricQueries::embedded()?;
        let queries = match self {
            Self::Generate => {
                let tasks = row.tasks.context("how many tasks?")?;
                return generate(tasks, row.repeats_of_a_task, row.body_size, &run).await;
            }
            Self::Statistics => queries.only(&STATISTICS)?,
            Self::Families | Self::Json => queries,
            Self::Profile => return profile(run, row.memory << 20).await,
        };
        let report = Aggregation {
            source: AggregationSource::Runs(vec![run.clone()]),
            output: run,
            gym: GymChoice::Auto,
            measurement: Measurement {
                json: self == Self::Json,
                ..Measurement::new(queries, row.memory << 20)
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
    let profile = Profile::of_run(&run, GymChoice::Auto, memory).await?;
    profile.check(false).await?;
    let prefix = String::new();
    let written = profile
        .write(&ProfileTarget { place: run, prefix }, &mut Vec::new())
        .await?;
    ensure!(written.len() == 2, "{} files of a profile", written.len());
    Ok(())
}

/// Rows of a part, about as many as 128 MB hold.
const PART_ROWS: usize = 50 * 1024;

/// Writes the tables of a run without a sweep: `repeats` rollouts of each of `tasks` tasks.
async fn generate(
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
