//! Where answers become safe: [`LandExec`] writes outcomes to the journal as they come, and turns
//! the journal into Parquet parts; [`LandStep`] is its place in a logical plan; [`recover`] does
//! the same for what an earlier process left in its journal.
//!
//! ```text
//!   outcomes ──► journal segment ──(full, old, or at the end)──► rollouts/SEGMENT.parquet
//!                (then they count)                          attempts/SEGMENT.parquet
//! ```

mod compact;
mod context;
mod exec;
mod lander;

pub use compact::recover;
pub use context::LandContext;
pub use exec::{LandExec, LandStep};
