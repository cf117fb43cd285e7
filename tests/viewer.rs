//! The pages of `rollstream view` and the file of `rollstream report`, in a real browser.
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

mod viewer {
    mod browser;
    mod hostile;
    mod live;
    mod look;
    mod pages;
    #[allow(dead_code, reason = "the suite of faults asks for more")]
    #[path = "../faults/raw_agent.rs"]
    mod raw_agent;
    mod report;
    mod scene;
    mod visitors;
}
