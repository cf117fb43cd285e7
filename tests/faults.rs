//! Nothing is lost: whatever happens to agents, networks and the collector itself, every other rollout is done, every
//! dispatch is on record, and the sweep can go on from where it was.
//!
//! The real binary runs against agents that the test itself serves, and what it leaves behind is read from its Parquet
//! parts by other code than its own.

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
#[path = "common/s3_backend.rs"]
mod s3_backend;
#[path = "common/s3_server.rs"]
#[allow(dead_code, reason = "the tests of object stores ask for more of it")]
mod s3_server;

#[path = "crash_points/preload.rs"]
#[allow(dead_code, reason = "the crash points ask for more of it")]
mod preload;

mod faults {
    mod agents;
    mod always_failing;
    mod bad_answers;
    mod calls;
    mod capacity;
    mod clean_tables;
    mod connections;
    mod crashes;
    mod damaged_journals;
    mod damaged_parts;
    mod extension;
    mod files;
    mod flags;
    mod hangs;
    mod heads;
    mod last_shard;
    mod ledger;
    mod limits;
    mod load;
    mod locks;
    mod memory;
    mod native;
    mod native_growth;
    mod native_scene;
    mod native_stops;
    mod outages;
    mod partitions;
    mod published;
    mod raw_agent;
    mod reader;
    mod redirects;
    mod refusals;
    mod scene;
    mod schedule;
    mod schedules;
    mod secrets;
    mod server_errors;
    mod shards;
    mod signals;
    mod small_parts;
    mod spoiled;
    mod stale_connections;
    mod takeover;
    mod thousands;
    mod three_agents;
}
