//! The outcome of an attempt: [`Answer`] and its [`AnswerFields`]; [`Outcome`], one attempt that has ended;
//! [`OutcomeBatchBuilder`], which makes Arrow batches of outcomes; and [`attempts_of`], [`rollouts_of`] and [`calls_of`],
//! which split a batch into the tables that it lands in. [`resume`] reads what NeMo Gym's answers say about retries.
//!
//! Agents return answers, the run operator makes outcomes, the journal and `land` keep them, `import` reads files.

mod answer;
mod batch;
pub mod resume;
mod row;
mod split;
#[cfg(test)]
mod tests;

pub use answer::{Answer, AnswerFields, MASK_SAMPLE, MetricValue};
pub use batch::OutcomeBatchBuilder;
pub use row::{OK, Outcome, SUPERSEDED, Times, Verdict, Waited};
pub(crate) use split::column;
pub use split::{attempts_of, calls_of, outcomes_of, rollouts_of};
