//! Copies of a run's local journal on its object store, from which it is read and gone on with
//! where the machine that wrote it is lost or far away.
//!
//! Files of a journal only grow. What a file `NAME` has grown by since the last time is put as a
//! chunk `journal/NAME/OFFSET`, and no chunk is ever written again. What can be read of a copy is
//! what follows without a gap from offset 0. A [`Checkpointer`] makes the copies and deletes those
//! of files that have gone, [`list`] and [`fetch`] read them, [`forget`] deletes one. A run on a
//! local disk has none.

mod checkpointer;
mod chunks;
mod fetch;
#[cfg(test)]
mod tests;

pub use checkpointer::Checkpointer;
pub use chunks::{CheckpointedFile, forget, list};
pub use fetch::fetch;

pub(super) use chunks::forget_all;
