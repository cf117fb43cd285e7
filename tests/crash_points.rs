//! Nothing is lost wherever the process ends: before and after every change that it makes to the files of a run (rename,
//! link, unlink, mkdir, rmdir, truncate, sync), the real binary is killed and its run is resumed.
//!
//! By default some of these points are tried, spread evenly; all of them with `ROLLSTREAM_TEST_FULL=1`.

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

#[allow(dead_code, reason = "the tests of faults ask for more of it")]
#[path = "faults"]
mod faults {
    pub mod agents;
    pub mod ledger;
    pub mod load;
    pub mod scene;
}

mod crash_points {
    #[allow(dead_code, reason = "the tests of faults ask for more of it")]
    mod preload;
    mod scenarios;
    mod sweep;
}
