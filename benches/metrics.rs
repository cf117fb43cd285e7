//! Metrics over the tables of a generated run: every default family, and `aggregate_metrics.json` made of them,
//! beside one plain statement of the same statistics of one column. Each is a process of its own; they take turns.

mod common;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use clap::{Parser, ValueEnum};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use rollstream::measure::{AggregateMetrics, MetricQueries, TaskLabels, run_families};
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::schema;
use rollstream::session::{self, RunTables};
use rollstream::store::{PartWriter, RunStore, part_name};
use tempfile::TempDir;

use common::{Answers, Child, Options, Report, Usage, itself, millions};

const METRICS: &str = "metrics";

const BASELINE: &str = "one column in SQL";
const BASELINE_SQL: &str = "SELECT agent_name, avg(reward), max(reward), min(reward), stddev(reward), median(reward) \
                            FROM rollouts GROUP BY agent_name";

/// Time and memory of the metrics of a run, beside plain SQL over the same files.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Tasks [default: 10000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<i64>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 100)]
    repeats_of_a_task: i64,
    /// Do this with the run at RUN, and print the seconds of each step
    #[arg(long, hide = true, requires = "run")]
    work: Option<Work>,
    #[arg(long, hide = true)]
    run: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    Generate,
    Families,
    Aggregate,
    Baseline,
}

impl Cli {
    fn answers(&self) -> Answers {
        let num_tasks = self
            .tasks
            .unwrap_or(if self.options.quick { 1_000 } else { 10_000 });
        Answers::new(num_tasks, self.repeats_of_a_task, 0)
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match (cli.work, &cli.run) {
        (Some(work), Some(run)) => {
            tokio::runtime::Runtime::new()?.block_on(work.done_with(&cli, run))
        }
        _ => measure(&cli),
    }
}

/// What became of one kind of work, in all the rounds.
#[derive(Default)]
struct Rounds {
    usages: Vec<Usage>,
    /// Seconds of each step, by its name, in the order of the first round.
    steps: Vec<(String, Vec<f64>)>,
}

impl Rounds {
    fn add(&mut self, output: &str, usage: Usage) -> anyhow::Result<()> {
        self.usages.push(usage);
        for line in output.lines() {
            let (name, seconds) = line
                .split_once('\t')
                .with_context(|| format!("not a step: {line}"))?;
            let seconds: f64 = seconds.parse()?;
            match self.steps.iter_mut().find(|step| step.0 == name) {
                Some((_, all)) => all.push(seconds),
                None => self.steps.push((name.to_owned(), vec![seconds])),
            }
        }
        Ok(())
    }

    fn total(&self) -> Vec<f64> {
        let of_round = |round| {
            self.steps
                .iter()
                .filter_map(|(_, all)| all.get(round))
                .sum()
        };
        (0..self.usages.len()).map(of_round).collect()
    }

    fn values(&self, of: impl Fn(&Usage) -> f64) -> Vec<f64> {
        self.usages.iter().map(of).collect()
    }
}

fn measure(cli: &Cli) -> anyhow::Result<()> {
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let run = directory
        .path()
        .to_str()
        .context("the temporary directory's name")?;
    child(cli, Work::Generate, run)?;
    let (mut families, mut aggregate, mut baseline) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for _ in 0..cli.options.repeats() {
        for (work, rounds) in [
            (Work::Families, &mut families),
            (Work::Baseline, &mut baseline),
            (Work::Aggregate, &mut aggregate),
        ] {
            let (output, usage) = child(cli, work, run)?;
            rounds.add(&output, usage)?;
        }
    }
    let mut report = Report::new("metrics");
    let case = format!("{} rollouts", cli.answers().num_rollouts());
    let cpu = |usage: &Usage| usage.cpu.as_secs_f64();
    let memory = |usage: &Usage| millions(usage.peak_memory as f64);
    for (name, rounds) in [
        ("all families", &families),
        ("aggregate_metrics.json", &aggregate),
    ] {
        let case = format!("{case}, {name}");
        report.compare(
            &case,
            "time",
            "s",
            &rounds.total(),
            (BASELINE, &baseline.total()),
        );
        report.compare(
            &case,
            "CPU",
            "s",
            &rounds.values(cpu),
            (BASELINE, &baseline.values(cpu)),
        );
        report.compare(
            &case,
            "peak memory",
            "MB",
            &rounds.values(memory),
            (BASELINE, &baseline.values(memory)),
        );
    }
    for (name, seconds) in &families.steps {
        report.compare(
            &format!("{case}, {name}"),
            "time",
            "s",
            seconds,
            (BASELINE, &baseline.total()),
        );
    }
    report.finish(&cli.options)
}

fn child(cli: &Cli, work: Work, run: &str) -> anyhow::Result<(String, Usage)> {
    let mut command = itself()?;
    let name = work.to_possible_value().context("work without a name")?;
    command.args(["--work", name.get_name(), "--run", run]);
    command.args(["--repeats-of-a-task", &cli.repeats_of_a_task.to_string()]);
    command.args(cli.tasks.map(|tasks| format!("--tasks={tasks}")));
    command.args(cli.options.quick.then_some("--quick"));
    Child::start(&mut command)?.finish()
}

impl Work {
    async fn done_with(self, cli: &Cli, place: &str) -> anyhow::Result<()> {
        let run = RunStore::open(place, None)?;
        if self == Self::Generate {
            return generate(cli, &run).await;
        }
        let session = match self {
            Self::Baseline => SessionContext::new_with_config(session::config()),
            _ => session::measuring()?,
        };
        RunTables::open(&run)?.register(&session).await?;
        match self {
            Self::Families => families(&run, &session).await,
            Self::Aggregate => aggregate(&run, &session, Path::new(place)).await,
            _ => baseline(&session).await,
        }
    }
}

fn step(name: &str, began: Instant) {
    println!("{name}\t{}", began.elapsed().as_secs_f64());
}

/// Each family into a file of its own, as the collector does it.
async fn families(run: &RunStore, session: &SessionContext) -> anyhow::Result<()> {
    for table in run_families(session, &MetricQueries::embedded()?, &HashMap::new()).await? {
        let began = Instant::now();
        let name = table.name().to_owned();
        let mut writer = PartWriter::new(run, METRICS, &part_name(METRICS, &name), table.schema())?;
        let mut rows = table.stream().await?;
        let mut count = 0;
        while let Some(batch) = rows.try_next().await? {
            count += batch.num_rows();
            writer.write(&batch).await?;
        }
        writer.finish().await?;
        ensure!(count > 0, "{name} is empty");
        step(&name, began);
    }
    Ok(())
}

async fn aggregate(run: &RunStore, session: &SessionContext, place: &Path) -> anyhow::Result<()> {
    for table in run_families(session, &MetricQueries::embedded()?, &HashMap::new()).await? {
        let landed = session::part(
            session,
            run,
            &part_name(METRICS, table.name()),
            &table.schema(),
        )?;
        session.register_table(table.name(), landed.into_view())?;
    }
    let began = Instant::now();
    let mut file = BufWriter::new(File::create(place.join("aggregate_metrics.json"))?);
    let agents = AggregateMetrics::new(session, &TaskLabels::default())
        .write(&mut file)
        .await?;
    file.flush()?;
    ensure!(agents == 2, "{agents} agents are in aggregate_metrics.json");
    step("aggregate_metrics.json", began);
    Ok(())
}

async fn baseline(session: &SessionContext) -> anyhow::Result<()> {
    let began = Instant::now();
    let rows: usize = session
        .sql(BASELINE_SQL)
        .await?
        .collect()
        .await?
        .iter()
        .map(RecordBatch::num_rows)
        .sum();
    ensure!(rows == 2, "{rows} agents are in the tables");
    step("sql", began);
    Ok(())
}

async fn generate(cli: &Cli, run: &RunStore) -> anyhow::Result<()> {
    let answers = cli.answers();
    let name = |table| part_name(table, "bench");
    let mut rollouts = PartWriter::new(
        run,
        schema::ROLLOUTS,
        &name(schema::ROLLOUTS),
        schema::rollouts(),
    )?;
    let mut attempts = PartWriter::new(
        run,
        schema::ATTEMPTS,
        &name(schema::ATTEMPTS),
        schema::attempts(),
    )?;
    for outcomes in answers.batches() {
        let outcomes = outcomes?;
        rollouts.write(&rollouts_of(&outcomes)?).await?;
        attempts.write(&attempts_of(&outcomes)?).await?;
    }
    rollouts.finish().await?;
    attempts.finish().await?;
    let mut tasks = PartWriter::new(run, schema::TASKS, &name(schema::TASKS), schema::tasks())?;
    tasks
        .write(&task_rows(
            answers.num_rollouts() / cli.repeats_of_a_task,
            cli.repeats_of_a_task,
        )?)
        .await?;
    tasks.finish().await?;
    Ok(())
}

fn task_rows(num_tasks: i64, num_repeats: i64) -> anyhow::Result<RecordBatch> {
    let integers = |of: &dyn Fn(i64) -> i64| -> ArrayRef {
        Arc::new((0..num_tasks).map(of).collect::<Int64Array>())
    };
    let texts = |of: &dyn Fn(i64) -> String| -> ArrayRef {
        Arc::new(
            (0..num_tasks)
                .map(|task| Some(of(task)))
                .collect::<StringViewArray>(),
        )
    };
    let columns = vec![
        integers(&|task| task),
        texts(&|task| {
            ["left", "right"]
                .get(task as usize % 2)
                .copied()
                .unwrap_or_default()
                .into()
        }),
        integers(&|_| 0),
        integers(&|_| num_repeats),
        texts(&|_| "tasks.jsonl".into()),
        integers(&|task| task + 1),
        texts(&|task| format!("{task:032x}")),
        texts(&|task| {
            format!(
                r#"{{"responses_create_params":{{"input":"Task {task}"}},"_ng_task_index":{task}}}"#
            )
        }),
    ];
    Ok(RecordBatch::try_new(schema::tasks(), columns)?)
}
