//! A run as the files of another tool: [`export_nemo_gym`] writes those of NeMo Gym, where [`ExportTarget`] says.

mod calls;
mod columns;
mod error;
mod nemo_gym;
mod sorted;
mod stamps;
mod target;
mod trajectory;

pub use error::ExportError;
pub use nemo_gym::{ExportReport, RolloutRows, export_metrics, export_nemo_gym, failed_attempts};
pub use stamps::{EnvironmentServers, StampIndex};
pub use target::ExportTarget;
