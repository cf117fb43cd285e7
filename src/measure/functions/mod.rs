//! Functions that SQL lacks and the metrics need: [`gather_scores`] turns rollouts into lists of scores,
//! [`list_statistics`] and [`statistics`] say what such lists come to, and [`rollout_info`] gives the
//! short account of a rollout. Paths into JSON text (`result ->> 'answer'`,
//! `json_get_float(request, 'difficulty')`) are those of `datafusion-functions-json`.

mod gather_scores;
mod gathered;
mod one_group;
mod pairwise;
mod rollout_info;
mod statistics;
#[cfg(test)]
mod tests;

pub use gather_scores::gather_scores;
pub use rollout_info::rollout_info;
pub use statistics::{list_statistics, statistics};

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

/// Makes the functions known to a session.
pub fn register(ctx: &SessionContext) {
    ctx.register_udaf(gather_scores());
    ctx.register_udaf(statistics());
    ctx.register_udf(list_statistics());
    ctx.register_udf(rollout_info());
}

/// Makes the functions and operators for JSON text known to a session.
///
/// # Errors
/// The session refuses them.
pub fn register_json(ctx: &SessionContext) -> Result<()> {
    datafusion_functions_json::register_all(&mut ctx.clone())
}
