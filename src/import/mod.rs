//! NeMo Gym's JSONL files as tables: [`Import`] reads materialized inputs as `tasks` and rollouts,
//! also shards of them, as `rollouts`. [`RolloutOptions`] says what a file's rows must have,
//! [`ImportError`] what is wrong with one, and [`merge`] writes the lines of many files by key.

mod builder;
mod error;
mod tables;
mod keys;
mod lines;
mod merge;
mod rollout;

pub use error::ImportError;
pub use tables::{AgentSource, Import, Imported, ResponseRule, RolloutOptions};
pub use merge::merge;
