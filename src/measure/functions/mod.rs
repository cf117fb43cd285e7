//! Functions that SQL lacks and the metrics need.
//!
//! [`gather_scores`] turns rollouts into lists of scores; [`list_statistics`] and [`statistics`] say
//! what such lists come to, [`list_quantiles`] what lies between.
//!
//! Of the list of a task's scores, for each k:
//! [`pass_at_each_k`], [`pass_hat_each_k`], [`best_of_each_k`], [`mean_of_each_first_k`],
//! [`std_of_each_first_k`], [`majority_at_each_k`] with [`answer_text`]; of counts: [`pass_at_k`],
//! [`pass_hat_k`].
//!
//! Tests and intervals: [`normal_quantile`], [`normal_cdf`], [`student_t_quantile`],
//! [`chi_squared_sf`], [`binomial_test_p`], [`wilson_interval`], and over rows [`bootstrap_interval`]
//! and [`sign_flip_p`].
//!
//! Sums whose rounding is fixed: [`exact_sum`] is rounded once, [`compensated_sum`] and
//! [`summary_each`] as Python's.
//!
//! [`task_content`] tells tasks apart by what they ask.
//!
//! [`json_at`] and [`json_text_at`] follow a path into JSON text; the operators (`result ->> 'answer'`)
//! and `json_get…` functions are those of `datafusion-functions-json`.

mod aggregate;
mod aggregate_function;
mod all_among;
mod answer_text;
mod argument;
mod best_of;
mod binomial_test;
mod bootstrap_interval;
mod compensated;
mod compensated_sum;
mod distributions;
mod double_double;
mod exact;
mod exact_sum;
mod first_k;
mod gather_scores;
mod gathered;
mod gathered_columns;
mod gathered_group;
mod group_states;
mod interval;
mod json_at;
mod layouts;
mod list_quantiles;
mod majority;
mod moments;
mod number_lists;
mod ordered_rows;
mod pairwise;
mod pass_at_k;
mod random;
mod scalar;
mod sign_flip;
mod statistics;
mod summary_each;
mod task_content;
#[cfg(test)]
mod tests;
mod wilson;

pub use answer_text::answer_text;
pub use best_of::best_of_each_k;
pub use binomial_test::binomial_test_p;
pub use bootstrap_interval::bootstrap_interval;
pub use compensated_sum::compensated_sum;
pub(super) use distributions::t_quantile;
pub use distributions::{chi_squared_sf, normal_cdf, normal_quantile, student_t_quantile};
pub(super) use double_double::DoubleDouble;
pub use exact_sum::exact_sum;
pub use first_k::{mean_of_each_first_k, std_of_each_first_k};
pub use gather_scores::gather_scores;
pub use json_at::{json_at, json_text_at};
pub use list_quantiles::list_quantiles;
pub(super) use list_quantiles::{median, quantile};
pub use majority::majority_at_each_k;
pub(super) use pairwise::pairwise_sum;
pub use pass_at_k::{pass_at_each_k, pass_at_k, pass_hat_each_k, pass_hat_k};
pub use sign_flip::sign_flip_p;
pub use statistics::{list_statistics, statistics};
pub use summary_each::summary_each;
pub use task_content::task_content;
pub use wilson::wilson_interval;

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

/// Makes the functions known to a session.
pub fn register(ctx: &SessionContext) {
    ctx.register_udaf(bootstrap_interval());
    ctx.register_udaf(compensated_sum());
    ctx.register_udaf(exact_sum());
    ctx.register_udaf(gather_scores());
    ctx.register_udaf(sign_flip_p());
    ctx.register_udaf(statistics());
    ctx.register_udaf(summary_each());
    ctx.register_udf(answer_text());
    ctx.register_udf(best_of_each_k());
    ctx.register_udf(binomial_test_p());
    ctx.register_udf(chi_squared_sf());
    ctx.register_udf(json_at());
    ctx.register_udf(json_text_at());
    ctx.register_udf(list_quantiles());
    ctx.register_udf(list_statistics());
    ctx.register_udf(majority_at_each_k());
    ctx.register_udf(mean_of_each_first_k());
    ctx.register_udf(normal_cdf());
    ctx.register_udf(normal_quantile());
    ctx.register_udf(pass_at_each_k());
    ctx.register_udf(pass_at_k());
    ctx.register_udf(pass_hat_each_k());
    ctx.register_udf(pass_hat_k());
    ctx.register_udf(std_of_each_first_k());
    ctx.register_udf(student_t_quantile());
    ctx.register_udf(task_content());
    ctx.register_udf(wilson_interval());
}

/// Makes the functions and operators for JSON text known to a session.
///
/// # Errors
/// The session refuses them.
pub fn register_json(ctx: &SessionContext) -> Result<()> {
    datafusion_functions_json::register_all(&mut ctx.clone())
}
