//! NeMo Gym's JSONL files as tables: [`Import`] reads materialized inputs as `tasks` and rollouts,
//! also shards of them, as `rollouts`. [`RolloutOptions`] says what a file's rows must have,
//! [`ImportError`] what is wrong with one, and [`merge`] writes the lines of many files by key.

mod builder;
mod error;
mod keys;
mod lines;
mod merge;
mod rollout;
mod tables;

pub use error::ImportError;
pub use merge::merge;
pub use rollout::ResponseRule;
pub use tables::{AgentSource, Import, Imported, KeyRule, RolloutOptions};
