//! The command line: [`Cli`] is what clap reads, [`run`] runs it. `main` is the only user.
//!
//! Each command is one file, with its options and its `--help`. The options of `collect` are declared in
//! [`crate::config`]; `sweep_args` makes flags of them. Commands share `output`, `runs` and `measurement`.

mod aggregate;
pub mod args;
mod check;
mod collect;
mod compare;
mod config;
mod export;
mod gate;
mod gym_keys;
mod gym_output;
mod health;
mod import;
mod measurement;
mod metrics;
mod output;
mod profile;
mod run;
mod runs;
mod signals;
mod sim;
pub mod sql;
mod status;
mod sweep_args;
mod sweep_flags;

pub use args::Cli;
pub use gym_keys::translated;
pub use output::Exit;
pub use run::{guide_page, run};
