use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use foldhash::fast::RandomState;
use futures::StreamExt;
use tokio::sync::mpsc::Sender;
use tokio::task::{Id, JoinError, JoinSet, yield_now};
use tokio::time::sleep_until;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::context::RunContext;
use super::exec::RunMetrics;
use super::queue::Queue;
use super::registry::Permit;
use super::row::Dispatch;
use super::slow_calls::SlowCalls;
use super::stop::StopReason;
use crate::agent::Reply;
use crate::json::Object;
use crate::outcome::resume::reuses_deliverable;
use crate::outcome::{Outcome, OutcomeBatchBuilder};
use crate::retry::{AfterFailure, Failure, FailureClass};
use crate::store::{DispatchLog, DispatchLogs, StoreError};

/// A batch is passed on when it has this many rows, or this many bytes of answers.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A batch is passed on when its first row is this old, because answers reach the disk only after that.
const LINGER: Duration = Duration::from_millis(10);

/// The expected size of an answer decays by this factor with each answer.
const FORGETTING: f64 = 0.999;

/// The interval at which the driver looks for slow calls.
const SLOW_CHECK: Duration = Duration::from_secs(5);

/// Keeps the calls of one partition in flight and gathers their outcomes.
pub(super) struct Driver {
    context: Arc<RunContext>,
    queue: Queue,
    /// Jitter of the backoff.
    random: fastrand::Rng,
    calls: JoinSet<Reply>,
    dispatches: HashMap<Id, Dispatch, RandomState>,
    log: Option<Arc<DispatchLog>>,
    concurrency: usize,
    batch: OutcomeBatchBuilder,
    /// The latest instant at which the batch is passed on.
    due: Option<Instant>,
    /// The next instant at which the queue may have a row to send.
    wake: Option<Instant>,
    slow_calls: SlowCalls,
    stopped: bool,
    /// Held while rows are left to send.
    sending: Option<TaskTrackerToken>,
    /// Whether all outcomes were passed on.
    ended: bool,
    /// The error that stopped this partition.
    failed: Option<DataFusionError>,
    /// Expected size of an answer: that of the largest recent one.
    answer_bytes: f64,
    metrics: RunMetrics,
}

impl Driver {
    pub(super) fn new(
        context: Arc<RunContext>,
        partition: usize,
        concurrency: usize,
        metrics: RunMetrics,
    ) -> Self {
        let concurrency = concurrency.min(context.most_calls);
        let sending = Some(context.sending.token());
        context.sending.close();
        Self {
            queue: Queue::new(Arc::clone(&context), concurrency),
            random: fastrand::Rng::new(),
            log: context.dispatches.as_ref().map(|logs| logs.open(partition)),
            concurrency,
            context,
            calls: JoinSet::new(),
            dispatches: HashMap::default(),
            batch: OutcomeBatchBuilder::new(),
            due: None,
            wake: None,
            slow_calls: SlowCalls::default(),
            stopped: false,
            sending,
            ended: false,
            failed: None,
            answer_bytes: 0.0,
            metrics,
        }
    }

    /// Runs until every row of `input` is done or failed, or the sweep is stopped.
    pub(super) async fn drive(
        mut self,
        input: SendableRecordBatchStream,
        output: Sender<Result<RecordBatch>>,
    ) -> Result<()> {
        let context = Arc::clone(&self.context);
        let mut stopping = pin!(context.shutdown.stopping());
        let mut aborting = pin!(context.shutdown.aborting());
        let mut input = Some(input);
        // One timer for all rounds: setting a later time costs next to nothing.
        let mut alarm = pin!(sleep_until(Instant::now().into()));
        let mut look = tokio::time::interval(SLOW_CHECK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.dispatch();
            if self.stopped {
                input = None;
            }
            if input.is_none() && self.queue.is_empty() {
                self.sending = None;
                if self.calls.is_empty() {
                    return self.end(&output).await;
                }
            }
            let full = self.is_full();
            let now = Instant::now();
            let overdue = self.due.is_some_and(|due| due <= now);
            let due = self.due.filter(|_| !full && !overdue);
            let wake = due.into_iter().chain(self.wake).min();
            if let Some(wake) = wake
                && alarm.deadline() != wake.into()
            {
                alarm.as_mut().reset(wake.into());
            }
            tokio::select! {
                () = &mut aborting => {
                    while let Some(done) = self.calls.try_join_next_with_id() {
                        self.gather(done)?;
                    }
                    self.cut_off()?;
                    return self.end(&output).await;
                }
                () = &mut stopping, if !self.stopped => {
                    self.stopped = true;
                    self.queue.clear();
                }
                rows = async { input.as_mut()?.next().await }, if input.is_some() && self.queue.has_room() => match rows {
                    Some(Ok(rows)) => if let Err(error) = self.queue.push(&rows) {
                        self.fail(error);
                    },
                    Some(Err(error)) => self.fail(error),
                    None => input = None,
                },
                Some(done) = self.calls.join_next_with_id(), if !full => {
                    self.gather(done)?;
                    // Takes all answers that are there already, and then sends one wave for all of them.
                    yield_now().await;
                    while !self.is_full() && let Some(done) = self.calls.try_join_next_with_id() {
                        self.gather(done)?;
                    }
                }
                // A full batch waits for room downstream. By the guard above, so does every call that
                // completes meanwhile, and with them the next wave. A batch that is only overdue keeps growing.
                permit = output.reserve(), if full || overdue => {
                    let Ok(permit) = permit else { return Ok(()) };
                    permit.send(self.finish());
                }
                () = &mut alarm, if wake.is_some() => {}
                // Another partition released a permit.
                () = self.queue.woken(), if !self.queue.is_empty() => {}
                _ = look.tick() => {
                    let slow = self.slow_calls.notices(self.dispatches.values_mut());
                    slow.into_iter().for_each(|text| self.context.progress.notice(text));
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= BATCH_ROWS || self.batch.num_bytes() >= BATCH_BYTES
    }

    /// Sends every row that may be sent now.
    fn dispatch(&mut self) {
        self.wake = None;
        // `gather` may have stopped the sweep a moment ago.
        if self.context.shutdown.is_stopping() || self.queue.is_idle() {
            return;
        }
        if self.is_full() {
            // Downstream takes no more answers: other partitions get the permits.
            return self.queue.stall();
        }
        let (now, time) = (Instant::now(), SystemTime::now());
        if self.is_budget_spent(now) {
            return;
        }
        // A call that has ended but is not gathered yet holds memory, though no permit.
        let most = self.concurrency.saturating_sub(self.dispatches.len());
        let wave = self.queue.wave(now, most);
        self.wake = wave.next;
        for (agent, verdict) in wave.judged {
            let patience = self.context.agent_patience.unwrap_or_default();
            let text = format!("agent '{agent}' {}", verdict.text(patience));
            self.context.progress.notice(text);
        }
        if wave.rows.is_empty() {
            return;
        }
        let mut calls = Vec::with_capacity(wave.rows.len());
        for granted in wave.rows {
            let journal = self.log.clone().map(|log| log as _);
            calls.extend(self.queue.dispatch(granted, now, time, journal));
        }
        if let Err(error) = self.note(&calls) {
            // Nothing is sent before it is in the log. These rows stay pending.
            self.fail(DataFusionError::External(Box::new(error)));
            return;
        }
        for (dispatch, permit) in calls {
            let (row, calls) = (dispatch.row.clone(), dispatch.calls.clone());
            let task = self.calls.spawn(async move {
                let agent_name = Arc::clone(&row.agent_name);
                let reply = row.call(&permit.context, calls).await;
                permit.end(&agent_name, &reply);
                reply
            });
            self.dispatches.insert(task.id(), dispatch);
            self.context.progress.dispatched();
            self.metrics.dispatched.add(1);
        }
        self.rotate_log();
    }

    /// Returns whether the time for sending is over while rows wait. Then they stay pending.
    fn is_budget_spent(&mut self, now: Instant) -> bool {
        let budget = self.context.dispatch_budget.as_ref();
        let is_spent = budget.is_some_and(|budget| budget.is_spent(now)) && !self.queue.is_empty();
        if is_spent {
            self.stopped = true;
            self.queue.clear();
            self.context.shutdown.stop(StopReason::DispatchBudget);
        }
        is_spent
    }

    /// Replaces a long log by one that holds only the calls in flight.
    fn rotate_log(&mut self) {
        let Some(log) = &self.log else {
            return;
        };
        let in_flight = self.dispatches.values();
        let in_flight = in_flight.map(|call| (call.record(), call.calls.starts()));
        if log.is_long()
            && let Err(error) = log.rotate(in_flight)
        {
            self.fail(DataFusionError::External(Box::new(error)));
        }
    }

    /// Logs the attempts that are about to be sent, if the disk has room for their answers.
    fn note(&self, wave: &[(Dispatch, Permit)]) -> Result<(), StoreError> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        let expected = |calls: usize| DispatchLogs::expected(calls, self.answer_bytes);
        let answers = expected(self.dispatches.len() + wave.len());
        log.check_room(
            answers + self.batch.num_bytes() as u64,
            expected(wave.len()),
        )?;
        log.record(wave.iter().map(|(dispatch, _)| dispatch.record()))
    }

    /// Stops sending, and waits for the calls in flight.
    fn fail(&mut self, error: DataFusionError) {
        self.stopped = true;
        self.queue.clear();
        self.failed = Some(error);
        self.context.shutdown.stop(StopReason::Failure);
    }

    fn gather(&mut self, done: Result<(Id, Reply), JoinError>) -> Result<()> {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(mut dispatch) = self.dispatches.remove(&id) else {
            return Ok(());
        };
        self.context.progress.returned();
        let reply = match done {
            Ok((_, reply)) => reply,
            Err(error) => Reply::new(Err(Failure::new(
                FailureClass::Data,
                format!("the call panicked, which is a bug in rollstream: {error}"),
            ))),
        };
        let now = Instant::now();
        if let Some(budget) = &self.context.dispatch_budget
            && is_answered(&reply)
        {
            budget.answered(reply.elapsed);
        }
        let next = match &reply.result {
            Ok(_) => None,
            Err(failure) => {
                let member = self.context.agents.get(&dispatch.row.agent_name);
                let budgets = member.map(|member| &member.limits.budgets);
                let failures = &mut dispatch.row.failures;
                Some(failures.record(failure, reply.http_status, budgets))
            }
        };
        if !matches!(next, Some(AfterFailure::Retry { .. })) {
            self.queue.finished(&dispatch.row.agent_name);
        }
        match next {
            Some(AfterFailure::Retry { failures }) if !self.stopped => {
                let failure = reply.result.as_ref().err();
                let mut row = dispatch.row.clone();
                row.key.attempt += 1;
                row.reuses_deliverable |= failure.is_some_and(|failure| {
                    let answer = failure.answer.as_deref().and_then(parsed);
                    answer.is_some_and(|answer| reuses_deliverable(&answer))
                });
                let wait = self.context.backoff.jittered(failures, self.random.f64());
                let asked = failure.and_then(|failure| failure.retry_after);
                self.queue
                    .retry(row, now + wait.max(asked.unwrap_or_default()));
            }
            Some(AfterFailure::Retry { .. } | AfterFailure::LeavePending) => {}
            Some(AfterFailure::Fail) => {
                let (done, failed) = self.context.registry.finished(false);
                if let Some(reason) = self.context.failure_limits.exceeded(done, failed) {
                    self.context.shutdown.stop(reason);
                }
            }
            None => {
                self.context.registry.finished(true);
                self.slow_calls
                    .ended(&dispatch.row.agent_name, reply.elapsed);
                let bytes = reply.result.as_ref().map_or(0, |answer| answer.body.len());
                self.answer_bytes = (self.answer_bytes * FORGETTING).max(bytes as f64);
            }
        }
        self.append(dispatch.outcome(reply, next == Some(AfterFailure::Fail)))
    }

    fn append(&mut self, outcome: Outcome) -> Result<()> {
        self.metrics.outcomes.add(1);
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
        self.batch.append(outcome).map_err(DataFusionError::from)
    }

    /// Drops the calls in flight. Their rollouts are pending again.
    fn cut_off(&mut self) -> Result<()> {
        self.calls.abort_all();
        for dispatch in std::mem::take(&mut self.dispatches).into_values() {
            self.context.progress.returned();
            self.append(dispatch.cut_off("cut off when the sweep was stopped"))?;
        }
        Ok(())
    }

    /// Passes on the remaining outcomes. A missing receiver means that the sweep was dropped.
    async fn end(&mut self, output: &Sender<Result<RecordBatch>>) -> Result<()> {
        self.ended = true;
        if !self.batch.is_empty() {
            let batch = self.finish();
            let _ = output.send(batch).await;
        }
        if let Some(error) = self.failed.take() {
            // Sent after the batches: if it were returned, it would overtake them.
            let _ = output.send(Err(error)).await;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<RecordBatch> {
        self.due = None;
        let batch = self.batch.finish()?;
        self.metrics.baseline.record_output(batch.num_rows());
        Ok(batch)
    }
}

impl Drop for Driver {
    /// Stops the other partitions if this one is dropped before its end: they must not use its permits.
    fn drop(&mut self) {
        if !self.ended {
            self.context.shutdown.stop(StopReason::Failure);
        }
    }
}

/// Returns whether the agent answered, if only to report a failure.
fn is_answered(reply: &Reply) -> bool {
    let failure = reply.result.as_ref().err();
    failure.is_none_or(|failure| failure.class.is_answered())
}

fn parsed(answer: &[u8]) -> Option<Object<'_>> {
    Object::parse(std::str::from_utf8(answer).ok()?).ok()
}
