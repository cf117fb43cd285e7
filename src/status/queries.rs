use chrono::{DateTime, Utc};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::RateWindow;
use crate::error::Error;

const PLANNED: &str = include_str!("../../queries/status/planned.sql");
const DONE: &str = include_str!("../../queries/status/done.sql");
const FAILED: &str = include_str!("../../queries/status/failed.sql");
const ATTEMPTS: &str = include_str!("../../queries/status/attempts.sql");
const RECENT: &str = include_str!("../../queries/status/recent.sql");
const IN_FLIGHT: &str = include_str!("../../queries/status/in_flight.sql");
const ERRORS: &str = include_str!("../../queries/status/errors.sql");

/// A row of `planned.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Planned {
    pub agent_name: String,
    pub num_planned: u64,
}

/// A row of `done.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Done {
    pub agent_name: String,
    pub num_done: u64,
    pub num_rewards: u64,
    pub reward_sum: Option<f64>,
}

/// A row of `failed.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    pub agent_name: String,
    pub outcome: String,
    pub num_failed: u64,
}

/// A row of `attempts.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Attempts {
    pub agent_name: String,
    pub outcome: String,
    pub http_status: Option<u16>,
    pub num_attempts: u64,
    pub first_dispatched_at: Option<i64>,
    pub first_finished_at: Option<i64>,
    pub last_finished_at: Option<i64>,
    pub limit_at: Option<i64>,
    pub concurrency_limit: Option<u32>,
    pub permit_wait_ms: Option<f64>,
    pub permit_wait_count: u64,
    pub rate_wait_ms: Option<f64>,
    pub rate_wait_count: u64,
    pub connect_ms: Option<f64>,
    pub connect_count: u64,
    pub server_ms: Option<f64>,
    pub server_count: u64,
    pub client_ms: Option<f64>,
    pub client_count: u64,
}

/// A row of `recent.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Recent {
    pub agent_name: String,
    pub num_done: u64,
}

/// A row of `in_flight.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct InFlight {
    pub agent_name: String,
    pub num_in_flight: u64,
}

/// A row of `errors.sql`.
#[derive(Debug, Deserialize)]
pub(super) struct Errors {
    pub agent_name: String,
    pub outcome: String,
    pub http_status: Option<u16>,
    pub error: Option<String>,
    pub num_attempts: u64,
}

pub(super) async fn planned(session: &SessionContext) -> Result<Vec<Planned>, Error> {
    rows(session, PLANNED, Vec::new()).await
}

pub(super) async fn done(session: &SessionContext) -> Result<Vec<Done>, Error> {
    rows(session, DONE, Vec::new()).await
}

pub(super) async fn failed(session: &SessionContext) -> Result<Vec<Failed>, Error> {
    rows(session, FAILED, Vec::new()).await
}

pub(super) async fn attempts(session: &SessionContext) -> Result<Vec<Attempts>, Error> {
    rows(session, ATTEMPTS, Vec::new()).await
}

pub(super) async fn recent(
    session: &SessionContext,
    window: &RateWindow,
) -> Result<Vec<Recent>, Error> {
    let time = |time: DateTime<Utc>| {
        ScalarValue::TimestampMicrosecond(Some(time.timestamp_micros()), Some("UTC".into()))
    };
    let values = vec![("since", time(window.since)), ("until", time(window.until))];
    rows(session, RECENT, values).await
}

pub(super) async fn in_flight(session: &SessionContext) -> Result<Vec<InFlight>, Error> {
    rows(session, IN_FLIGHT, Vec::new()).await
}

pub(super) async fn errors(session: &SessionContext) -> Result<Vec<Errors>, Error> {
    rows(session, ERRORS, Vec::new()).await
}

/// The rows of a query, which are few.
async fn rows<T: DeserializeOwned>(
    session: &SessionContext,
    query: &str,
    values: Vec<(&str, ScalarValue)>,
) -> Result<Vec<T>, Error> {
    let mut frame = session.sql(query).await?;
    if !values.is_empty() {
        frame = frame.with_param_values(ParamValues::from(values))?;
    }
    let batches = frame.collect().await?;
    let mut lines = Vec::new();
    let mut writer = arrow::json::LineDelimitedWriter::new(&mut lines);
    let batches: Vec<_> = batches.iter().collect();
    writer
        .write_batches(&batches)
        .and_then(|()| writer.finish())
        .map_err(DataFusionError::from)?;
    serde_json::Deserializer::from_slice(&lines)
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| Error::failed("a defect of rollstream: a row of a status query", error))
}
