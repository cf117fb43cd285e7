//! [`Operator`]: `RunExec` by itself, over rows that are made as they are read, asking an agent of
//! the test's own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::stream;
use rollstream::agent::{Agent, AgentLimits, Agents, Answer, Member, Reply};
use rollstream::answer::AnswerFields;
use rollstream::config::{Concurrency, MemoryPlan, Settings};
use rollstream::run::{FailureLimits, RunContext, RunExec, Shutdown};
use rollstream::schema;
use rollstream::tally::Tally;

/// Rows that may be queued.
pub const LOOKAHEAD: usize = 2000;

pub struct Operator {
    source: Arc<Source>,
    session: SessionContext,
    pub tally: Arc<Tally>,
    pub shutdown: Shutdown,
}

impl Operator {
    /// `batches` batches of `rows` rows, for `agent`, which may be limited.
    pub fn new(agent: Arc<dyn Agent>, limit: Option<usize>, batches: usize, rows: usize) -> Self {
        let (tally, shutdown) = (Arc::new(Tally::default()), Shutdown::default());
        let mut agents = Agents::default();
        agents.insert(
            "agent",
            Member {
                agent,
                limits: AgentLimits {
                    concurrency: limit.map(Concurrency::Fixed),
                    ..AgentLimits::of("agent", &Settings::default())
                },
            },
        );
        let context = RunContext {
            most_calls: usize::MAX,
            memory: MemoryPlan::of(&Settings::default()),
            agents,
            owed: BTreeMap::new(),
            prior: HashMap::new(),
            seed: None,
            lookahead: LOOKAHEAD,
            retry_backoff: Duration::from_millis(1),
            retry_backoff_cap: Duration::from_millis(1),
            agent_patience: Duration::from_secs(60),
            failure_limits: FailureLimits::default(),
            dispatches: None,
            tally: Arc::clone(&tally),
            shutdown: shutdown.clone(),
        };
        let source = Source {
            schema: schema::owed(),
            batches,
            rows,
            read: Arc::default(),
        };
        let session =
            SessionContext::new_with_config(SessionConfig::new().with_extension(Arc::new(context)));
        Self {
            source: Arc::new(source),
            session,
            tally,
            shutdown,
        }
    }

    /// What the operator gives, with so many calls in flight.
    pub fn stream(&self, concurrency: usize) -> SendableRecordBatchStream {
        let source = Arc::clone(&self.source) as Arc<dyn PartitionStream>;
        let source =
            StreamingTableExec::try_new(schema::owed(), vec![source], None, None, false, None)
                .unwrap();
        RunExec::new(Arc::new(source), concurrency)
            .execute(0, self.session.task_ctx())
            .unwrap()
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

#[derive(Debug)]
struct Source {
    schema: SchemaRef,
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
        let batches = (0..self.batches).map(move |batch| {
            read.fetch_add(1, Ordering::SeqCst);
            Ok(owed(batch * rows..(batch + 1) * rows))
        });
        Box::pin(RecordBatchStreamAdapter::new(
            schema::owed(),
            stream::iter(batches),
        ))
    }
}

fn owed(tasks: std::ops::Range<usize>) -> RecordBatch {
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
    RecordBatch::try_new(schema::owed(), columns).unwrap()
}
