//! A sweep on many machines, with Apache DataFusion Ballista: `collect --cluster`.
//!
//! Ballista hands out the work and watches the executors. What has been done is known by the run's store alone: each shard
//! has the lock, the journal, the recovery and the commit that `--shard` has, so that a shard may run again anywhere.
//!
//! ```text
//!  driver                       scheduler              executors
//!  collect --cluster ── plan ──▶ a task per shard ◀── ask for tasks, run Sweep::collect_share
//!        ▲                                                  │
//!        └──── spec, control, reports, tables: the store ◀──┘
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | the operator that runs shards, and how it is encoded |
//! | `board` | the objects in the run by which driver and executors talk |
//! | `admission` | which executors may send, where there may be more than the limits were divided by |
//! | `driver` | begins the run, submits the shards, follows them, ends the run |
//! | `overview` | what each executor does |
//! | `scheduler` | Ballista's scheduler, and a client of it |
//! | `executor` | the process that runs shards |
//! | `worker` | what an executor does for a shard |
//! | `slots` | how many shards an executor sends at a time |
//! | `limits` | what an executor may do of what the sweep may |
//! | `network` | how these processes connect, with certificates or on this machine alone |
//! | `local` | executors of this machine that end with their driver |
//! | `error` | what can go wrong |
//!
//! The plan names the run, the digest of the spec, and the number of shards; the spec has the settings without secrets. An
//! executor takes secrets from its own environment. One that lacks something withdraws: it says so and ends, and its shards
//! run elsewhere. The command line uses this module, which uses `sweep`.

mod admission;
mod board;
mod driver;
mod error;
mod executor;
mod limits;
mod local;
mod network;
mod overview;
mod plan;
mod scheduler;
mod slots;
mod worker;

pub(crate) use driver::collect;
pub(crate) use error::ClusterError;
pub(crate) use executor::{ExecutorOptions, execute};
pub(crate) use network::Network;
pub(crate) use scheduler::Scheduler;
