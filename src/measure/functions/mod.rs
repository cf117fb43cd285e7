//! Functions that SQL lacks and the metrics need: [`pairwise_sum`], a sum whose rounding is fixed by
//! the position of its terms, and [`rollout_info`], the short account of a rollout.

mod groups;
mod pairwise;
mod pairwise_sum;
mod rollout_info;
#[cfg(test)]
mod tests;

pub use pairwise::{PairwiseError, PairwiseSum};
pub use pairwise_sum::pairwise_sum;
pub use rollout_info::rollout_info;

use datafusion::prelude::SessionContext;

/// Makes the functions known to a session.
pub fn register(ctx: &SessionContext) {
    ctx.register_udaf(pairwise_sum());
    ctx.register_udf(rollout_info());
}
