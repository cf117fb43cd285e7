//! The queries of a status, and their rows.

use chrono::{DateTime, Utc};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::RateWindow;
use crate::error::Error;

pub(super) const PLANNED: &str = include_str!("../../queries/status/planned.sql");
pub(super) const DONE: &str = include_str!("../../queries/status/done.sql");
pub(super) const FAILED: &str = include_str!("../../queries/status/failed.sql");
pub(super) const ATTEMPTS: &str = include_str!("../../queries/status/attempts.sql");
pub(super) const RECENT: &str = include_str!("../../queries/status/recent.sql");
pub(super) const IN_FLIGHT: &str = include_str!("../../queries/status/in_flight.sql");
pub(super) const ERRORS: &str = include_str!("../../queries/status/errors.sql");

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

/// Returns the parameters of [`RECENT`].
pub(super) fn parameters(window: &RateWindow) -> Vec<(&'static str, ScalarValue)> {
    let time = |time: DateTime<Utc>| {
        ScalarValue::TimestampMicrosecond(Some(time.timestamp_micros()), Some("UTC".into()))
    };
    vec![("since", time(window.since)), ("until", time(window.until))]
}

/// Runs a query that returns few rows.
pub(super) async fn rows<T: DeserializeOwned>(
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
