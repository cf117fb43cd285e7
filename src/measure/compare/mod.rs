//! Compares runs over the tasks that they have in common: [`TaskMeans`] is the data of one run,
//! [`ComparedPair`] names two agents, and [`Compared`] is the result, from the queries of
//! `queries/compare`.

mod compared;
mod report;
mod runs;
mod task_means;

pub use compared::{Compared, ComparedPair};
pub use report::{
    ComparedRun, ComparisonOptions, ComparisonReport, FlipsFile, MetricComparison, MetricOverlap,
    Overlap, OverlapCounts,
};
pub(crate) use runs::compared;
pub use runs::{CompareRun, compare};
pub use task_means::TaskMeans;

use include_dir::{Dir, include_dir};

use super::error::MeasureError;
use super::queries::MetricQueries;

static QUERIES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/compare");

fn queries() -> Result<MetricQueries, MeasureError> {
    MetricQueries::of(&QUERIES)
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
