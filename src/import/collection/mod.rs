//! A collection of NeMo Gym, finished or not, as batches for the tables of a run.

mod answers;
mod files;
mod inputs;
mod ledger;
mod reading;
mod rows;

pub use files::CollectionFiles;
pub(super) use files::{FAILURES, INPUTS, with_suffix};
pub use ledger::{Collection, FailureCounts};
pub use reading::{CollectionRules, Piece, read_collection};
