//! The command line: [`Cli`] is what was typed, [`run`] does it. One file per command.

mod aggregate;
pub mod args;
pub mod check;
mod collect;
mod compare;
pub mod compare_args;
mod compared_run;
pub mod completions;
pub mod config;
mod exit;
mod export;
mod gym_keys;
mod gym_output;
mod health;
mod import;
pub mod measure_args;
mod measurement;
mod metrics;
pub mod metrics_args;
mod open;
mod plan;
mod profile;
pub mod profile_args;
mod run;
mod signals;
mod sim;
pub mod sim_args;
mod simulated;
pub mod sql;
mod status;
pub mod sweep_args;
mod sweep_flags;

pub use args::Cli;
pub use exit::Exit;
pub use gym_keys::translated;
pub use run::{guide_page, run};
