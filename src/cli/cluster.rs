//! `rollstream cluster`: the processes of a cluster, files to start them with, and `collect --cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

#[cfg(feature = "cluster")]
use super::output::note;
use super::output::print;
use crate::config::Cluster;
use crate::error::Error;
use crate::guide;

pub(super) const EXAMPLES: &str = "\
Examples:
  rollstream collect --config sweep.toml --cluster local:4
  rollstream cluster scheduler --bind 10.0.0.1:50050 --insecure-network
  rollstream cluster executor --scheduler grpc://10.0.0.1:50050 \\
      --slots 4 --insecure-network
  rollstream collect --config sweep.toml --cluster grpc://10.0.0.1:50050 \\
      --cluster-slots 16 --insecure-network
  rollstream cluster template kubernetes > rollstream.yaml

Secrets come from the environment of each executor. `rollstream help cluster` says more,\n`rollstream help deploying` how Kubernetes and Slurm start them.";

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
    /// Print a file that starts a cluster, or a share of a sweep, elsewhere
    Template(TemplateArgs),
}

/// The options of `cluster template`.
#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// Which file
    #[arg(value_parser = PossibleValuesParser::new(guide::TEMPLATES.iter().map(|(name, _)| *name)))]
    pub name: String,
}

/// The options of `cluster scheduler`.
#[derive(Debug, Args)]
pub struct SchedulerArgs {
    /// Address to listen at; port 0 is a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:50050")]
    pub bind: SocketAddr,
    /// Directory with tls.crt, tls.key and ca.crt: admit whoever has a certificate of that CA
    #[arg(long, value_name = "DIR")]
    pub cluster_tls: Option<PathBuf>,
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
    /// Shards that it sends at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub slots: u16,
    /// Name of this executor, unique in the cluster [default: host and process]
    #[arg(long)]
    pub name: Option<String>,
    /// Directory for small temporary files [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// Directory with tls.crt, tls.key and ca.crt, which the scheduler admits
    #[arg(long, value_name = "DIR")]
    pub cluster_tls: Option<PathBuf>,
    /// Connect to another machine, though connections are neither encrypted nor authenticated
    #[arg(long)]
    pub insecure_network: bool,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// `rollstream cluster`: runs a process of a cluster, or prints a template.
pub(super) async fn cluster(args: ClusterArgs) -> Result<(), Error> {
    match args.process {
        ClusterProcess::Scheduler(args) => scheduler(args).await,
        ClusterProcess::Executor(args) => executor(args).await,
        ClusterProcess::Template(args) => {
            let mut templates = guide::TEMPLATES.iter();
            let template = templates.find(|(name, _)| *name == args.name);
            print(template.map_or("", |(_, text)| text)).map(drop)
        }
    }
}

#[cfg(feature = "cluster")]
async fn scheduler(args: SchedulerArgs) -> Result<(), Error> {
    use crate::cluster::{Network, Scheduler};

    let host = args.bind.ip().to_string();
    let network = Network::new(&host, &args.cluster_tls, args.insecure_network)?;
    let scheduler = Scheduler::start(args.bind, &network).await?;
    note(format!(
        "the scheduler listens at grpc://{}",
        scheduler.address()
    ));
    tokio::select! {
        served = scheduler.serve() => Ok(served?),
        stopped = super::signals::interrupted() => stopped,
    }
}

#[cfg(not(feature = "cluster"))]
async fn scheduler(_: SchedulerArgs) -> Result<(), Error> {
    required()
}

#[cfg(feature = "cluster")]
async fn executor(args: ExecutorArgs) -> Result<(), Error> {
    use crate::cluster::{ExecutorOptions, Network, execute};

    let Cluster::At { host, port } = args.scheduler else {
        let why = "--scheduler is the address of a scheduler, such as grpc://host:50050";
        return Err(Error::Usage(why.to_owned()));
    };
    let name = args.name.unwrap_or_else(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.unwrap_or_else(|_| "executor".to_owned());
        format!("{}-{}", host.trim(), std::process::id())
    });
    let options = ExecutorOptions {
        network: Network::new(&host, &args.cluster_tls, args.insecure_network)?,
        host,
        port,
        slots: args.slots.into(),
        name,
        work_dir: args.work_dir,
        state_dir: super::runs::state_dir(),
        is_bound: args.bound,
    };
    execute(options, note).await
}

#[cfg(not(feature = "cluster"))]
async fn executor(_: ExecutorArgs) -> Result<(), Error> {
    required()
}

/// Refuses clusters in a build that knows none.
pub(super) fn required() -> Result<(), Error> {
    if cfg!(feature = "cluster") {
        return Ok(());
    }
    let why = "this rollstream was built without clusters: `cargo install --path . --features cluster`, in a clone of its \
               repository, builds one with them";
    Err(Error::Usage(why.to_owned()))
}
