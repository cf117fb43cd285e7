//! Calls whose outcomes are dropped or kept: [`Calls`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray, UInt64Array};
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use bytes::Bytes;
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
use rollstream::config::{MemoryPlan, Settings};
use rollstream::gym::GYM_05;
use rollstream::http::{HttpClients, HttpSettings};
use rollstream::land::{LandContext, LandExec, LandStep};
use rollstream::outcome::AnswerFields;
use rollstream::progress::{AgentProgress, Progress};
use rollstream::run::{FailureLimits, RunContext, RunExec, RunStep, Shutdown};
use rollstream::schema;
use rollstream::session;
use rollstream::store::{DispatchLogs, RunStore, SegmentWriter, StoreError, Writer};
use tempfile::TempDir;
use tokio_util::task::TaskTracker;

use super::journal::Kept;
use crate::common::{Answers, task_row};

const AGENT: &str = "sim";

/// Rollouts of a task.
const REPEATS: usize = 20;

/// Tasks of a batch of rows.
const BATCH_TASKS: usize = 200;

/// Different answers of the agent within the process; more than a compressor's window sees of large ones.
const NUM_ANSWERS: i64 = 1024;

/// Small, so that a short measurement has several, as a long sweep has.
const PART_BYTES: u64 = 16 << 20;

/// Calls in flight to an agent that answers at once.
#[derive(Debug)]
pub struct Calls {
    /// The agent's address; none for one within the process.
    pub agent_url: Option<String>,
    /// Bytes of an answer within the process.
    pub body_size: usize,
    /// Calls in all.
    pub rollouts: usize,
    /// Calls at a time.
    pub concurrency: usize,
}

impl Calls {
    /// Makes the calls, keeps so much of them, and prints the seconds that it took.
    pub async fn make(self, keep: Kept) -> anyhow::Result<()> {
        let directory = TempDir::with_prefix("rollstream-bench-")?;
        let place = directory.path().join("run");
        let run = RunStore::open(place.to_str().context("the directory's name")?, None)?;
        let (rollouts, concurrency) = (self.rollouts, self.concurrency);
        let agent: Arc<dyn Agent> = match &self.agent_url {
            Some(url) => over_http(url, concurrency)?,
            None => Arc::new(Instantly::new(self.body_size)?),
        };
        let progress = Arc::new(Progress::default());
        progress.begin([(
            AGENT.to_owned(),
            AgentProgress::before(rollouts as u64, 0, BTreeMap::new()),
        )]);
        let writer = Arc::new(Writer::unlocked(1));
        let dispatches = DispatchLogs::new(run.journal_dir(), Arc::clone(&writer));
        let dispatches = (keep != Kept::Nothing).then(|| Arc::new(dispatches));
        let context = context(agent, rollouts, dispatches.clone(), &progress);
        let land = LandContext::new(
            run.clone(),
            Arc::clone(&writer),
            Settings::default().part_interval.duration(),
            Arc::clone(&progress),
        );
        let config = session::config()
            .with_extension(Arc::new(context))
            .with_extension(Arc::new(land));
        let session = SessionContext::new_with_config(config);
        let source = Source {
            schema: schema::pending(),
            rollouts,
        };
        let source: Arc<dyn PartitionStream> = Arc::new(source);
        let source =
            StreamingTableExec::try_new(schema::pending(), vec![source], None, None, false, None)?;
        let calls: Arc<dyn ExecutionPlan> =
            Arc::new(RunExec::new(RunStep { concurrency }, Arc::new(source)));
        let plan = match keep {
            Kept::Parts => Arc::new(LandExec::new(
                LandStep {
                    output: run.display(""),
                    part_size: PART_BYTES,
                },
                calls,
            )),
            _ => calls,
        };
        let began = Instant::now();
        let mut rows = execute_stream(plan, session.task_ctx())?;
        let kept = match keep {
            Kept::Journal => journal(&run, &writer, rows).await?,
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
        let kept = match keep {
            Kept::Parts => progress.total().done_now as usize,
            _ => kept,
        };
        ensure!(
            kept == rollouts,
            "{kept} of {rollouts} rollouts were kept: {:?}",
            progress.take_notices()
        );
        println!("{}", took.as_secs_f64());
        Ok(())
    }
}

/// What lands but for the parts: each batch is with the system before the next is taken.
async fn journal(
    run: &RunStore,
    writer: &Writer,
    mut outcomes: SendableRecordBatchStream,
) -> anyhow::Result<usize> {
    let mut journal = SegmentWriter::create(run.journal_dir(), writer.segment(0))?;
    let mut count = 0;
    while let Some(batch) = outcomes.try_next().await? {
        count += batch.num_rows();
        let appended = SpawnedTask::spawn_blocking(move || {
            journal.append(&batch)?;
            Ok::<_, StoreError>(journal)
        });
        journal = appended.join().await??;
    }
    journal.seal();
    Ok(count)
}

fn context(
    agent: Arc<dyn Agent>,
    rollouts: usize,
    dispatches: Option<Arc<DispatchLogs>>,
    progress: &Arc<Progress>,
) -> RunContext {
    let settings = Settings::default();
    let limits = AgentLimits::of(AGENT, &settings);
    let mut agents = Agents::default();
    agents.insert(AGENT, Member { agent, limits });
    RunContext {
        most_calls: usize::MAX,
        memory: MemoryPlan::of(&settings),
        agents,
        pending: BTreeMap::from([(AGENT.to_owned(), rollouts as u64)]),
        prior: HashMap::new(),
        seed: None,
        as_given: false,
        lookahead: 4096,
        backoff: settings.backoff(),
        agent_patience: Some(settings.agent_patience.duration()),
        failure_limits: FailureLimits::default(),
        dispatch_budget: None,
        dispatches,
        registry: Arc::default(),
        progress: Arc::clone(progress),
        shutdown: Shutdown::default(),
        sending: TaskTracker::new(),
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
        body_memory: MemoryPlan::of(&settings).answers,
    })?;
    Ok(Arc::new(NemoGymAgent::new(
        AGENT,
        url,
        HeaderMap::new(),
        http,
        &GYM_05,
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
        let number = request.key().task_index * REPEATS as i64 + request.key().rollout_index;
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

/// Rows pending, made as they are read.
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
            .map(move |first| Ok(pending(first..rows.min(first + of_batch))?));
        Box::pin(RecordBatchStreamAdapter::new(
            schema::pending(),
            stream::iter(batches),
        ))
    }
}

/// The rollouts of a task share its request, as the plan of a sweep has them do.
fn pending(numbers: std::ops::Range<usize>) -> arrow::error::Result<RecordBatch> {
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
    RecordBatch::try_new(schema::pending(), columns)
}
