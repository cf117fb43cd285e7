use std::collections::HashMap;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use datafusion::prelude::SessionContext;

use super::measured::Measured;
use super::measurement::Measurement;
use crate::error::Error;
use crate::measure::{AGENT_STATISTICS, AggregateMetrics, CustomMetrics, PassMajority};
use crate::schema::{ATTEMPTS, ROLLOUTS};
use crate::session;
use crate::store::{RunStore, StoreError, part_name};

/// Directory of the metric tables within a run.
pub(super) const METRICS: &str = "metrics";

/// Name of the metrics in NeMo Gym's shape.
const AGGREGATE: &str = "aggregate_metrics.json";

/// What was measured before, where it is still there and measures all that has landed: of a run to
/// which nothing was added it would be the same again.
pub(super) async fn earlier(run: &RunStore) -> Result<Option<Measured>, Error> {
    let name = part_name(METRICS, AGENT_STATISTICS);
    // Written last; but measuring can have been cut off after more had landed.
    let measured_at = run.written_at(AGGREGATE).await?;
    for table in [ROLLOUTS, ATTEMPTS] {
        let parts = run.list(table).await?;
        if parts
            .iter()
            .any(|part| measured_at <= Some(part.last_modified))
        {
            return Ok(None);
        }
    }
    if measured_at.is_none() || !run.exists(&name).await? {
        return Ok(None);
    }
    let session = SessionContext::new_with_config(session::config());
    let mut measured = Measured::default();
    for family in Measured::FAMILIES {
        let name = part_name(METRICS, family);
        if run.exists(&name).await? {
            let table = session::any_part(&session, run, &name).await?;
            for batch in table.collect().await? {
                measured.look(family, &batch)?;
            }
        }
    }
    measured.join();
    Ok(Some(measured))
}

/// Writes the JSON to a temporary file first: with every rollout in it, it can be larger than memory.
pub(super) async fn write_aggregate_metrics(
    run: &RunStore,
    session: &SessionContext,
    measurement: &Measurement,
) -> Result<String, Error> {
    let failed = |source| StoreError::File {
        action: "write",
        path: std::env::temp_dir(),
        source,
    };
    let mut file = BufWriter::new(tempfile::tempfile().map_err(failed)?);
    let metrics = AggregateMetrics::new(session, &measurement.labels);
    let custom = custom_metrics(session, &metrics, measurement).await?;
    metrics.with_custom(custom).write(&mut file).await?;
    file.flush().map_err(failed)?;
    let mut file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    run.upload(AGGREGATE, tokio::fs::File::from_std(file))
        .await?;
    Ok(run.display(AGGREGATE))
}

/// What a benchmark would report, by agent.
async fn custom_metrics(
    session: &SessionContext,
    metrics: &AggregateMetrics<'_>,
    measurement: &Measurement,
) -> Result<HashMap<String, CustomMetrics>, Error> {
    let mut custom: HashMap<String, CustomMetrics> = HashMap::new();
    if let Some(options) = &measurement.benchmark {
        for (agent, computed) in PassMajority::compute(session, options).await? {
            custom.entry(agent).or_default().agent = computed.metrics;
        }
    }
    if !measurement.key_metrics.is_empty() {
        for agent in metrics.agents().await? {
            let mut all = metrics.agent_metrics(&agent).await?;
            let of_agent = custom.entry(agent).or_default();
            all.extend(of_agent.agent.clone());
            let chosen = measurement.key_metrics.iter();
            of_agent.key = Some(chosen.flat_map(|key| key.select(&all)).collect());
        }
    }
    Ok(custom)
}
