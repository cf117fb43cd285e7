use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use crate::agent::{Agents, Answer, Failure, FailureClass, Reply, RolloutRequest};
use crate::outcome::{Answered, Outcome, Verdict};
use crate::request::RequestTemplate;

/// A rollout that is owed and whose turn it is.
#[derive(Debug, Clone)]
pub(super) struct OwedRow {
    pub(super) task_index: i64,
    pub(super) rollout_index: i64,
    pub(super) agent_name: Arc<str>,
    pub(super) template: Result<Arc<RequestTemplate>, String>,
    pub(super) since: Instant,
}

/// What is known of a call from the moment of its dispatch; enough for a row if it is cut off.
#[derive(Debug, Clone)]
pub(super) struct Dispatch {
    task_index: i64,
    rollout_index: i64,
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
            agent_name: Arc::clone(&row.agent_name),
            dispatched_at: SystemTime::now(),
            began: Instant::now(),
            permit_wait: row.since.elapsed(),
        }
    }

    /// The row of a call that was cut off.
    pub(super) fn cut_off(self, class: FailureClass, why: &str) -> Outcome {
        let server = self.began.elapsed();
        self.outcome(Reply {
            http_status: None,
            server,
            result: Err(Failure::new(class, why)),
        })
    }

    fn outcome(
        self,
        Reply {
            http_status,
            server,
            result,
        }: Reply,
    ) -> Outcome {
        let verdict = match result {
            Ok(Answer { body, fields }) => Verdict::Ok(Answered {
                result: body,
                fields,
            }),
            Err(Failure {
                class,
                message,
                terminal,
            }) => Verdict::Failed {
                class: class.name(),
                error: message,
                terminal,
            },
        };
        Outcome {
            task_index: self.task_index,
            rollout_index: self.rollout_index,
            attempt: 0,
            agent_name: self.agent_name,
            http_status,
            dispatched_at: self.dispatched_at,
            permit_wait: self.permit_wait,
            server,
            client: self.began.elapsed().saturating_sub(server),
            verdict,
        }
    }
}

/// Calls the agent. Whatever happens becomes a row.
pub(super) async fn call(agents: &Agents, row: OwedRow, dispatch: Dispatch) -> Outcome {
    let failed = |why: String| Reply {
        http_status: None,
        server: Duration::ZERO,
        result: Err(Failure::new(FailureClass::Data, why)),
    };
    let body = row
        .template
        .map(|template| template.materialize(row.rollout_index, 0));
    let reply = match (agents.get(&row.agent_name), body) {
        (Some(member), Ok(body)) => {
            let request = RolloutRequest {
                task_index: row.task_index,
                rollout_index: row.rollout_index,
                attempt: 0,
                body: Bytes::from(body),
            };
            member.agent.run(request).await
        }
        (None, _) => failed(format!("no agent '{}' is known", row.agent_name)),
        (_, Err(why)) => failed(format!("the request can't be made: {why}")),
    };
    dispatch.outcome(reply)
}
