use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::waiting::Waited;
use crate::agent::{Agents, Answer, Reply, RolloutRequest};
use crate::answer::resume::REUSE_DELIVERABLE;
use crate::config::MemoryPlan;
use crate::json::Object;
use crate::outcome::{Answered, Outcome, Times, Verdict};
use crate::request::RequestTemplate;
use crate::retry::{Failure, FailureClass, FailureCounts};
use crate::store::DispatchRecord;
use crate::turn::{RolloutKey, TurnJournal, TurnLog};

/// A rollout that is pending and whose turn it is.
#[derive(Debug, Clone)]
pub(super) struct PendingRow {
    pub(super) task_index: i64,
    pub(super) rollout_index: i64,
    pub(super) attempt: u32,
    pub(super) agent_name: Arc<str>,
    pub(super) template: Result<Arc<RequestTemplate>, Arc<str>>,
    /// What went wrong with it before.
    pub(super) failures: FailureCounts,
    /// An earlier attempt left something that this one is to have judged.
    pub(super) reuses_deliverable: bool,
    /// Its place in the plan.
    pub(super) order: u64,
}

impl PendingRow {
    /// Bytes that its call takes while it is in flight.
    pub(super) fn memory(&self) -> u64 {
        let request = self.template.as_ref().map_or(0, |template| template.len());
        MemoryPlan::CALL + request as u64
    }
}

/// A call under way: enough for a row of the ledger if it is cut off, and for another attempt.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) row: PendingRow,
    pub(super) began: Instant,
    dispatched_at: SystemTime,
    permit_wait: Duration,
    rate_wait: Duration,
    concurrency_limit: usize,
    /// The calls within it.
    pub(super) turns: TurnLog,
    /// Somebody was told how long it takes.
    pub(super) is_late: bool,
}

impl Dispatch {
    pub(super) fn new(
        row: PendingRow,
        waited: Waited,
        concurrency_limit: usize,
        (now, time): (Instant, SystemTime),
        journal: Option<Arc<dyn TurnJournal>>,
    ) -> Self {
        let key = RolloutKey {
            task_index: row.task_index,
            rollout_index: row.rollout_index,
            attempt: row.attempt,
        };
        Self {
            turns: TurnLog::new(key, journal),
            row,
            began: now,
            dispatched_at: time,
            permit_wait: waited.permit,
            rate_wait: waited.rate,
            concurrency_limit,
            is_late: false,
        }
    }

    /// What is noted of it before it is sent.
    pub(super) fn record(&self) -> DispatchRecord {
        let since = self.dispatched_at.duration_since(UNIX_EPOCH);
        DispatchRecord {
            task_index: self.row.task_index,
            rollout_index: self.row.rollout_index,
            attempt: self.row.attempt,
            dispatched_at_us: since.unwrap_or_default().as_micros() as i64,
            permit_wait: self.permit_wait,
            rate_wait: self.rate_wait,
        }
    }

    /// The row of a call that was cut off.
    pub(super) fn cut_off(self, why: &str) -> Outcome {
        let reply = Reply {
            elapsed: self.began.elapsed(),
            ..Reply::new(Err(Failure::new(FailureClass::Interrupted, why)))
        };
        self.outcome(reply, false)
    }

    /// The row of a call that ended; `terminal` if nothing more is tried.
    pub(super) fn outcome(self, reply: Reply, terminal: bool) -> Outcome {
        let unreachable = matches!(&reply.result, Err(failure) if failure.unreachable);
        let verdict = match reply.result {
            Ok(Answer { body, fields }) => Verdict::Ok(Answered {
                result: body,
                fields,
            }),
            Err(failure) => Verdict::Failed {
                class: failure.class.name(),
                error: failure.message,
                terminal,
                failure_terminal: failure.failure_terminal,
                answer: failure.answer,
            },
        };
        let (connect, server) = match unreachable {
            true => (reply.elapsed, None),
            false => (
                reply.connect,
                Some(reply.elapsed.saturating_sub(reply.connect)),
            ),
        };
        Outcome {
            task_index: self.row.task_index,
            rollout_index: self.row.rollout_index,
            attempt: self.row.attempt,
            agent_name: self.row.agent_name,
            http_status: reply.http_status,
            response_headers: reply.headers,
            dispatched_at: self.dispatched_at,
            times: Times {
                permit_wait: self.permit_wait,
                rate_wait: self.rate_wait,
                connect: Some(connect),
                first_byte: reply.first_byte,
                server,
                client: Some(self.began.elapsed().saturating_sub(reply.elapsed)),
            },
            concurrency_limit: u32::try_from(self.concurrency_limit).ok(),
            turns: self.turns.take(),
            verdict,
        }
    }
}

/// The request, so that the agent's server judges what an earlier attempt left.
fn with_deliverable(request: String) -> String {
    match Object::parse(&request) {
        Ok(mut row) => {
            row.set(REUSE_DELIVERABLE, "true");
            row.to_string()
        }
        // The server says what is wrong with it.
        Err(_) => request,
    }
}

/// Calls the agent. Whatever happens becomes a reply.
pub(super) async fn call(agents: &Agents, row: PendingRow, turns: TurnLog) -> Reply {
    let failed = |why: String| Reply::new(Err(Failure::new(FailureClass::Data, why)));
    let body = row
        .template
        .map(|template| template.materialize(row.rollout_index, row.attempt))
        .map(|body| match row.reuses_deliverable {
            true => with_deliverable(body),
            false => body,
        });
    let (member, body) = match (agents.get(&row.agent_name), body) {
        (Some(member), Ok(body)) => (member, body),
        (None, _) => return failed(format!("no agent '{}' is known", row.agent_name)),
        (_, Err(why)) => return failed(format!("the request can't be made: {why}")),
    };
    let reply = member.agent.run(RolloutRequest {
        task_index: row.task_index,
        rollout_index: row.rollout_index,
        attempt: row.attempt,
        body: Bytes::from(body),
        turns,
    });
    let Some(limit) = member.limits.rollout_timeout else {
        return reply.await;
    };
    match tokio::time::timeout(limit, reply).await {
        Ok(reply) => reply,
        Err(_) => {
            let limit_text = humantime::format_duration(limit);
            let address = member.agent.address();
            let why = format!("{address}: no answer within {limit_text} (--rollout-timeout)");
            Reply {
                elapsed: limit,
                ..Reply::new(Err(Failure::new(FailureClass::Timeout, why)))
            }
        }
    }
}
