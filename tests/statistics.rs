//! The statistical functions through SQL, against numpy, scipy and statsmodels on the same data, and
//! against the truth in simulated sweeps.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "statistics/calls.rs"]
mod calls;
#[path = "statistics/coverage.rs"]
mod coverage;
#[path = "statistics/golden.rs"]
mod golden;
#[path = "statistics/lists.rs"]
mod lists;
#[path = "statistics/partitions.rs"]
mod partitions;
#[path = "statistics/query.rs"]
mod query;
