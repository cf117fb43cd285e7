//! Runs in object stores: the same wherever they are kept, and whole whatever happens on the way there.
//!
//! The S3 server is the `s3s` crate's protocol over HTTP on loopback, with requests signed and checked, and a store of
//! our own behind it, which can say what a reader could have seen at any moment and which uploads are still open.

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
#[allow(dead_code, reason = "the suite of clusters asks for more")]
#[path = "common/s3_server.rs"]
mod s3_server;
#[path = "common/store_proxy.rs"]
mod store_proxy;

mod object_stores {
    mod addresses;
    mod azure;
    mod faults;
    mod lost_machine;
    mod place;
    mod reader;
    mod server;
    mod settings;
    mod shards;
    mod suite;
    mod two_machines;
}
