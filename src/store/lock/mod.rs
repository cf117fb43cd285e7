//! The lock of a run: one writer, or one for each shard.
//!
//! A lock is an object `lock/SCOPE/NUMBER.json`, since the only conditional write that all stores know is to create: a disk
//! has no `PutMode::Update`, so that no crate's lease serves. [`RunLock`] takes, renews and gives it back; [`LockHolder`]
//! is what people see of it, [`LockScope`] what it keeps others from.

mod directory;
mod record;
mod run_lock;
#[cfg(test)]
mod tests;

use directory::LockEntry;

#[cfg(any(test, feature = "cluster"))]
pub(crate) use record::Process;
pub(super) use record::random_id;
pub use record::{LockHolder, LockRecord, LockScope};
pub use run_lock::{LockOptions, RunLock};
