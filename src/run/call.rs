use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use crate::agent::{Agents, Answer, Failure, FailureClass, Reply, RolloutRequest};
use crate::outcome::{Answered, Outcome, Times, Verdict};
use crate::request::RequestTemplate;

/// A rollout that is owed and whose turn it is.
#[derive(Debug, Clone)]
pub(super) struct OwedRow {
    pub(super) task_index: i64,
    pub(super) rollout_index: i64,
    pub(super) attempt: u32,
    pub(super) agent_name: Arc<str>,
    pub(super) template: Result<Arc<RequestTemplate>, String>,
    pub(super) since: Instant,
}

/// What is known of a call from the moment of its dispatch; enough for a row if it is cut off.
#[derive(Debug, Clone)]
pub(super) struct Dispatch {
    task_index: i64,
    rollout_index: i64,
    attempt: u32,
    pub(super) agent_name: Arc<str>,
    dispatched_at: SystemTime,
    began: Instant,
    permit_wait: Duration,
}

impl Dispatch {
    pub(super) fn of(row: &OwedRow) -> Self {
        Self {
            task_index: row.task_index,
            rollout_index: row.rollout_index,
            attempt: row.attempt,
            agent_name: Arc::clone(&row.agent_name),
            dispatched_at: SystemTime::now(),
            began: Instant::now(),
            permit_wait: row.since.elapsed(),
        }
    }

    /// The row of a call that was cut off.
    pub(super) fn cut_off(self, class: FailureClass, why: &str) -> Outcome {
        let elapsed = self.began.elapsed();
        self.outcome(Reply {
            elapsed,
            ..Reply::new(Err(Failure::new(class, why)))
        })
    }

    fn outcome(self, reply: Reply) -> Outcome {
        let verdict = match reply.result {
            Ok(Answer { body, fields }) => Verdict::Ok(Answered {
                result: body,
                fields,
            }),
            Err(Failure {
                class,
                message,
                failure_terminal,
                answer,
                ..
            }) => Verdict::Failed {
                class: class.name(),
                error: message,
                terminal: failure_terminal,
                failure_terminal,
                answer,
            },
        };
        Outcome {
            task_index: self.task_index,
            rollout_index: self.rollout_index,
            attempt: self.attempt,
            agent_name: self.agent_name,
            http_status: reply.http_status,
            response_headers: reply.headers,
            dispatched_at: self.dispatched_at,
            times: Times {
                permit_wait: self.permit_wait,
                rate_wait: Duration::ZERO,
                connect: Some(reply.connect),
                first_byte: reply.first_byte,
                server: Some(reply.elapsed.saturating_sub(reply.connect)),
                client: Some(self.began.elapsed().saturating_sub(reply.elapsed)),
            },
            concurrency_limit: None,
            verdict,
        }
    }
}

/// Calls the agent. Whatever happens becomes a row.
pub(super) async fn call(agents: &Agents, row: OwedRow, dispatch: Dispatch) -> Outcome {
    let failed = |why: String| Reply::new(Err(Failure::new(FailureClass::Data, why)));
    let body = row
        .template
        .map(|template| template.materialize(row.rollout_index, row.attempt));
    let reply = match (agents.get(&row.agent_name), body) {
        (Some(member), Ok(body)) => {
            let request = RolloutRequest {
                task_index: row.task_index,
                rollout_index: row.rollout_index,
                attempt: row.attempt,
                body: Bytes::from(body),
            };
            member.agent.run(request).await
        }
        (None, _) => failed(format!("no agent '{}' is known", row.agent_name)),
        (_, Err(why)) => failed(format!("the request can't be made: {why}")),
    };
    dispatch.outcome(reply)
}
