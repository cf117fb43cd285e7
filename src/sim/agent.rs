//! One simulated agent: [`Agent`] answers `POST /run` as it was planned, `POST
//! /aggregate_metrics`, and `GET /`.

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::aggregate::aggregate;
use super::answer::write_answer;
use super::counters::Admission;
use super::fault::FaultKind;
use super::hostile::{endless_body, gzip_bomb};
use super::http::{
    Abrupt, BodyError, Reply, alive, detail, html, json, json_of, not_found, read_body,
};
use super::refusal::Refusal;
use super::requests::now_us;
use super::row::Row;
use super::station::Station;

const NOT_JSON: &str = "<!doctype html><html><head><title>Bad gateway</title></head>\
    <body><h1>Bad gateway</h1><p>The upstream did not answer.</p></body></html>\n";

/// A simulated agent.
#[derive(Debug)]
pub(super) struct Agent {
    station: Arc<Station>,
}

impl Agent {
    /// An agent that is asked at this station.
    pub(super) fn new(station: Arc<Station>) -> Self {
        Self { station }
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
        let mut admission = self.station.counters().admit();
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(error) => {
                if !matches!(error, BodyError::Broken(_)) {
                    admission.reject();
                }
                return Ok(error.reply());
            }
        };
        let arrived_at_us = now_us();
        match std::str::from_utf8(&body)
            .map_err(|e| e.to_string())
            .and_then(parse)
        {
            Ok(row) => {
                admission.received(row.key(), arrived_at_us, None);
                self.work(&row, &mut admission).await
            }
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
        let profile = self.station.profile();
        let planned = profile.plan(row.key(), row.difficulty());
        let working = self.station.work(&profile, planned.latency, admission);
        if let Err(refusal) = working.await {
            return Ok(refusal);
        }
        let now = now_us();
        let answer = || write_answer(row, &planned, &profile);
        let Some(kind) = planned.fault else {
            admission.answer(now);
            return Ok(json(answer()));
        };
        let refusal = Refusal::of_fault(kind, profile.retry_after, now);
        let not_before_us = refusal.as_ref().map(|refusal| refusal.not_before_us);
        admission.fault(kind, now, not_before_us);
        match refusal {
            Some(refusal) => Ok(refusal.reply),
            None => fail(kind, answer).await,
        }
    }
}

/// What a fault that is no refusal does to the answer.
pub(super) async fn fail(kind: FaultKind, answer: impl Fn() -> Bytes) -> Result<Reply, Abrupt> {
    match kind {
        FaultKind::Error500 => Ok(detail(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the simulated agent failed",
        )),
        FaultKind::BadRequest400 => Ok(detail(
            StatusCode::BAD_REQUEST,
            "the simulated agent does not like the request",
        )),
        FaultKind::Fin => Err(Abrupt::Fin),
        FaultKind::Reset => Err(Abrupt::Reset),
        FaultKind::Hang => pending().await,
        FaultKind::TruncatedBody => Err(Abrupt::Raw(truncated(&answer()))),
        FaultKind::NotJson => Ok(html(NOT_JSON)),
        FaultKind::GzipBomb => Ok(gzip_bomb()),
        FaultKind::EndlessBody => Ok(endless_body()),
        _ => Ok(json(answer())),
    }
}

fn parse(text: &str) -> Result<Row<'_>, String> {
    Row::parse(text).map_err(|error| error.to_string())
}

/// The head of a whole answer and the first half of its body.
pub(super) fn truncated(answer: &Bytes) -> Bytes {
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
