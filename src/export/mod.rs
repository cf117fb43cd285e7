//! A run as the files of another tool: [`export_nemo_gym`] writes those of NeMo Gym, where [`ExportTarget`] says.

mod columns;
mod error;
mod nemo_gym;
mod sorted;
mod stamps;
mod target;

pub use error::ExportError;
pub use nemo_gym::{ExportReport, export_metrics, export_nemo_gym, failed_attempts};
pub use target::ExportTarget;
