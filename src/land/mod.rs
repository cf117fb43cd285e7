//! Where answers become safe: [`LandExec`] writes outcomes to the journal as they come, and turns
//! the journal into Parquet parts; [`LandStep`] is its place in a logical plan.
//!
//! ```text
//!   outcomes ──► journal segment ──(full, old, or at the end)──► rollouts/SEGMENT.parquet
//!                (then they count)                          attempts/SEGMENT.parquet
//! ```

mod context;
mod exec;
mod lander;

pub use context::LandContext;
pub use exec::{LandExec, LandStep};
