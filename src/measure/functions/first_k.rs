//! The scalar functions `mean_of_each_first_k` and `std_of_each_first_k`.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::scalar_doc_sections::DOC_SECTION_MATH;

use super::argument::{Argument, integer, list_of, numbers};
use super::compensated::Compensated;
use super::moments::Moments;
use super::number_lists::{ListWriter, NumberLists};
use super::pass_at_k::SCORES;
use super::scalar::ScalarFunction;

/// `mean_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// mean of the scores among the first k positions, as Python's `sum()` divided by their number; null
/// while there is none. Beyond the list it stays. A null argument gives null.
pub fn mean_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "mean_of_each_first_k",
        "The mean of the scores among the first k rollouts, for each k up to max_k.",
        arguments(),
        list_of(DataType::Float64),
        |columns| each_first_k("mean_of_each_first_k", columns, |moments, _| moments.mean()),
    )
}

/// `std_of_each_first_k(values DOUBLE[], max_k BIGINT) -> DOUBLE[]`: for k = 1, 2, ..., `max_k` the
/// sample standard deviation (ddof 1) of the scores among the first k positions; null for fewer than
/// two: `sqrt(sum((score - mean)^2) / (n - 1))` with Python's `sum()`, for the first 1,000. Beyond the
/// list it stays. A null argument gives null.
pub fn std_of_each_first_k() -> ScalarUDF {
    ScalarFunction::udf(
        DOC_SECTION_MATH,
        "std_of_each_first_k",
        "The sample standard deviation of the scores among the first k rollouts, for each k up to max_k.",
        arguments(),
        list_of(DataType::Float64),
        |columns| each_first_k("std_of_each_first_k", columns, std),
    )
}

/// More scores than these are not summed anew for each k, but in one pass, to the same within a few bits.
const TWO_PASSES: usize = 1_000;

fn std(moments: &Moments, scores: &[f64]) -> Option<f64> {
    if scores.len() > TWO_PASSES {
        return moments.std();
    }
    let mean = moments.mean()?;
    let squares = scores.iter().map(|score| (score - mean) * (score - mean));
    let squares: Compensated = squares.collect();
    (scores.len() > 1).then(|| (squares.total() / (scores.len() - 1) as f64).sqrt())
}

fn arguments() -> Vec<Argument> {
    vec![
        numbers("values", SCORES),
        integer(
            "max_k",
            "The largest k, and the length of the list returned.",
        ),
    ]
}

/// A `max_k` that is given.
pub(super) fn length(function: &str, max_k: i64) -> Result<usize> {
    usize::try_from(max_k)
        .map_err(|_| exec_datafusion_err!("{function}: max_k = {max_k}; give 0 or more"))
}

fn each_first_k(
    function: &str,
    columns: &[ArrayRef],
    statistic: impl Fn(&Moments, &[f64]) -> Option<f64>,
) -> Result<ArrayRef> {
    let [values, max_k] = columns else {
        return exec_err!("{function}: {} columns instead of 2", columns.len());
    };
    let values = NumberLists::of(values)?;
    let max_k = max_k.as_primitive::<Int64Type>();
    let mut lists = ListWriter::with_capacity(values.len());
    for row in 0..values.len() {
        let max_k = max_k.is_valid(row).then(|| max_k.value(row));
        let (Some(scores), Some(max_k)) = (values.row(row), max_k) else {
            lists.null_list();
            continue;
        };
        let mut moments = Moments::default();
        let (mut last, mut so_far) = (None, Vec::new());
        let mut scores = scores.fuse();
        for _ in 0..length(function, max_k)? {
            if let Some(score) = scores.next().flatten() {
                moments.add(score);
                so_far.push(score);
                last = statistic(&moments, &so_far);
            }
            lists.push_option(last);
        }
        lists.end_list()?;
    }
    lists.finish()
}
