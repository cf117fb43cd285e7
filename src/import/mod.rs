//! NeMo Gym's JSONL files as tables.
//!
//! [`Import`] reads materialized inputs and rollouts, also in shards, into tables in temporary files, for `aggregate` and
//! `profile`: [`RolloutOptions`] says what a file's rows must have, [`ZeroRows`] adds the rollouts that count as zero,
//! and [`merge`] writes the lines of many files by key. [`read_collection`] reads all files of a collection, finished or
//! not, as batches for the tables of a run, for `import` and `collect --resume`. [`ImportError`] says what is wrong with
//! a file.

mod collection;
mod error;
mod keys;
mod ledger;
mod lines;
mod rows;
mod tables;
mod task_labels;
mod zeros;

pub use collection::{CollectionFiles, CollectionRules, Piece, read_collection};
pub use error::ImportError;
pub use keys::{AgentServers, RowKey, is_stamped};
pub use ledger::{Collection, FailureCounts};
pub(crate) use rows::{outcome, verify_response};
pub use tables::{Import, Imported, RolloutFiles, RolloutOptions, merge};
pub use task_labels::TaskLabels;
pub use zeros::{ZeroRows, Zeros, is_shard};
