//! What a model talks to: [`Environment`] takes a step with each sample of a batch; [`checks`] says
//! whether an answer is right, for those with nothing but a data set.

pub mod checks;
mod contract;

pub use contract::{Begun, Environment, Sample, Step, StepResult};
