//! Sweeps on a cluster: a driver, a scheduler and executors, each a process of the program.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[allow(
    dead_code,
    unused_imports,
    reason = "not every test file asks for all of it"
)]
mod common;

mod cluster {
    mod executors;
    mod kills;
    mod sweeps;
}
