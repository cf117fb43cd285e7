//! The property test of `tests/faults.rs` for as long as it takes: an agent that fails at random, a collector that is
//! killed at random and gone on with, and a reader that looks at the run all the time. Or, with `--cluster`, executors of
//! a cluster that are killed at random: `cargo bench --features cluster --bench kills -- --cluster --kills 200`; with
//! `--apart`, executors that share nothing but the store.

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
#[path = "../tests/object_stores/reader.rs"]
mod reader;
#[allow(dead_code, reason = "the tests ask for more of it")]
#[path = "../tests/common/s3_backend.rs"]
mod s3_backend;
#[allow(dead_code, reason = "the tests ask for more of it")]
#[path = "../tests/common/s3_server.rs"]
mod s3_server;

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
    mod machines;
    mod road;
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
    /// Executors that share nothing but the store, each with a disk that is lost with it
    #[arg(long, requires = "cluster")]
    apart: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let cli = Cli::parse();
    if cli.cluster {
        kill_executors(&cli);
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

/// An executor of this machine is known to be dead at once; another when the scheduler has not heard it for 20 s and its
/// lease is over.
const GOAL: Duration = Duration::from_secs(3);
const GOAL_APART: Duration = Duration::from_secs(30);

fn kill_executors(cli: &Cli) {
    let began = Instant::now();
    let (kill, goal): (fn(u64) -> Killed, _) = if cli.apart {
        (kills::run_apart, GOAL_APART)
    } else {
        (kills::run, GOAL)
    };
    let mut killed: Vec<Killed> = Vec::new();
    for seed in (cli.seed..).take(cli.kills) {
        killed.push(kill(seed));
        let again: u64 = killed.iter().map(|killed| killed.again).sum();
        let most = killed.iter().map(|killed| killed.again).max();
        let mut until: Vec<Duration> = killed
            .iter()
            .filter_map(|killed| killed.until_again)
            .collect();
        until.sort();
        let unsaved = killed.iter().map(|killed| killed.unsaved).max();
        println!(
            "{} kills, {:.0} s: {again} rollouts asked for again, at most {most:?} after a kill, of the last {unsaved:?} \
             before it; the first of them after {:?} (median), {:?} (longest), which is to be {goal:?} at most",
            killed.len(),
            began.elapsed().as_secs_f64(),
            until.get(until.len() / 2),
            until.last()
        );
    }
}
