//! Going on with a sweep that is nearly done: from the start of the program to the first request that an agent
//! sees, beside the same of a sweep of which nothing is done; and with one that is finished, beside queries
//! over the same run. Each is a process of its own; they take turns.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use clap::{Parser, ValueEnum};
use datafusion::prelude::SessionContext;
use rollstream::Sweep;
use rollstream::config::{AgentSettings, Settings};
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::run::StopReason;
use rollstream::schema;
use rollstream::session::{self, RunTables};
use rollstream::sim::{Latency, Sim, SimConfig};
use rollstream::store::{PartWriter, RunStore, part_name};
use tempfile::TempDir;

use common::{Answers, Child, Options, Report, Usage, itself, millions, rollstream, write_tasks};

const AGENT: &str = "sim";

const BASELINE: &str = "nothing done";

const SQL: &str = "rollstream sql";

const TWO_COLUMNS: &str = "two columns";

const QUERY: &str = "SELECT count(*), sum(task_index), sum(rollout_index) FROM rollouts";

/// Of this many tasks all but one are done where nearly everything is.
const LEFT_OF: usize = 100;

/// Tasks of the sweep of which nothing is done.
const FEW_TASKS: usize = 10;

/// Batches of 1,024 outcomes in a part.
const PART_BATCHES: usize = 100;

/// How often the agent's requests are counted.
const LOOK: Duration = Duration::from_millis(1);

/// Time and memory until a resumed sweep sends its first request.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Tasks [default: 10000; 1000 with --quick]
    #[arg(long, value_name = "N")]
    tasks: Option<usize>,
    /// Rollouts of a task
    #[arg(long, value_name = "N", default_value_t = 100)]
    repeats_of_a_task: usize,
    /// Bytes of an answer
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    body_size: usize,
    /// Calls in flight
    #[arg(long, value_name = "NUMBER", default_value_t = 256)]
    concurrency: usize,
    /// Do this in DIRECTORY
    #[arg(long, hide = true, requires = "directory")]
    work: Option<Work>,
    #[arg(long, hide = true)]
    directory: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    /// Begin a sweep.
    Begin,
    /// Begin it, and have nearly all of it done.
    BeginAndFill,
    /// Read two columns of the run.
    TwoColumns,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // Inherited by all the processes: a call in flight is a connection, at both its ends.
    rlimit::increase_nofile_limit(u64::MAX)?;
    let runtime = tokio::runtime::Runtime::new()?;
    match (cli.work, &cli.directory) {
        (Some(work), Some(directory)) => runtime.block_on(work.done_in(&cli, directory)),
        _ => {
            let sim = SimConfig {
                latency: Latency::Fixed(Duration::ZERO),
                body_size: cli.body_size,
                ..SimConfig::default()
            };
            let sim = runtime.block_on(Sim::start(sim))?;
            measure(&cli, &sim)
        }
    }
}

/// What became of going on with a sweep.
struct Resumed {
    /// From the start of the program.
    first_request: Duration,
    /// The largest that it had been by then, in bytes.
    memory_then: u64,
    usage: Usage,
}

/// Name, unit, and how it is worked out.
type Figure<'a, T> = (&'static str, &'static str, &'a dyn Fn(&T) -> f64);

fn measure(cli: &Cli, sim: &Sim) -> anyhow::Result<()> {
    let num_tasks = cli
        .tasks
        .unwrap_or(if cli.options.quick { 1_000 } else { 10_000 });
    let directory = TempDir::with_prefix("rollstream-bench-")?;
    let nothing = Place::make(cli, &directory.path().join("few"), FEW_TASKS, Work::Begin)?;
    let nearly = directory.path().join("many");
    let nearly = Place::make(cli, &nearly, num_tasks, Work::BeginAndFill)?;
    let (mut many, mut few): (Vec<Resumed>, Vec<Resumed>) = (Vec::new(), Vec::new());
    let mut finished: [Vec<Usage>; 3] = Default::default();
    for _ in 0..cli.options.repeats() {
        nearly.restore()?;
        nothing.restore()?;
        many.push(nearly.resume(cli, sim)?);
        few.push(nothing.resume(cli, sim)?);
        // The sweep is finished now.
        let took = [
            nearly.resume_finished(cli, sim)?,
            nearly.sql()?,
            nearly.two_columns(cli)?,
        ];
        finished
            .iter_mut()
            .zip(took)
            .for_each(|(all, took)| all.push(took));
    }
    let mut report = Report::new("resume");
    let size = format!("{num_tasks} x {}", cli.repeats_of_a_task);
    let case = format!("{size}, 99 % done");
    let figures: [Figure<Resumed>; 4] = [
        ("first request", "s", &|of| of.first_request.as_secs_f64()),
        ("peak memory then", "MB", &|of| {
            millions(of.memory_then as f64)
        }),
        ("peak memory", "MB", &|of| {
            millions(of.usage.peak_memory as f64)
        }),
        ("CPU", "s", &|of| of.usage.cpu.as_secs_f64()),
    ];
    for (figure, unit, of) in figures {
        let values = |all: &[Resumed]| all.iter().map(of).collect::<Vec<f64>>();
        report.compare(
            &case,
            figure,
            unit,
            &values(&many),
            (BASELINE, &values(&few)),
        );
    }
    let case = format!("{size}, finished");
    let [resumed, sql, columns] = &finished;
    let figures: [Figure<Usage>; 3] = [
        ("time", "s", &|usage| usage.wall.as_secs_f64()),
        ("CPU", "s", &|usage| usage.cpu.as_secs_f64()),
        ("peak memory", "MB", &|usage| {
            millions(usage.peak_memory as f64)
        }),
    ];
    for (baseline, of_baseline) in [(SQL, sql), (TWO_COLUMNS, columns)] {
        for (figure, unit, of) in figures {
            let values = |all: &[Usage]| all.iter().map(of).collect::<Vec<f64>>();
            let against = (baseline, &*values(of_baseline));
            report.compare(&case, figure, unit, &values(resumed), against);
        }
    }
    report.finish(&cli.options)
}

/// A directory with tasks and a run, and how it was when it was made.
struct Place {
    directory: PathBuf,
    num_rollouts: usize,
    record: Vec<u8>,
    files: BTreeSet<PathBuf>,
}

impl Place {
    fn make(cli: &Cli, directory: &Path, num_tasks: usize, work: Work) -> anyhow::Result<Self> {
        fs::create_dir(directory)?;
        write_tasks(&tasks_of(directory), num_tasks)?;
        let mut command = work.command(cli, directory)?;
        command.args(["--tasks", &num_tasks.to_string()]);
        Child::start(&mut command)?.finish()?;
        let mut files = BTreeSet::new();
        list(&run_of(directory), &mut files)?;
        Ok(Self {
            directory: directory.to_owned(),
            num_rollouts: num_tasks * cli.repeats_of_a_task,
            record: fs::read(run_of(directory).join("run.json"))?,
            files,
        })
    }

    /// Undoes what was done since.
    fn restore(&self) -> anyhow::Result<()> {
        let mut files = BTreeSet::new();
        list(&run_of(&self.directory), &mut files)?;
        for path in files.difference(&self.files) {
            fs::remove_file(path)?;
        }
        fs::write(run_of(&self.directory).join("run.json"), &self.record)?;
        Ok(())
    }

    /// Goes on to the end, and finds out when the first request came.
    fn resume(&self, cli: &Cli, sim: &Sim) -> anyhow::Result<Resumed> {
        let before = requests(sim);
        let began = Instant::now();
        let child = Child::start(&mut self.collect(cli, sim))?;
        let id = child.id()?;
        thread::scope(|scope| {
            let ending = scope.spawn(move || child.finish());
            let mut first = None;
            while first.is_none() && !ending.is_finished() {
                match requests(sim) > before {
                    true => first = Some((began.elapsed(), peak_memory(id)?)),
                    false => thread::sleep(LOOK),
                }
            }
            let (output, usage) = ending.join().map_err(|_| anyhow!("waiting failed"))??;
            self.check_finished(&output)?;
            let (first_request, memory_then) = first.context("nothing was sent")?;
            Ok(Resumed {
                first_request,
                memory_then,
                usage,
            })
        })
    }

    fn resume_finished(&self, cli: &Cli, sim: &Sim) -> anyhow::Result<Usage> {
        let before = requests(sim);
        let (output, usage) = Child::start(&mut self.collect(cli, sim))?.finish()?;
        self.check_finished(&output)?;
        ensure!(
            requests(sim) == before,
            "a finished sweep sent something more"
        );
        Ok(usage)
    }

    fn collect(&self, cli: &Cli, sim: &Sim) -> Command {
        let mut command = rollstream();
        command.args(["collect", "--resume", "--disable-aggregation", "--json"]);
        command.arg("--input").arg(tasks_of(&self.directory));
        command.arg("--output").arg(run_of(&self.directory));
        command.args(["--agent", AGENT, "--head-server", sim.head_url()]);
        command.args(["--num-repeats", &cli.repeats_of_a_task.to_string()]);
        command.args(["--concurrency", &cli.concurrency.to_string()]);
        command.stderr(Stdio::null());
        command
    }

    fn check_finished(&self, output: &str) -> anyhow::Result<()> {
        let finished = output.lines().last().unwrap_or_default();
        let finished: serde_json::Value =
            serde_json::from_str(finished).context("the collector's last event")?;
        let done = finished
            .pointer("/rollouts/done")
            .and_then(serde_json::Value::as_u64);
        ensure!(
            done == Some(self.num_rollouts as u64),
            "the collector did not collect everything: {finished}"
        );
        Ok(())
    }

    fn sql(&self) -> anyhow::Result<Usage> {
        let mut command = rollstream();
        command.arg("sql").arg(run_of(&self.directory));
        command.args(["--command", QUERY, "--format", "csv"]);
        let (output, usage) = Child::start(&mut command)?.finish()?;
        self.check_count(output.lines().last().unwrap_or_default())?;
        Ok(usage)
    }

    fn two_columns(&self, cli: &Cli) -> anyhow::Result<Usage> {
        let mut command = Work::TwoColumns.command(cli, &self.directory)?;
        let (output, usage) = Child::start(&mut command)?.finish()?;
        self.check_count(&output)?;
        Ok(usage)
    }

    fn check_count(&self, row: &str) -> anyhow::Result<()> {
        let count = row.split(',').next().unwrap_or_default().trim();
        ensure!(
            count == self.num_rollouts.to_string(),
            "{count} rollouts are in the run"
        );
        Ok(())
    }
}

fn tasks_of(directory: &Path) -> PathBuf {
    directory.join("tasks.jsonl")
}

fn run_of(directory: &Path) -> PathBuf {
    directory.join("run")
}

fn list(directory: &Path, files: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, files)?,
            false => {
                files.insert(path);
            }
        }
    }
    Ok(())
}

fn requests(sim: &Sim) -> u64 {
    let counts = sim.counters();
    counts.values().map(|counts| counts.requests).sum()
}

/// The largest resident memory of a process so far, in bytes.
fn peak_memory(id: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix("kB"));
    let kilobytes: u64 = peak.context("no VmHWM")?.trim().parse()?;
    Ok(kilobytes * 1024)
}

impl Work {
    fn command(self, cli: &Cli, directory: &Path) -> anyhow::Result<Command> {
        let mut command = itself()?;
        let name = self.to_possible_value().context("work without a name")?;
        command.args(["--work", name.get_name(), "--directory"]);
        command.arg(directory);
        command.args(["--repeats-of-a-task", &cli.repeats_of_a_task.to_string()]);
        command.args(["--body-size", &cli.body_size.to_string()]);
        Ok(command)
    }

    async fn done_in(self, cli: &Cli, directory: &Path) -> anyhow::Result<()> {
        let place = run_of(directory);
        let run = RunStore::open(place.to_str().context("the directory's name")?, None)?;
        match self {
            Self::Begin => begin(cli, directory).await,
            Self::BeginAndFill => {
                begin(cli, directory).await?;
                fill(cli, &run).await
            }
            Self::TwoColumns => two_columns(&run).await,
        }
    }
}

/// A sweep that is stopped before it sends anything leaves a run with all that belongs to one.
async fn begin(cli: &Cli, directory: &Path) -> anyhow::Result<()> {
    let agent = AgentSettings {
        // Never asked.
        url: Some("http://127.0.0.1:9".parse()?),
        ..AgentSettings::default()
    };
    let sweep = Sweep::prepare(Settings {
        input: vec![tasks_of(directory).display().to_string()],
        output: Some(run_of(directory).display().to_string()),
        agent: Some(AGENT.to_owned()),
        agents: [(AGENT.to_owned(), agent)].into(),
        num_repeats: cli.repeats_of_a_task.to_string().parse()?,
        aggregate: false,
        ..Settings::default()
    })
    .await?;
    sweep.shutdown().stop(StopReason::Signal);
    sweep.collect().await?;
    Ok(())
}

/// Rollouts of all tasks but the last ones: what is left of a sweep that was cut off is its end.
async fn fill(cli: &Cli, run: &RunStore) -> anyhow::Result<()> {
    let num_tasks = cli.tasks.context("how many tasks?")?;
    let num_done = num_tasks - (num_tasks / LEFT_OF).max(1);
    let repeats = cli.repeats_of_a_task as i64;
    let answers = Answers::new(num_done as i64, repeats, cli.body_size).of_agent(AGENT);
    let mut batches = answers.batches();
    for part in 0.. {
        let name = |table| part_name(table, &format!("bench-{part:05}"));
        let mut writers: Option<[PartWriter; 2]> = None;
        for outcomes in batches.by_ref().take(PART_BATCHES) {
            let outcomes = outcomes?;
            let (rollouts, attempts) = (rollouts_of(&outcomes)?, attempts_of(&outcomes)?);
            let writers = match &mut writers {
                Some(writers) => writers,
                none => none.insert([
                    PartWriter::new(
                        run,
                        schema::ROLLOUTS,
                        &name(schema::ROLLOUTS),
                        rollouts.schema(),
                    )?,
                    PartWriter::new(
                        run,
                        schema::ATTEMPTS,
                        &name(schema::ATTEMPTS),
                        attempts.schema(),
                    )?,
                ]),
            };
            let [of_rollouts, of_attempts] = writers;
            of_rollouts.write(&rollouts).await?;
            of_attempts.write(&attempts).await?;
        }
        let Some(writers) = writers else { break };
        for writer in writers {
            writer.finish().await?;
        }
    }
    Ok(())
}

/// The same query with nothing around it.
async fn two_columns(run: &RunStore) -> anyhow::Result<()> {
    let session = SessionContext::new_with_config(session::config());
    RunTables::open(run)?.register(&session).await?;
    let rows = session.sql(QUERY).await?.collect().await?;
    let count = rows.first().context("no answer")?.column(0);
    println!("{}", count.as_primitive::<Int64Type>().value(0));
    Ok(())
}
