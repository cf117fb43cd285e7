//! SQL functions that the metrics need and DataFusion lacks.
//!
//! | functions | file |
//! |---|---|
//! | [`gather_scores()`]: rollouts to lists of scores | `gather_scores`, `score_layouts` |
//! | [`statistics()`], [`list_statistics`], [`list_quantiles`], [`summary_each()`]: what such lists come to | `statistics`, `lists`, `summary_each` |
//! | [`pass_at_each_k`], [`pass_hat_each_k`], [`best_of_each_k`], [`majority_at_each_k`], [`mean_of_each_first_k`], [`std_of_each_first_k`]: for each k | `each_k` |
//! | [`normal_quantile`], [`student_t_quantile`], [`chi_squared_sf`], [`binomial_test_p`], [`wilson_interval`]: tests and intervals | `inference` |
//! | [`bootstrap_interval`], [`sign_flip_p`]: tests and intervals by random samples | `resampling` |
//! | [`exact_sum`]: a sum that is rounded once | `sums` |
//! | [`ordered_numbers`]: the numbers of a group as a list | `ordered_rows` |
//! | [`json_at`], [`json_text_at`], [`answer_text`], [`task_content`]: values and digests of JSON text | `json_text` |
//!
//! A new function is a function that returns its UDF, and a line in [`register`]. The operators on JSON text
//! (`result ->> 'answer'`) and the `json_get` functions are those of `datafusion-functions-json`.

mod aggregate;
mod double_double;
mod each_k;
mod gather_scores;
mod inference;
mod json_text;
mod lists;
mod ordered_rows;
mod resampling;
mod scalar;
mod score_layouts;
mod statistics;
mod summary_each;
mod sums;
#[cfg(test)]
mod tests;

pub(super) use double_double::DoubleDouble;
pub use each_k::{
    best_of_each_k, majority_at_each_k, mean_of_each_first_k, pass_at_each_k, pass_hat_each_k,
    std_of_each_first_k,
};
pub use gather_scores::gather_scores;
pub(super) use inference::t_quantile;
pub use inference::{
    binomial_test_p, chi_squared_sf, normal_quantile, student_t_quantile, wilson_interval,
};
pub use json_text::{answer_text, json_at, json_text_at, task_content};
pub use lists::list_quantiles;
pub(super) use lists::{median, quantile};
pub use ordered_rows::ordered_numbers;
pub use resampling::{bootstrap_interval, sign_flip_p};
pub use statistics::{list_statistics, statistics};
pub use summary_each::summary_each;
pub use sums::exact_sum;
pub(super) use sums::pairwise_sum;

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

/// Registers the functions with a session.
pub fn register(ctx: &SessionContext) {
    let aggregates = [
        bootstrap_interval,
        exact_sum,
        gather_scores,
        ordered_numbers,
        sign_flip_p,
        statistics,
        summary_each,
    ];
    let scalars = [
        answer_text,
        best_of_each_k,
        binomial_test_p,
        chi_squared_sf,
        json_at,
        json_text_at,
        list_quantiles,
        list_statistics,
        majority_at_each_k,
        mean_of_each_first_k,
        normal_quantile,
        pass_at_each_k,
        pass_hat_each_k,
        std_of_each_first_k,
        student_t_quantile,
        task_content,
        wilson_interval,
    ];
    aggregates.iter().for_each(|new| ctx.register_udaf(new()));
    scalars.iter().for_each(|new| ctx.register_udf(new()));
}

/// Registers the functions and operators for JSON text with a session.
///
/// # Errors
/// The session refuses them.
pub fn register_json(ctx: &SessionContext) -> Result<()> {
    datafusion_functions_json::register_all(&mut ctx.clone())
}
