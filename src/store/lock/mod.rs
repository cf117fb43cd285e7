//! The lock of a run: one writer, or one for each shard.
//!
//! A lock is an object `lock/SCOPE/NUMBER.json`, since the only conditional write that all stores
//! know is to create. [`RunLock`] takes, renews and gives it back; [`LockRecord`] is what it holds,
//! [`LockScope`] what it keeps others from, [`Process`] whether its owner has died.

mod directory;
mod epoch;
mod process;
mod record;
mod run_lock;
mod scope;
#[cfg(test)]
mod tests;

use directory::LockEntry;
use process::Process;
use record::LockRecord;

pub use record::LockHolder;
pub(super) use record::random_id;
pub use run_lock::{LockOptions, RunLock};
pub use scope::LockScope;
