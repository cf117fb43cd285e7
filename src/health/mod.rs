//! Whether rollouts are what they seem: the health checks of NeMo Gym 0.7.
//!
//! [`HealthCheck`] takes NeMo Gym's rows one by one, from [`check_files`] or [`check_run`], and makes tables of the
//! evidence in them. Every file of `queries/health` is a check: a query over these
//! tables, whose rows are what it found. A rollout with a finding is unhealthy; one that some check had no evidence of
//! is unobserved; the others are healthy. [`HealthReport`] says how many, and two files say it of each.

mod bindings;
mod check;
mod coercion;
mod content;
mod error;
mod evidence;
mod index;
mod report;
mod rules;
mod shape;
mod source;
mod tables;
mod to_json;

pub use check::{HealthCheck, HealthOptions};
pub use error::HealthError;
pub use report::{HealthReport, QUALITY_SUMMARY, ROLLOUT_VERDICTS};
pub use source::{check_files, check_run};
