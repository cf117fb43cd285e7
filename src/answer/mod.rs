//! What the collector needs to know of an agent's answer: [`AnswerFields`], the numbers and flags
//! that stand in it; each [`Number`] is a metric; and what an answer of an earlier attempt says to a [`resume`].

mod fields;
mod info;
mod number;
pub mod resume;

pub use fields::{AnswerFields, MASK_SAMPLE};
pub use number::Number;
