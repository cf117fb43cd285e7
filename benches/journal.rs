//! What it costs to keep what is sent and what is answered: calls in flight whose outcomes are dropped, beside the same
//! with the log of dispatches, with that and the journal, and with all that lands. Agents answer at once: one
//! within the process, next to which everything is dear, and the simulated one over HTTP. Each measurement is a
//! process of its own; they take turns.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray, UInt64Array};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use datafusion::common::runtime::SpawnedTask;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use futures::{TryStreamExt, stream};
use reqwest::header::HeaderMap;
use rollstream::agent::{
    Agent, AgentLimits, Agents, Answer, Member, NemoGymAgent, Reply, RolloutRequest,
};
use rollstream::answer::AnswerFields;
use rollstream::config::Settings;
use rollstream::http::{HttpClients, HttpSettings};
use rollstream::land::{LandContext, LandExec};
use rollstream::run::{FailureLimits, RunContext, RunExec, Shutdown};
use rollstream::schema;
use rollstream::session;
use rollstream::store::{DispatchLog, JournalWriter, RunStore, StoreError};
use rollstream::tally::{AgentTally, Tally};
use tempfile::TempDir;

use common::{Answers, Child, Options, Report, SimServer, Usage, itself, millions, task_row};

const BASELINE: &str = "nothing kept";

const AGENT: &str = "sim";

/// What the names of the journal's files begin with.
const SEGMENTS: &str = "bench";

/// Rollouts of a task.
const REPEATS: usize = 20;

/// Tasks of a batch of rows.
const BATCH_TASKS: usize = 200;

/// Different answers of the agent within the process; more than a compressor's window sees of large ones.
const NUM_ANSWERS: i64 = 1024;

/// Small, so that a short measurement has several, as a long sweep has.
const PART_BYTES: u64 = 16 << 20;

/// Throughput with and without a journal.
#[derive(Debug, Clone, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Rollouts of each measurement, of HTTP a quarter [default: 200000, or 800 MB of answers; a tenth with --quick]
    #[arg(long, value_name = "N")]
    rollouts: Option<usize>,
    /// Bytes of an answer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = [1_000, 20_000])]
    body_sizes: Vec<usize>,
    /// Calls in flight
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [64, 256])]
    concurrency: Vec<usize>,
    /// Keep this, and print the seconds that it took
    #[arg(long, hide = true)]
    keep: Option<Kept>,
    /// Ask the agent at this address, and not one within the process
    #[arg(long, hide = true)]
    agent_url: Option<String>,
}

/// What is kept of calls.
#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Kept {
    Nothing,
    /// That they were sent.
    Dispatches,
    /// What came of them, too, in the journal.
    Journal,
    /// And in parts: all that a sweep keeps.
    Parts,
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => BASELINE,
            Self::Dispatches => "dispatch log",
            Self::Journal => "and journal",
            Self::Parts => "and parts",
        }
    }
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    // Inherited by all the processes: a call in flight is a connection, at both its ends.
    rlimit::increase_nofile_limit(u64::MAX)?;
    match cli.keep {
        Some(kept) => tokio::runtime::Runtime::new()?.block_on(kept.of_calls(&cli)),
        None => measure(&cli),
    }
}

fn measure(cli: &Cli) -> anyhow::Result<()> {
    let mut report = Report::new("journal");
    let (all, ends) = (Kept::value_variants(), [Kept::Nothing, Kept::Parts]);
    for &body_size in &cli.body_sizes {
        let most = if cli.options.quick { 20_000 } else { 200_000 };
        let default = (most * 4_000 / body_size.max(1)).min(most);
        let rollouts = cli.rollouts.unwrap_or(default);
        let size = format!("{body_size}B");
        let sim = SimServer::start(&["--latency", "fixed:0s", "--body-size", &size])?;
        for &concurrency in &cli.concurrency {
            for (variants, agent_url) in [(all, None), (&ends, Some(sim.agent_url()))] {
                let cell = Cell {
                    agent_url,
                    body_size,
                    rollouts: agent_url.map_or(rollouts, |_| rollouts / 4),
                    concurrency,
                };
                cell.measure(cli, variants, &mut report)?;
            }
        }
    }
    report.finish(&cli.options)
}

/// Seconds that calls took, and what their process took.
type Taken = (f64, Usage);

/// A cell of the table.
struct Cell<'a> {
    agent_url: Option<&'a str>,
    body_size: usize,
    rollouts: usize,
    concurrency: usize,
}

impl Cell<'_> {
    fn measure(&self, cli: &Cli, variants: &[Kept], report: &mut Report) -> anyhow::Result<()> {
        let mut taken: Vec<Vec<Taken>> = vec![Vec::new(); variants.len()];
        for _ in 0..cli.options.repeats() {
            for (kept, taken) in variants.iter().zip(&mut taken) {
                taken.push(self.child(*kept)?);
            }
        }
        let count = self.rollouts as f64;
        let rates = |taken: &[Taken]| -> Vec<f64> {
            taken.iter().map(|(seconds, _)| count / seconds).collect()
        };
        let cpu = |taken: &[Taken]| -> Vec<f64> {
            let of = |(_, usage): &Taken| usage.cpu.as_secs_f64() * 1e6 / count;
            taken.iter().map(of).collect()
        };
        let memory = |taken: &[Taken]| -> Vec<f64> {
            let of = |(_, usage): &Taken| millions(usage.peak_memory as f64);
            taken.iter().map(of).collect()
        };
        let Some((baseline, others)) = taken.split_first() else {
            return Ok(());
        };
        let over = self.agent_url.map_or("in process", |_| "over HTTP");
        for (kept, taken) in variants.iter().skip(1).zip(others) {
            let (size, concurrency) = (self.body_size, self.concurrency);
            let case = format!("{over}, {size} B, {concurrency} in flight, {}", kept.name());
            let mut compare = |figure, unit, of: &dyn Fn(&[Taken]) -> Vec<f64>| {
                report.compare(&case, figure, unit, &of(taken), (BASELINE, &of(baseline)));
            };
            compare("rate", "rollouts/s", &rates);
            compare("CPU", "µs/rollout", &cpu);
            compare("peak memory", "MB", &memory);
        }
        Ok(())
    }

    fn child(&self, kept: Kept) -> anyhow::Result<Taken> {
        let mut command = itself()?;
        let name = kept.to_possible_value().context("a thing without a name")?;
        command.args(["--keep", name.get_name()]);
        command.args(["--rollouts", &self.rollouts.to_string()]);
        command.args(["--body-sizes", &self.body_size.to_string()]);
        command.args(["--concurrency", &self.concurrency.to_string()]);
        command.args(self.agent_url.map(|url| format!("--agent-url={url}")));
        let (seconds, usage) = Child::start(&mut command)?.finish()?;
        Ok((seconds.trim().parse()?, usage))
    }
}

impl Kept {
    /// Makes the calls, and keeps what it says of them.
    async fn of_calls(self, cli: &Cli) -> anyhow::Result<()> {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let place = directory.path().join("run");
        let run = RunStore::open(place.to_str().context("the directory's name")?, None)?;
        let rollouts = cli.rollouts.context("how many rollouts?")?;
        let concurrency = *cli.concurrency.first().context("how many in flight?")?;
        let body_size = *cli.body_sizes.first().context("how large an answer?")?;
        let agent: Arc<dyn Agent> = match &cli.agent_url {
            Some(url) => over_http(url, concurrency)?,
            None => Arc::new(Instantly::new(body_size)?),
        };
        let tally = Arc::new(Tally::default());
        tally.begin([(AGENT.to_owned(), AgentTally::before(rollouts as u64, 0, 0))]);
        let dispatches = DispatchLog::new(run.journal_dir(), SEGMENTS);
        let dispatches = (self != Self::Nothing).then(|| Arc::new(dispatches));
        let context = context(agent, rollouts, dispatches.clone(), &tally);
        let land = LandContext {
            run: run.clone(),
            segments: SEGMENTS.to_owned(),
            tally: Arc::clone(&tally),
        };
        let config = session::config()
            .with_extension(Arc::new(context))
            .with_extension(Arc::new(land));
        let session = SessionContext::new_with_config(config);
        let source = Source {
            schema: schema::owed(),
            rollouts,
        };
        let source: Arc<dyn PartitionStream> = Arc::new(source);
        let source =
            StreamingTableExec::try_new(schema::owed(), vec![source], None, None, false, None)?;
        let calls: Arc<dyn ExecutionPlan> = Arc::new(RunExec::new(Arc::new(source), concurrency));
        let plan = match self {
            Self::Parts => Arc::new(LandExec::new(calls, run.display(""), PART_BYTES)),
            _ => calls,
        };
        let began = Instant::now();
        let mut rows = execute_stream(plan, session.task_ctx())?;
        let kept = match self {
            Self::Journal => journal(&run, rows).await?,
            _ => {
                let mut count = 0;
                while let Some(batch) = rows.try_next().await? {
                    count += batch.num_rows();
                }
                count
            }
        };
        dispatches.map_or(Ok(()), |log| log.close())?;
        let took = began.elapsed();
        let kept = match self {
            Self::Parts => tally.total().done_now as usize,
            _ => kept,
        };
        ensure!(
            kept == rollouts,
            "{kept} of {rollouts} rollouts were kept: {:?}",
            tally.take_notices()
        );
        println!("{}", took.as_secs_f64());
        Ok(())
    }
}

/// What lands but for the parts: each batch is with the system before the next is taken.
async fn journal(run: &RunStore, mut outcomes: SendableRecordBatchStream) -> anyhow::Result<usize> {
    let mut journal = JournalWriter::create(run.journal_dir(), SEGMENTS, &schema::outcomes())?;
    let mut count = 0;
    while let Some(batch) = outcomes.try_next().await? {
        count += batch.num_rows();
        let appended = SpawnedTask::spawn_blocking(move || {
            journal.append(&batch)?;
            Ok::<_, StoreError>(journal)
        });
        journal = appended.join().await??;
    }
    let sealed = SpawnedTask::spawn_blocking(move || journal.seal());
    sealed.join().await??;
    Ok(count)
}

fn context(
    agent: Arc<dyn Agent>,
    rollouts: usize,
    dispatches: Option<Arc<DispatchLog>>,
    tally: &Arc<Tally>,
) -> RunContext {
    let settings = Settings::default();
    let limits = AgentLimits::of(AGENT, &settings);
    let mut agents = Agents::default();
    agents.insert(AGENT, Member { agent, limits });
    RunContext {
        agents,
        owed: BTreeMap::from([(AGENT.to_owned(), rollouts as u64)]),
        prior: HashMap::new(),
        seed: None,
        lookahead: 4096,
        retry_backoff: settings.retry_backoff.duration(),
        retry_backoff_cap: settings.retry_backoff_cap.duration(),
        agent_patience: settings.agent_patience.duration(),
        failure_limits: FailureLimits::default(),
        dispatches,
        tally: Arc::clone(tally),
        shutdown: Shutdown::default(),
    }
}

fn over_http(url: &str, concurrency: usize) -> anyhow::Result<Arc<dyn Agent>> {
    let settings = Settings::default();
    let http = HttpClients::new(&HttpSettings {
        connections: concurrency,
        first_byte_timeout: None,
        connect_timeout: settings.connect_timeout.duration(),
        read_timeout: settings.read_timeout.duration(),
        max_body: settings.max_body.get(),
    })?;
    Ok(Arc::new(NemoGymAgent::new(
        AGENT,
        url,
        HeaderMap::new(),
        http,
    )?))
}

/// An agent within the process, whose answers are there before they are asked for.
#[derive(Debug)]
struct Instantly {
    answers: Vec<(Bytes, AnswerFields)>,
}

impl Instantly {
    fn new(body_size: usize) -> anyhow::Result<Self> {
        let made = Answers::new(NUM_ANSWERS, 1, body_size);
        let answer = |number| {
            let body = made.body(number);
            let fields = AnswerFields::parse(&body)?;
            Ok((Bytes::from(body), fields))
        };
        let answers = (0..NUM_ANSWERS).map(answer);
        Ok(Self {
            answers: answers.collect::<anyhow::Result<_>>()?,
        })
    }
}

#[async_trait]
impl Agent for Instantly {
    async fn run(&self, request: RolloutRequest) -> Reply {
        let number = request.task_index * REPEATS as i64 + request.rollout_index;
        let place = usize::try_from(number % NUM_ANSWERS).unwrap_or_default();
        let (body, fields) = self.answers.get(place).cloned().unwrap_or_default();
        Reply {
            http_status: Some(200),
            first_byte: Some(Duration::ZERO),
            ..Reply::new(Ok(Answer { body, fields }))
        }
    }

    fn address(&self) -> &str {
        "in process"
    }
}

/// Rows owed, made as they are read.
#[derive(Debug)]
struct Source {
    schema: SchemaRef,
    rollouts: usize,
}

impl PartitionStream for Source {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (rows, of_batch) = (self.rollouts, BATCH_TASKS * REPEATS);
        let batches = (0..rows)
            .step_by(of_batch)
            .map(move |first| Ok(owed(first..rows.min(first + of_batch))?));
        Box::pin(RecordBatchStreamAdapter::new(
            schema::owed(),
            stream::iter(batches),
        ))
    }
}

/// The rollouts of a task share its request, as the plan of a sweep has them do.
fn owed(numbers: std::ops::Range<usize>) -> arrow::error::Result<RecordBatch> {
    let integers = |of: fn(usize) -> usize| -> ArrayRef {
        Arc::new(
            numbers
                .clone()
                .map(|number| of(number) as i64)
                .collect::<Int64Array>(),
        )
    };
    let first = numbers.start / REPEATS;
    let requests: StringViewArray = (first..numbers.end.div_ceil(REPEATS))
        .map(|task| Some(task_row(task)))
        .collect();
    let tasks: UInt64Array = numbers
        .clone()
        .map(|number| (number / REPEATS - first) as u64)
        .collect();
    let columns: Vec<ArrayRef> = vec![
        integers(|number| number / REPEATS),
        integers(|number| number % REPEATS),
        Arc::new(StringViewArray::from(vec![AGENT; numbers.len()])),
        arrow::compute::take(&requests, &tasks, None)?,
    ];
    RecordBatch::try_new(schema::owed(), columns)
}
