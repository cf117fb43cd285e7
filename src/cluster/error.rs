use std::path::PathBuf;

use crate::error::Fatal;

/// Why a cluster can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(
        "{host} is not a loopback address: whoever reaches the scheduler can run plans with the credentials of the executors, \
         and nothing is encrypted. Add --cluster-tls, or, in a network that you trust, --insecure-network"
    )]
    Network { host: String },
    #[error("cannot read {}, which --cluster-tls needs: {source}", path.display())]
    Certificate {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "--cluster-slots is missing: give the --slots of all executors together, by which the limits of calls are divided"
    )]
    Slots,
    #[error("{option} can't be combined with --cluster: {remedy}")]
    Option {
        option: &'static str,
        remedy: &'static str,
    },
    #[error(
        "{what} is less than the {slots} slots of the cluster, of which each needs its share: use a greater limit or fewer slots"
    )]
    Limit { what: String, slots: usize },
    #[error("'{0}' is not the name of an executor: use letters, digits, '-', '_' and '.'")]
    Name(String),
    #[error(
        "another executor of this name works on the sweep, and both would have the limits of one: give each its own --name"
    )]
    Namesake,
    #[error("cannot {action} the scheduler at {address}: {source}")]
    Scheduler {
        action: &'static str,
        address: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the scheduler at {address} refuses the plan: {why}")]
    Refused { address: String, why: String },
    #[error("cannot start an executor: {0}")]
    Start(#[source] std::io::Error),
    #[error("the executor ended: {0}")]
    Executor(#[source] ballista_core::error::BallistaError),
    #[error("the plan or the settings of the run can't be read: they are of another version of rollstream than {}", env!("CARGO_PKG_VERSION"))]
    Unreadable,
    #[error(
        "this executor finds no run at {0}: the output must be a place that all machines share under the same name"
    )]
    NoRun(String),
    #[error("the driver is rollstream {driver}, and this executor is {}: use the same version", env!("CARGO_PKG_VERSION"))]
    Version { driver: String },
    #[error("the executor '{name}' withdraws: {why}")]
    Withdrawn { name: String, why: String },
}

impl Fatal for ClusterError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Network { .. }
            | Self::Certificate { .. }
            | Self::Slots
            | Self::Option { .. }
            | Self::Limit { .. }
            | Self::Name(_) => crate::error::USAGE,
            _ => crate::error::FAILURE,
        }
    }
}
