//! Checks for who has nothing but a data set: an answer's text against a field of its sample.
//!
//! [`Check`] is what the configuration says, [`PreparedCheck`] what judges, [`Judgement`] what it says. A sample without
//! a usable expected value is a [`CheckError`], never a wrong answer.

mod answer_regex;
mod boxed;
mod check;
mod error;
mod exact_match;
mod expected;
mod fence;
mod json_schema;
mod multiple_choice;
mod number;
mod numeric;
mod regular_expression;
mod schema_limits;

pub use check::{Check, Judgement, PreparedCheck};
pub use error::CheckError;
pub use exact_match::ExactMatch;
pub use json_schema::JsonSchema;
pub use multiple_choice::MultipleChoice;
pub use numeric::Numeric;
pub use regular_expression::RegularExpression;
