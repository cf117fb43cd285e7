//! One simulated agent: [`Agent`] answers `POST /run` as it was planned, `POST
//! /aggregate_metrics`, and `GET /`.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::aggregate::aggregate;
use super::answer::write_answer;
use super::counters::{Admission, AgentCounters};
use super::fault::FaultKind;
use super::http::{Abrupt, Reply, alive, detail, html, json, json_of, not_found, read_body};
use super::oracle::Planned;
use super::profile::Profile;
use super::row::Row;

const NOT_JSON: &str = "<!doctype html><html><head><title>Bad gateway</title></head>\
    <body><h1>Bad gateway</h1><p>The upstream did not answer.</p></body></html>\n";

/// A simulated agent.
#[derive(Debug)]
pub(super) struct Agent {
    profile: Profile,
    counters: Arc<AgentCounters>,
    permits: Option<Semaphore>,
}

impl Agent {
    /// An agent that nobody has asked yet.
    pub(super) fn new(profile: Profile, counters: Arc<AgentCounters>) -> Self {
        Self {
            permits: profile.capacity.map(Semaphore::new),
            profile,
            counters,
        }
    }

    /// Answers a request.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Reply, Abrupt> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/run") => self.run(request.into_body()).await,
            (&Method::POST, "/aggregate_metrics") => Ok(aggregated(request.into_body()).await),
            (&Method::GET, "/") => Ok(alive()),
            _ => Ok(not_found()),
        }
    }

    async fn run(&self, body: Incoming) -> Result<Reply, Abrupt> {
        let mut admission = self.counters.admit();
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(error) => {
                admission.reject();
                return Ok(error.reply());
            }
        };
        match std::str::from_utf8(&body)
            .map_err(|e| e.to_string())
            .and_then(parse)
        {
            Ok(row) => self.work(&row, &mut admission).await,
            Err(why) => {
                admission.reject();
                Ok(detail(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    format!("the body is no row: {why}"),
                ))
            }
        }
    }

    async fn work(&self, row: &Row<'_>, admission: &mut Admission) -> Result<Reply, Abrupt> {
        let planned = self.profile.plan(row.key(), row.difficulty());
        // Nobody closes the semaphore, so that an agent of limited capacity always gets a permit.
        let _permit = match &self.permits {
            Some(permits) => permits.acquire().await.ok(),
            None => None,
        };
        admission.begin_work();
        if !planned.latency.is_zero() {
            sleep(planned.latency).await;
        }
        admission.settle(planned.fault);
        self.finish(row, &planned).await
    }

    async fn finish(&self, row: &Row<'_>, planned: &Planned) -> Result<Reply, Abrupt> {
        let answer = || write_answer(row, planned, &self.profile);
        match planned.fault {
            Some(FaultKind::Error500) => Ok(detail(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the simulated agent failed",
            )),
            Some(FaultKind::RateLimited429) => Ok(self.too_many_requests()),
            Some(FaultKind::Reset) => Err(Abrupt::Reset),
            Some(FaultKind::Hang) => pending().await,
            Some(FaultKind::TruncatedBody) => Err(Abrupt::Raw(truncated(&answer()))),
            Some(FaultKind::NotJson) => Ok(html(NOT_JSON)),
            None
            | Some(
                FaultKind::SlowFirstByte
                | FaultKind::MissingReward
                | FaultKind::NoPersist
                | FaultKind::FailureClass
                | FaultKind::FailureTerminal,
            ) => Ok(json(answer())),
        }
    }

    fn too_many_requests(&self) -> Reply {
        let wait = self.profile.retry_after;
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let mut reply = detail(StatusCode::TOO_MANY_REQUESTS, "the simulated agent is busy");
        reply
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
        reply
    }
}

fn parse(text: &str) -> Result<Row<'_>, String> {
    Row::parse(text).map_err(|error| error.to_string())
}

/// The head of a whole answer and the first half of its body.
fn truncated(answer: &Bytes) -> Bytes {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        answer.len()
    );
    let half = answer.get(..answer.len() / 2).unwrap_or_default();
    [head.as_bytes(), half].concat().into()
}

async fn aggregated(body: Incoming) -> Reply {
    let body = match read_body(body).await {
        Ok(body) => body,
        Err(error) => return error.reply(),
    };
    match aggregate(&body) {
        Ok(metrics) => json_of(&metrics),
        Err(error) => detail(StatusCode::UNPROCESSABLE_ENTITY, error),
    }
}
