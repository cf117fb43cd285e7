//! The one place that joins the steps: [`Sweep`] reads, expands, runs, lands and measures.

mod artifacts;
mod identity;
mod inputs;
mod spool;
mod sweep;

pub use sweep::Sweep;
