//! `rollstream cluster`: the processes of a cluster, and `collect --cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[cfg(feature = "cluster")]
use super::output::note;
use crate::config::Cluster;
use crate::error::Error;
use crate::report::SweepReport;
use crate::sweep::Sweep;

pub(super) const EXAMPLES: &str = "\
Examples:
  rollstream collect --config sweep.toml --cluster local:4
  rollstream cluster scheduler --bind 10.0.0.1:50050 --insecure-network
  rollstream cluster executor --scheduler grpc://10.0.0.1:50050 \\
      --slots 4 --insecure-network
  rollstream collect --config sweep.toml --cluster grpc://10.0.0.1:50050 \\
      --cluster-slots 16 --insecure-network

Secrets come from the environment of each executor. `rollstream help cluster` says more.";

/// The options of `cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// Which process.
    #[command(subcommand)]
    pub process: ClusterProcess,
}

/// A process of a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterProcess {
    /// Hand out the shards of sweeps to executors
    Scheduler(SchedulerArgs),
    /// Run shards of sweeps, until a signal
    Executor(ExecutorArgs),
}

/// The options of `cluster scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Address to listen at; port 0 is a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:50050")]
    pub bind: SocketAddr,
    /// Listen to other machines, though connections are neither encrypted nor authenticated
    #[arg(long)]
    pub insecure_network: bool,
}

/// The options of `cluster executor`.
#[derive(Debug, Args)]
pub struct ExecutorArgs {
    /// Address of the scheduler
    #[arg(long, value_name = "grpc://HOST:PORT")]
    pub scheduler: Cluster,
    /// Shards that run at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: u16,
    /// Name of this executor, unique in the cluster [default: host and process]
    #[arg(long)]
    pub name: Option<String>,
    /// Directory for small temporary files [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// Connect to another machine, though connections are neither encrypted nor authenticated
    #[arg(long)]
    pub insecure_network: bool,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// `rollstream cluster`: runs a process of a cluster.
#[cfg(feature = "cluster")]
pub(super) async fn cluster(args: ClusterArgs) -> Result<(), Error> {
    use crate::cluster::{ExecutorOptions, Scheduler, check_network, execute};

    match args.process {
        ClusterProcess::Scheduler(args) => {
            check_network(&args.bind.ip().to_string(), args.insecure_network)?;
            let scheduler = Scheduler::start(args.bind).await?;
            note(format!(
                "the scheduler listens at grpc://{}",
                scheduler.address()
            ));
            tokio::select! {
                served = scheduler.serve() => Ok(served?),
                stopped = super::signals::interrupted() => stopped,
            }
        }
        ClusterProcess::Executor(args) => {
            let Cluster::At { host, port } = args.scheduler else {
                let why = "--scheduler is the address of a scheduler, such as grpc://host:50050";
                return Err(Error::Usage(why.to_owned()));
            };
            let name = args.name.unwrap_or_else(|| {
                let host = std::env::var("HOSTNAME");
                let host = host.unwrap_or_else(|_| "executor".to_owned());
                format!("{host}-{}", std::process::id())
            });
            let options = ExecutorOptions {
                host,
                port,
                slots: args.slots.into(),
                name,
                work_dir: args.work_dir,
                is_bound: args.bound,
                insecure_network: args.insecure_network,
            };
            execute(options, note).await
        }
    }
}

/// `rollstream cluster`, in a build that can't.
#[cfg(not(feature = "cluster"))]
pub(super) async fn cluster(_: ClusterArgs) -> Result<(), Error> {
    required()
}

/// Collects a sweep on a cluster.
#[cfg(feature = "cluster")]
pub(super) async fn collect(sweep: Sweep, cluster: &Cluster) -> Result<SweepReport, Error> {
    crate::cluster::collect(sweep, cluster).await
}

/// Collects a sweep on a cluster, in a build that can't.
#[cfg(not(feature = "cluster"))]
pub(super) async fn collect(_: Sweep, _: &Cluster) -> Result<SweepReport, Error> {
    Err(missing())
}

/// Refuses clusters in a build that knows none.
pub(super) fn required() -> Result<(), Error> {
    #[cfg(feature = "cluster")]
    return Ok(());
    #[cfg(not(feature = "cluster"))]
    Err(missing())
}

#[cfg(not(feature = "cluster"))]
fn missing() -> Error {
    Error::Usage(
        "this rollstream was built without clusters: `cargo install rollstream --features cluster` builds one with them"
            .to_owned(),
    )
}
