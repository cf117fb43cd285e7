//! What a model talks to: [`Environment`] takes a step with each sample of a batch. [`StepServer`] is
//! asked once for a whole batch, [`ResourcesServer`] and [`GymnasiumServer`] know one episode at a
//! time, and [`Checked`] asks nobody: [`checks`] says whether an answer is right, for those with
//! nothing but a data set. [`environment`] sets one up from its [`EnvironmentSettings`].

mod checked;
pub mod checks;
mod config;
mod contract;
mod episode;
mod gymnasium;
mod resources_server;
#[cfg(test)]
mod scene;
mod step_server;

pub use checked::Checked;
pub use config::{EnvironmentError, EnvironmentSettings, environment};
pub use contract::{Begun, Environment, Sample, Step, StepResult, Stepped};
pub use gymnasium::GymnasiumServer;
pub use resources_server::ResourcesServer;
pub use step_server::StepServer;
