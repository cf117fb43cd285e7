//! The one place that joins the steps: [`Sweep`] reads, expands, runs, lands and measures.

mod artifacts;
mod extension;
mod identity;
mod inputs;
mod recovery;
mod spool;
mod supervisor;
mod sweep;
mod tables;

pub use sweep::Sweep;
