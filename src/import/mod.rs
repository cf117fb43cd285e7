//! NeMo Gym's JSONL files as tables: [`Import`] reads materialized inputs as `tasks` and rollouts,
//! also shards of them, as `rollouts`. [`RolloutOptions`] says what a file's rows must have,
//! [`ImportError`] what is wrong with one, and [`merge`] writes the lines of many files by key.
//! [`read_collection`] reads all files of a collection, finished or not, as batches for the tables of
//! a run.

mod builder;
mod collection;
mod error;
mod keys;
mod lines;
mod merge;
mod rollout;
mod runners;
mod tables;
mod zeros;

pub use collection::{
    Collection, CollectionFiles, CollectionRules, FailureCounts, Piece, read_collection,
};
pub use error::ImportError;
pub use keys::RowKey;
pub use merge::merge;
pub use rollout::{ResponseRule, verify_response};
pub use runners::AgentServers;
pub use tables::{AgentSource, Import, Imported, KeyRule, RolloutOptions, is_stamped};
pub use zeros::{ZeroRows, Zeros, is_shard};
