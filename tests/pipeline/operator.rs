//! [`Operator`]: `RunExec` by itself, over rows that are made as they are read, asking an agent of
//! the test's own.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::stream;
use rollstream::agent::{Agent, AgentLimits, Agents, Answer, Member, Reply};
use rollstream::config::{Concurrency, MemoryPlan, Settings};
use rollstream::outcome::AnswerFields;
use rollstream::progress::Progress;
use rollstream::retry::Backoff;
use rollstream::run::{FailureLimits, RunContext, RunExec, RunStep, Shutdown};
use rollstream::schema;
use tokio_util::task::TaskTracker;

/// Rows that may be queued.
pub const LOOKAHEAD: usize = 2000;

pub struct Operator {
    source: Source,
    agent: Arc<dyn Agent>,
    limits: AgentLimits,
    patience: Duration,
    partitions: usize,
    context: OnceLock<Arc<RunContext>>,
    pub progress: Arc<Progress>,
    pub shutdown: Shutdown,
}

impl Operator {
    /// `batches` batches of `rows` rows, for `agent`, which may be limited.
    pub fn new(agent: Arc<dyn Agent>, limit: Option<usize>, batches: usize, rows: usize) -> Self {
        Self {
            source: Source {
                schema: schema::pending(),
                first: 0,
                step: 1,
                batches,
                rows,
                read: Arc::default(),
            },
            agent,
            limits: AgentLimits {
                concurrency: limit.map(Concurrency::Fixed),
                ..AgentLimits::of("agent", &Settings::default())
            },
            patience: Duration::from_secs(60),
            partitions: 1,
            context: OnceLock::new(),
            progress: Arc::default(),
            shutdown: Shutdown::default(),
        }
    }

    pub fn limited(self, limits: AgentLimits) -> Self {
        Self { limits, ..self }
    }

    /// An agent that does not answer is waited for so long.
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The batches are dealt out to so many partitions.
    pub fn partitioned(self, partitions: usize) -> Self {
        Self { partitions, ..self }
    }

    fn context(&self) -> Arc<RunContext> {
        let new = || {
            let mut agents = Agents::default();
            let member = Member {
                agent: Arc::clone(&self.agent),
                limits: self.limits.clone(),
            };
            agents.insert("agent", member);
            Arc::new(RunContext {
                most_calls: usize::MAX,
                memory: MemoryPlan::of(&Settings::default()),
                agents,
                pending: BTreeMap::new(),
                prior: HashMap::new(),
                seed: None,
                as_given: false,
                lookahead: LOOKAHEAD,
                backoff: Backoff {
                    base: Duration::from_millis(1),
                    cap: Duration::from_millis(1),
                },
                agent_patience: Some(self.patience),
                failure_limits: FailureLimits::default(),
                dispatch_budget: None,
                dispatches: None,
                registry: Arc::default(),
                progress: Arc::clone(&self.progress),
                shutdown: self.shutdown.clone(),
                sending: TaskTracker::new(),
            })
        };
        Arc::clone(self.context.get_or_init(new))
    }

    fn plan(&self, concurrency: usize) -> (Arc<dyn ExecutionPlan>, Arc<TaskContext>) {
        let partition = |first| {
            let source = Source {
                first,
                step: self.partitions,
                ..self.source.clone()
            };
            Arc::new(source) as Arc<dyn PartitionStream>
        };
        let sources = (0..self.partitions).map(partition).collect();
        let source =
            StreamingTableExec::try_new(schema::pending(), sources, None, None, false, None)
                .unwrap();
        let config = SessionConfig::new().with_extension(self.context());
        let session = SessionContext::new_with_config(config);
        let plan = RunExec::new(RunStep { concurrency }, Arc::new(source));
        (Arc::new(plan), session.task_ctx())
    }

    /// What the operator gives, with so many calls in flight.
    pub fn stream(&self, concurrency: usize) -> SendableRecordBatchStream {
        let (plan, context) = self.plan(concurrency);
        match self.partitions {
            1 => plan.execute(0, context).unwrap(),
            _ => execute_stream(plan, context).unwrap(),
        }
    }

    /// What each partition gives, with so many calls in flight in all.
    pub fn partitions(&self, concurrency: usize) -> Vec<SendableRecordBatchStream> {
        let (plan, context) = self.plan(concurrency);
        let partitions = 0..self.partitions;
        partitions
            .map(|partition| plan.execute(partition, Arc::clone(&context)).unwrap())
            .collect()
    }

    /// Batches that were read from the source so far.
    pub fn num_read(&self) -> usize {
        self.source.read.load(Ordering::SeqCst)
    }
}

/// The reply of an agent whose answer is `text`.
pub fn answered(text: &'static str) -> Reply {
    let fields = AnswerFields::parse(text).unwrap();
    let answer = Answer {
        body: Bytes::from_static(text.as_bytes()),
        fields,
    };
    Reply {
        http_status: Some(200),
        ..Reply::new(Ok(answer))
    }
}

#[derive(Debug, Clone)]
struct Source {
    schema: SchemaRef,
    /// Batches of this partition: the first, and how many are others' in between.
    first: usize,
    step: usize,
    batches: usize,
    rows: usize,
    read: Arc<AtomicUsize>,
}

impl PartitionStream for Source {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (rows, read) = (self.rows, Arc::clone(&self.read));
        let batches = (self.first..self.batches).step_by(self.step);
        let batches = batches.map(move |batch| {
            read.fetch_add(1, Ordering::SeqCst);
            Ok(pending(batch * rows..(batch + 1) * rows))
        });
        Box::pin(RecordBatchStreamAdapter::new(
            schema::pending(),
            stream::iter(batches),
        ))
    }
}

fn pending(tasks: std::ops::Range<usize>) -> RecordBatch {
    let request =
        |task: usize| format!(r#"{{"responses_create_params":{{}},"_ng_task_index":{task}}}"#);
    let columns: Vec<arrow::array::ArrayRef> = vec![
        Arc::new(
            tasks
                .clone()
                .map(|task| task as i64)
                .collect::<Int64Array>(),
        ),
        Arc::new(Int64Array::from(vec![0; tasks.len()])),
        Arc::new(StringViewArray::from(vec!["agent"; tasks.len()])),
        Arc::new(
            tasks
                .clone()
                .map(|task| Some(request(task)))
                .collect::<StringViewArray>(),
        ),
    ];
    RecordBatch::try_new(schema::pending(), columns).unwrap()
}
