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
#[allow(dead_code, reason = "not every test file asks for all of it")]
#[path = "object_stores/reader.rs"]
mod reader;
#[allow(dead_code, reason = "the suite of object stores asks for more")]
#[path = "common/s3_backend.rs"]
mod s3_backend;
#[allow(dead_code, reason = "the suite of object stores asks for more")]
#[path = "common/s3_server.rs"]
mod s3_server;
#[allow(dead_code, reason = "not every test file asks for all of it")]
#[path = "cli/trackers/server.rs"]
mod tracker_server;

#[allow(dead_code, reason = "the suite of the viewer asks for more")]
#[path = "viewer/scene.rs"]
mod viewer;

/// Each metric with its steps and values.
type Series = std::collections::BTreeMap<String, Vec<(u64, f64)>>;

mod cluster {
    mod executors;
    mod kills;
    mod kubernetes;
    mod limits;
    mod machines;
    mod network;
    mod overview;
    mod road;
    mod slurm;
    mod sweeps;
}
