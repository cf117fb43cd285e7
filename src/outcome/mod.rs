//! What became of an attempt, as rows of Arrow: [`Outcome`] is one row, [`OutcomeBatchBuilder`]
//! makes batches of them, [`attempts_of`], [`rollouts_of`] and [`turns_of`] split a batch into the tables
//! that it lands in.

mod batch;
mod row;
mod split;
#[cfg(test)]
mod tests;
mod turns;

pub use batch::OutcomeBatchBuilder;
pub use row::{Answered, OK, Outcome, SUPERSEDED, Times, Verdict};
pub use split::{attempts_of, outcomes_of, rollouts_of};
pub use turns::turns_of;
