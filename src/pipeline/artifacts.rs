use std::collections::HashMap;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use crate::error::Error;
use crate::measure::{
    AGENT_STATISTICS, AggregateMetrics, MetricQueries, MetricTable, Spool, TaskLabels,
    run_families, spool_scores,
};
use crate::report::AgentMetric;
use crate::schema::{ATTEMPTS, ROLLOUTS};
use crate::session::{self, RunTables};
use crate::store::{PartWriter, RunStore, StoreError, part_name};

/// Directory of the metric tables within a run.
const METRICS: &str = "metrics";

/// Name of the metrics in NeMo Gym's shape.
const AGGREGATE: &str = "aggregate_metrics.json";

/// What was measured, and where it stands.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) metrics: Vec<AgentMetric>,
    pub(super) written: Vec<String>,
}

/// Computes every metric family over what has landed, and writes the tables and the JSON.
pub(super) async fn measure(run: &RunStore, queries: &MetricQueries) -> Result<Measured, Error> {
    let session = session::measuring()?;
    RunTables::look(run).await?.register(&session).await?;
    let spool = Spool::new()?;
    let parameters = HashMap::new();
    spool_scores(&spool, &session, &session, &parameters).await?;
    let mut measured = Measured::default();
    for table in run_families(&session, queries, &parameters).await? {
        let (name, schema) = (table.name().to_owned(), table.schema());
        measured
            .written
            .push(land(run, table, &mut measured.metrics).await?);
        // From here on the family is its file: what else is made of it can't differ from it.
        let landed = session::part(&session, run, &part_name(METRICS, &name), &schema)?;
        session.register_table(&*name, landed.into_view())?;
    }
    measured
        .written
        .push(aggregate_metrics(run, &session).await?);
    Ok(measured)
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

async fn land(
    run: &RunStore,
    table: MetricTable,
    metrics: &mut Vec<AgentMetric>,
) -> Result<String, Error> {
    let is_shown = table.name() == AGENT_STATISTICS;
    let name = part_name(METRICS, table.name());
    let mut writer = PartWriter::new(run, METRICS, &name, table.schema())?;
    let mut rows = table.stream().await?;
    while let Some(batch) = rows.try_next().await? {
        if is_shown {
            metrics.extend(agent_metrics(&batch)?);
        }
        writer.write(&batch).await?;
    }
    Ok(writer.finish().await?.path)
}

/// Writes the JSON to a temporary file first: with every rollout in it, it can be larger than memory.
async fn aggregate_metrics(run: &RunStore, session: &SessionContext) -> Result<String, Error> {
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

fn agent_metrics(batch: &RecordBatch) -> Result<Vec<AgentMetric>, Error> {
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
