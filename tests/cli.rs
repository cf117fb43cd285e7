//! The program as its users meet it: what it prints and where, its exit codes, and what it leaves behind.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[allow(dead_code, reason = "not every test file asks for all of it")]
mod common;
#[allow(dead_code, reason = "the suite of object stores asks for more")]
#[path = "common/s3_backend.rs"]
mod s3_backend;
#[allow(dead_code, reason = "the suite of object stores asks for more")]
#[path = "common/s3_server.rs"]
mod s3_server;

mod cli {
    mod agent_metrics;
    mod aggregate;
    mod check;
    mod compare;
    mod config;
    mod existing_runs;
    mod failures;
    mod full_disk;
    mod guide;
    mod gym07;
    mod gym07_resume;
    mod gym_launch;
    mod health;
    mod help;
    mod import_export;
    mod input_errors;
    mod interrupts;
    mod live;
    mod metrics;
    mod model_agent;
    mod multi_turn;
    mod open_files;
    mod places;
    mod plan;
    mod power_cut;
    mod profile;
    mod progress;
    mod quickstart;
    mod resume;
    mod secrets;
    mod show;
    mod sim;
    mod sim_servers;
    mod sql;
    mod sql_metrics;
    mod sql_names;
    mod sql_scripts;
    mod sql_while_running;
    mod status;
    mod terminal;
    mod tool_calling;
    mod trackers;
}
