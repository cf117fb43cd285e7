//! The property test of `tests/faults.rs` for as long as it takes: an agent that fails at random, a collector that is
//! killed at random and gone on with, and a reader that looks at the run all the time.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[allow(dead_code, unused_imports, reason = "the tests ask for more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

#[allow(dead_code, reason = "the tests ask for more of it")]
#[path = "../tests/faults"]
mod faults {
    mod agents;
    mod files;
    mod ledger;
    mod load;
    mod reader;
    mod scene;
    pub mod schedule;
}

use std::time::Instant;

use clap::Parser;

use faults::schedule::{Happened, run};

/// Kills collectors, goes on with their runs, and checks that nothing is lost.
#[derive(Debug, Parser)]
struct Cli {
    /// Kills in all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    kills: usize,
    /// Kills of one run
    #[arg(long, value_name = "N", default_value_t = 12)]
    kills_of_a_run: usize,
    /// The first schedule; the others follow it
    #[arg(long, value_name = "SEED", default_value_t = 1000)]
    seed: u64,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let cli = Cli::parse();
    let began = Instant::now();
    let mut happened = Happened::default();
    let mut seed = cli.seed;
    while happened.kills < cli.kills {
        happened = happened.and(run(seed, cli.kills_of_a_run));
        seed += 1;
        println!(
            "{} runs, {:.0} s: {happened:?}",
            seed - cli.seed,
            began.elapsed().as_secs_f64()
        );
    }
}
