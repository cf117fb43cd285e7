use std::io::{BufWriter, Seek, SeekFrom, Write};

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;

use crate::error::Error;
use crate::measure::{AGENT_STATISTICS, AggregateMetrics, TaskLabels};
use crate::report::AgentMetric;
use crate::schema::{ATTEMPTS, ROLLOUTS};
use crate::session;
use crate::store::{RunStore, StoreError, part_name};

/// Directory of the metric tables within a run.
pub(super) const METRICS: &str = "metrics";

/// Name of the metrics in NeMo Gym's shape.
const AGGREGATE: &str = "aggregate_metrics.json";

/// What was measured, and where it stands.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) metrics: Vec<AgentMetric>,
    pub(super) written: Vec<String>,
    /// Tasks of several runs had to be numbered anew.
    pub(super) is_renumbered: bool,
}

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
    let table = session::any_part(&session, run, &name).await?;
    for batch in table.collect().await? {
        measured.metrics.extend(agent_metrics(&batch)?);
    }
    Ok(Some(measured))
}

/// Writes the JSON to a temporary file first: with every rollout in it, it can be larger than memory.
pub(super) async fn write_aggregate_metrics(
    run: &RunStore,
    session: &SessionContext,
) -> Result<String, Error> {
    let failed = |source| StoreError::File {
        action: "write",
        path: std::env::temp_dir(),
        source,
    };
    let mut file = BufWriter::new(tempfile::tempfile().map_err(failed)?);
    AggregateMetrics::new(session, &TaskLabels::default())
        .write(&mut file)
        .await?;
    file.flush().map_err(failed)?;
    let mut file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    run.upload(AGGREGATE, tokio::fs::File::from_std(file))
        .await?;
    Ok(run.display(AGGREGATE))
}

/// Rows of `agent_statistics`.
pub(super) fn agent_metrics(batch: &RecordBatch) -> Result<Vec<AgentMetric>, Error> {
    let of = |name: &str, to: &DataType| {
        let column = batch.column_by_name(name);
        let column = column.ok_or_else(|| {
            Error::Query(format!("{AGENT_STATISTICS}.sql gives no column '{name}'"))
        })?;
        arrow::compute::cast(column, to).map_err(|error| Error::Query(error.to_string()))
    };
    let (agents, names) = (
        of("agent_name", &DataType::Utf8)?,
        of("metric", &DataType::Utf8)?,
    );
    let (agents, names) = (agents.as_string::<i32>(), names.as_string::<i32>());
    let counts = of("count", &DataType::Int64)?;
    let counts = counts.as_primitive::<Int64Type>();
    let float = |name: &str| {
        let column = of(name, &DataType::Float64)?;
        Ok::<Vec<Option<f64>>, Error>(column.as_primitive::<Float64Type>().iter().collect())
    };
    let [mean, std, min, median, max] = [
        float("mean")?,
        float("std")?,
        float("min")?,
        float("median")?,
        float("max")?,
    ];
    let at = |values: &[Option<f64>], row: usize| values.get(row).copied().flatten();
    Ok((0..batch.num_rows())
        .map(|row| AgentMetric {
            agent_name: agents.value(row).to_owned(),
            metric: names.value(row).to_owned(),
            count: counts.value(row).unsigned_abs(),
            mean: at(&mean, row),
            std: at(&std, row),
            min: at(&min, row),
            median: at(&median, row),
            max: at(&max, row),
        })
        .collect())
}
