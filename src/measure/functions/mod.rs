//! Functions that SQL lacks and the metrics need: [`pairwise_sum`], a sum whose rounding is fixed by
//! the position of its terms, and [`rollout_info`], the short account of a rollout. Paths into JSON
//! text (`result ->> 'answer'`, `json_get_float(request, 'difficulty')`) are those of
//! `datafusion-functions-json`.

mod groups;
mod pairwise;
mod pairwise_sum;
mod rollout_info;
#[cfg(test)]
mod tests;

pub use pairwise::{PairwiseError, PairwiseSum};
pub use pairwise_sum::pairwise_sum;
pub use rollout_info::rollout_info;

use datafusion::common::Result;
use datafusion::prelude::SessionContext;

/// Makes the functions known to a session.
pub fn register(ctx: &SessionContext) {
    ctx.register_udaf(pairwise_sum());
    ctx.register_udf(rollout_info());
}

/// Makes the functions and operators for JSON text known to a session.
///
/// # Errors
/// The session refuses them.
pub fn register_json(ctx: &SessionContext) -> Result<()> {
    datafusion_functions_json::register_all(&mut ctx.clone())
}
