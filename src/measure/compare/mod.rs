//! Runs against each other, over the tasks that they have in common: [`TaskMeans`] is what is compared
//! of a run, [`ComparedPair`] two agents, and [`Compared`] what came of it, from the queries of
//! `queries/compare`.

mod compared;
mod report;
mod runs;
mod task_means;

pub use compared::{Compared, ComparedPair, MetricOverlap};
pub use report::{
    ComparedRun, ComparisonOptions, ComparisonReport, FlipsFile, LeftOutMetric, MetricComparison,
    Overlap, OverlapCounts,
};
pub use runs::{CompareRun, compare};
pub use task_means::TaskMeans;

use arrow::array::RecordBatch;
use arrow::json::LineDelimitedWriter;
use datafusion::error::DataFusionError;
use include_dir::{Dir, include_dir};
use serde::de::DeserializeOwned;

use super::error::MeasureError;
use super::queries::MetricQueries;

static QUERIES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/compare");

fn queries() -> Result<MetricQueries, MeasureError> {
    MetricQueries::of(&QUERIES)
}

/// The rows of a query, which are few. A null is a field that is not there.
fn decode<T: DeserializeOwned>(batches: &[RecordBatch]) -> Result<Vec<T>, MeasureError> {
    let mut lines = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut lines);
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    writer.write_batches(&batches)?;
    writer.finish()?;
    let rows = serde_json::Deserializer::from_slice(&lines).into_iter();
    rows.map(|row| row.map_err(|error| DataFusionError::External(Box::new(error)).into()))
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_query_says_what_it_answers_and_gives() {
        let queries = super::queries().unwrap();
        for query in queries.iter() {
            assert!(!query.description.is_empty(), "{}", query.name);
            assert!(!query.columns.is_empty(), "{}", query.name);
        }
        assert_eq!(queries.get("comparisons").unwrap().parameters.len(), 5);
    }
}
