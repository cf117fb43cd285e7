//! The property test of `tests/faults.rs` for as long as it takes: an agent that fails at random, a collector that is
//! killed at random and gone on with, and a reader that looks at the run all the time. Or, with `--cluster`, executors of
//! a cluster that are killed at random: `cargo bench --features cluster --bench kills -- --cluster --kills 200`.

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

#[allow(dead_code, unused_imports, reason = "the tests ask for more of it")]
#[path = "../tests/cluster"]
mod cluster {
    mod executors;
    pub mod kills;
    mod sweeps;
}

use std::time::{Duration, Instant};

use clap::Parser;

use cluster::kills::{self, Killed};
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
    /// Kill executors of a cluster, one in each run
    #[arg(long)]
    cluster: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let cli = Cli::parse();
    if cli.cluster {
        kill_executors(cli.seed, cli.kills);
        return;
    }
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

/// An executor of this machine is known to be dead at once.
const GOAL: Duration = Duration::from_secs(3);

fn kill_executors(seed: u64, kills: usize) {
    let began = Instant::now();
    let mut killed: Vec<Killed> = Vec::new();
    for seed in (seed..).take(kills) {
        killed.push(kills::run(seed));
        let again: u64 = killed.iter().map(|killed| killed.again).sum();
        let most = killed.iter().map(|killed| killed.again).max();
        let mut until: Vec<Duration> = killed
            .iter()
            .filter_map(|killed| killed.until_again)
            .collect();
        until.sort();
        println!(
            "{} kills, {:.0} s: {again} rollouts asked for again, at most {most:?} after a kill; the first of them after \
             {:?} (median), {:?} (longest), which is to be {GOAL:?} at most",
            killed.len(),
            began.elapsed().as_secs_f64(),
            until.get(until.len() / 2),
            until.last()
        );
    }
}
