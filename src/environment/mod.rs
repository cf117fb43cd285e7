//! What a model talks to: [`Environment`] takes a step with each sample of a batch.

mod contract;

pub use contract::{Begun, Environment, Sample, Step, StepResult};
