//! What the collector needs to know of an agent's answer: [`AnswerFields`], the numbers and flags
//! that stand in it; each [`Number`] is a metric.

mod fields;
mod info;
mod number;

pub use fields::AnswerFields;
pub(crate) use fields::is_truthy;
pub use number::Number;
