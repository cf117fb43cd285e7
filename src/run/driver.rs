use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::sync::mpsc::Sender;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::call::{Dispatch, call};
use super::context::RunContext;
use super::exec::RunMetrics;
use super::queue::Queue;
use crate::agent::FailureClass;
use crate::outcome::{Outcome, OutcomeBatchBuilder};

/// A batch is passed on at this many rows, or bytes of answers ...
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// ... or when its first row is this old: an answer is not safe before it is passed on.
const LINGER: Duration = Duration::from_millis(10);

/// Keeps calls in flight and gathers what comes of them.
pub(super) struct Driver {
    context: Arc<RunContext>,
    concurrency: usize,
    queue: Queue,
    calls: JoinSet<Outcome>,
    dispatches: HashMap<Id, Dispatch>,
    batch: OutcomeBatchBuilder,
    due: Option<Instant>,
    metrics: RunMetrics,
}

impl Driver {
    pub(super) fn new(context: Arc<RunContext>, concurrency: usize, metrics: RunMetrics) -> Self {
        let queue = Queue::new(context.lookahead, context.seed);
        Self {
            context,
            concurrency,
            queue,
            calls: JoinSet::new(),
            dispatches: HashMap::new(),
            batch: OutcomeBatchBuilder::new(),
            due: None,
            metrics,
        }
    }

    /// Runs until every row of `input` is answered, or the sweep is stopped.
    pub(super) async fn drive(
        mut self,
        input: SendableRecordBatchStream,
        output: Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let context = Arc::clone(&self.context);
        let mut stopping = pin!(context.shutdown.stopping());
        let mut aborting = pin!(context.shutdown.aborting());
        let mut input = Some(input);
        let mut stopped = false;
        loop {
            self.dispatch();
            if input.is_none() && self.queue.is_empty() && self.calls.is_empty() {
                return self.pass_on(&output).await;
            }
            let full = self.is_full();
            let due = self.due.unwrap_or_else(Instant::now);
            let overdue = self.due.is_some_and(|due| due <= Instant::now());
            tokio::select! {
                () = &mut aborting => {
                    self.cut_off()?;
                    return self.pass_on(&output).await;
                }
                () = &mut stopping, if !stopped => {
                    stopped = true;
                    input = None;
                    self.queue.clear();
                }
                rows = next(&mut input), if input.is_some() && self.queue.has_room() => match rows {
                    Some(rows) => self.queue.push(&rows?, &context.agents)?,
                    None => input = None,
                },
                Some(done) = self.calls.join_next_with_id(), if !full => {
                    self.gather(done)?;
                    while !self.is_full() && let Some(done) = self.calls.try_join_next_with_id() {
                        self.gather(done)?;
                    }
                }
                // A batch that is full waits for room further down; so does, by the guard above,
                // every call that completes meanwhile, and with them the dispatch of more. One that
                // is merely overdue goes on growing until there is room.
                permit = output.reserve(), if full || overdue => {
                    let Ok(permit) = permit else { return Ok(()) };
                    permit.send(self.finish());
                }
                () = sleep_until(due), if self.due.is_some() && !full && !overdue => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_ROWS || self.batch.num_bytes() >= BATCH_BYTES
    }

    fn dispatch(&mut self) {
        while self.calls.len() < self.concurrency
            && let Some(row) = self.queue.pop()
        {
            let dispatch = Dispatch::of(&row);
            let (context, of_call) = (Arc::clone(&self.context), dispatch.clone());
            let task = self
                .calls
                .spawn(async move { call(&context.agents, row, of_call).await });
            self.dispatches.insert(task.id(), dispatch);
            self.context.tally.dispatched();
            self.metrics.dispatched.add(1);
        }
    }

    fn gather(&mut self, done: Result<(Id, Outcome), JoinError>) -> Result<()> {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(dispatch) = self.dispatches.remove(&id) else {
            return Ok(());
        };
        self.queue.returned(&dispatch.agent_name);
        self.context.tally.returned();
        let outcome = match done {
            Ok((_, outcome)) => outcome,
            Err(error) => dispatch.cut_off(
                FailureClass::Data,
                &format!("the call ended in a defect: {error}"),
            ),
        };
        self.append(outcome)
    }

    fn append(&mut self, outcome: Outcome) -> Result<()> {
        self.metrics.outcomes.add(1);
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
        self.batch.append(outcome).map_err(DataFusionError::from)
    }

    /// Drops the calls in flight; their rollouts are owed again.
    fn cut_off(&mut self) -> Result<()> {
        self.calls.abort_all();
        let cut: Vec<Dispatch> = self
            .dispatches
            .drain()
            .map(|(_, dispatch)| dispatch)
            .collect();
        for dispatch in cut {
            self.context.tally.returned();
            self.append(dispatch.cut_off(
                FailureClass::Interrupted,
                "cut off when the sweep was stopped",
            ))?;
        }
        Ok(())
    }

    async fn pass_on(&mut self, output: &Sender<Result<RecordBatch>>) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = self.finish();
        // A receiver that is gone means that the sweep was dropped: nobody is left to tell.
        let _ = output.send(batch).await;
        Ok(())
    }

    fn finish(&mut self) -> Result<RecordBatch> {
        self.due = None;
        let batch = self.batch.finish()?;
        self.metrics.baseline.record_output(batch.num_rows());
        Ok(batch)
    }
}

async fn next(input: &mut Option<SendableRecordBatchStream>) -> Option<Result<RecordBatch>> {
    match input {
        Some(stream) => stream.next().await,
        None => None,
    }
}
