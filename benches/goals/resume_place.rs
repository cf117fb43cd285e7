//! Runs that are resumed again and again: [`Place`].

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use clap::ValueEnum;
use datafusion::prelude::SessionContext;
use rollstream::Sweep;
use rollstream::config::{AgentSettings, Settings};
use rollstream::outcome::{attempts_of, rollouts_of};
use rollstream::run::StopReason;
use rollstream::schema;
use rollstream::session::{self, RunTables};
use rollstream::sim::Sim;
use rollstream::store::{PartWriter, RunStore, part_name};

use super::resume::Resume;
use super::start::requests;
use crate::common::{
    Answers, Child, Usage, check_done, itself, peak_memory, rollstream, write_tasks,
};

const AGENT: &str = "sim";

const QUERY: &str = "SELECT count(*), sum(task_index), sum(rollout_index) FROM rollouts";

/// Of this many tasks, all but one are done.
const LEFT_OF: usize = 100;

/// Batches of 1,024 outcomes in a part.
const PART_BATCHES: usize = 100;

/// How often the agent's requests are counted.
const LOOK: Duration = Duration::from_millis(1);

/// What is done in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
pub enum Work {
    /// Begin a sweep.
    Begin,
    /// Begin it, and have nearly all of it done.
    BeginAndFill,
    /// Read two columns of the run.
    TwoColumns,
}

/// What a resumed sweep took.
#[derive(Debug)]
pub struct Resumed {
    /// From the start of the program.
    pub first_request: Duration,
    /// The largest that it had been by then, in bytes.
    pub memory_then: u64,
    /// What the process took.
    pub usage: Usage,
}

/// A directory with tasks and a run, and how it was when it was made.
#[derive(Debug)]
pub struct Place {
    directory: PathBuf,
    num_rollouts: usize,
    record: Vec<u8>,
    files: BTreeSet<PathBuf>,
}

impl Place {
    /// Makes it by work in another process.
    pub fn make(
        row: &Resume,
        directory: &Path,
        num_tasks: usize,
        work: Work,
    ) -> anyhow::Result<Self> {
        fs::create_dir(directory)?;
        write_tasks(&tasks_of(directory), num_tasks)?;
        let mut command = work.command(row, directory)?;
        command.args(["--tasks", &num_tasks.to_string()]);
        Child::start(&mut command)?.finish()?;
        let mut files = BTreeSet::new();
        list(&run_of(directory), &mut files)?;
        Ok(Self {
            directory: directory.to_owned(),
            num_rollouts: num_tasks * row.repeats_of_a_task,
            record: fs::read(run_of(directory).join("run.json"))?,
            files,
        })
    }

    /// Restores the run as it was made.
    pub fn restore(&self) -> anyhow::Result<()> {
        let mut files = BTreeSet::new();
        list(&run_of(&self.directory), &mut files)?;
        for path in files.difference(&self.files) {
            fs::remove_file(path)?;
        }
        fs::write(run_of(&self.directory).join("run.json"), &self.record)?;
        Ok(())
    }

    /// Resumes the sweep to its end, and finds out when the first request came.
    pub fn resume(&self, row: &Resume, sim: &Sim) -> anyhow::Result<Resumed> {
        let before = requests(sim);
        let began = Instant::now();
        let child = Child::start(&mut self.collect(row, sim))?;
        let id = child.id()?;
        thread::scope(|scope| {
            let ending = scope.spawn(move || child.finish());
            let mut first = None;
            while first.is_none() && !ending.is_finished() {
                if requests(sim) > before {
                    first = Some((began.elapsed(), peak_memory(id)?));
                } else {
                    thread::sleep(LOOK);
                }
            }
            let (output, usage) = ending.join().map_err(|_| anyhow!("waiting failed"))??;
            check_done(&output, self.num_rollouts)?;
            let (first_request, memory_then) = first.context("nothing was sent")?;
            Ok(Resumed {
                first_request,
                memory_then,
                usage,
            })
        })
    }

    /// Resumes a finished sweep.
    pub fn resume_finished(&self, row: &Resume, sim: &Sim) -> anyhow::Result<Usage> {
        let before = requests(sim);
        let (output, usage) = Child::start(&mut self.collect(row, sim))?.finish()?;
        check_done(&output, self.num_rollouts)?;
        ensure!(
            requests(sim) == before,
            "a finished sweep sent something more"
        );
        Ok(usage)
    }

    fn collect(&self, row: &Resume, sim: &Sim) -> Command {
        let mut command = rollstream();
        command.args(["collect", "--resume", "--disable-aggregation", "--json"]);
        command.arg("--input").arg(tasks_of(&self.directory));
        command.arg("--output").arg(run_of(&self.directory));
        command.args(["--agent", AGENT, "--head-server", sim.head_url()]);
        command.args(["--num-repeats", &row.repeats_of_a_task.to_string()]);
        command.args(["--concurrency", &row.concurrency.to_string()]);
        command.stderr(Stdio::null());
        command
    }

    /// Counts by the program.
    pub fn sql(&self) -> anyhow::Result<Usage> {
        let mut command = rollstream();
        command.arg("sql").arg(run_of(&self.directory));
        command.args(["--command", QUERY, "--format", "csv"]);
        let (output, usage) = Child::start(&mut command)?.finish()?;
        self.check_count(output.lines().last().unwrap_or_default())?;
        Ok(usage)
    }

    /// Counts with nothing around the query.
    pub fn two_columns(&self, row: &Resume) -> anyhow::Result<Usage> {
        let mut command = Work::TwoColumns.command(row, &self.directory)?;
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
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.insert(path);
        }
    }
    Ok(())
}

impl Work {
    fn command(self, row: &Resume, directory: &Path) -> anyhow::Result<Command> {
        let mut command = itself()?;
        let name = self.to_possible_value().context("work without a name")?;
        command.args(["resume", "--work", name.get_name(), "--directory"]);
        command.arg(directory);
        command.args(["--repeats-of-a-task", &row.repeats_of_a_task.to_string()]);
        command.args(["--body-size", &row.body_size.to_string()]);
        Ok(command)
    }

    /// Does it, in this process.
    pub async fn done_in(self, row: &Resume, directory: &Path) -> anyhow::Result<()> {
        let place = run_of(directory);
        let run = RunStore::open(place.to_str().context("the directory's name")?, None)?;
        match self {
            Self::Begin => begin(row, directory).await,
            Self::BeginAndFill => {
                begin(row, directory).await?;
                fill(row, &run).await
            }
            Self::TwoColumns => two_columns(&run).await,
        }
    }
}

/// A sweep that is stopped before it sends anything leaves a run with all that belongs to one.
async fn begin(row: &Resume, directory: &Path) -> anyhow::Result<()> {
    let agent = AgentSettings {
        // Never asked.
        url: Some("http://127.0.0.1:9".parse().map_err(anyhow::Error::msg)?),
        ..AgentSettings::default()
    };
    let sweep = Sweep::prepare(Settings {
        input: vec![tasks_of(directory).display().to_string()],
        output: Some(run_of(directory).display().to_string()),
        agent: Some(AGENT.to_owned()),
        agents: [(AGENT.to_owned(), agent)].into(),
        num_repeats: row
            .repeats_of_a_task
            .to_string()
            .parse()
            .map_err(anyhow::Error::msg)?,
        aggregate: false,
        ..Settings::default()
    })
    .await?;
    sweep.shutdown().stop(StopReason::Signal);
    sweep.collect().await?;
    Ok(())
}

/// Rollouts of all tasks but the last ones: what is left of a sweep that was cut off is its end.
async fn fill(row: &Resume, run: &RunStore) -> anyhow::Result<()> {
    let num_tasks = row.tasks.context("how many tasks?")?;
    let num_done = num_tasks - (num_tasks / LEFT_OF).max(1);
    let repeats = row.repeats_of_a_task as i64;
    let answers = Answers::new(num_done as i64, repeats, row.body_size).of_agent(AGENT);
    let mut batches = answers.batches();
    for part in 0.. {
        let name = |table| part_name(table, format!("bench-{part:05}"));
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
    RunTables::look(run).await?.register(&session).await?;
    let rows = session.sql(QUERY).await?.collect().await?;
    let count = rows.first().context("no answer")?.column(0);
    println!("{}", count.as_primitive::<Int64Type>().value(0));
    Ok(())
}
