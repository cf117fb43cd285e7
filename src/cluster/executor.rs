//! The process that runs shards: Ballista's polling for tasks around a [`ShardWorker`], which says how many it takes.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use ballista_core::BALLISTA_PROTOCOL_VERSION;
use ballista_core::extension::SessionConfigExt;
use ballista_core::ids::new_instance_id;
use ballista_core::serde::protobuf::ExecutorRegistration;
use ballista_core::serde::scheduler::{
    ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use ballista_core::serde::{BallistaCodec, BallistaLogicalExtensionCodec};
use ballista_executor::execution_loop::poll_loop;
use ballista_executor::executor::Executor;
use ballista_executor::health::ExecutorHealth;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use futures::FutureExt;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use super::local::end_with_parent;
use super::plan::ShardCodec;
use super::scheduler::Client;
use super::worker::ShardWorker;
use super::{ClusterError, Network};
use crate::config::Cluster;
use crate::error::Error;
use crate::http::raise_open_files;
use crate::store::StoreError;

/// An executor as the command line asks for it.
#[derive(Debug)]
pub(crate) struct ExecutorOptions {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Shards that it sends at a time.
    pub(crate) slots: usize,
    /// Unique in the cluster.
    pub(crate) name: String,
    /// For Ballista's small files; a temporary one by default.
    pub(crate) work_dir: Option<PathBuf>,
    /// For the journals of runs in object stores; that of this user by default.
    pub(crate) state_dir: Option<PathBuf>,
    /// Ends the process when standard input ends.
    pub(crate) is_bound: bool,
    pub(crate) network: Network,
}

/// Runs shards until a signal, or until the executor withdraws. Says what it does by `tell`.
///
/// # Errors
/// The scheduler can't be reached, or the executor has withdrawn.
pub(crate) async fn execute(options: ExecutorOptions, tell: impl Fn(String)) -> Result<(), Error> {
    let ExecutorOptions {
        host,
        port,
        slots,
        name,
        work_dir,
        state_dir,
        is_bound,
        network,
    } = options;
    check_name(&name)?;
    let address = Cluster::At {
        host: host.clone(),
        port,
    }
    .to_string();
    raise_open_files();
    let temporary = match &work_dir {
        Some(_) => None,
        None => Some(TempDir::new().map_err(ClusterError::Start)?),
    };
    let work_dir = work_dir.or_else(|| Some(temporary.as_ref()?.path().to_owned()));
    let work_dir = work_dir.unwrap_or_default();
    std::fs::create_dir_all(&work_dir).map_err(StoreError::file("create", &work_dir))?;
    if is_bound {
        end_with_parent(work_dir.clone()).map_err(ClusterError::Start)?;
    }
    // A process that is started again under its name must not pass for the one that died: the scheduler would wait for that
    // one's tasks, or refuse this one. Drivers know their own executors by name.
    let id = if is_bound {
        name.clone()
    } else {
        format!("{name}-{}", new_instance_id())
    };
    if !is_bound {
        tell(format!(
            "executor '{name}' has {slots} slots, and asks the scheduler at {host}:{port} for shards"
        ));
    }
    let worker = Arc::new(ShardWorker::new(name.clone(), slots, state_dir));
    let (in_session, runtime) = (Arc::clone(&worker), Arc::new(RuntimeEnv::default()));
    let vcores = u32::try_from(slots).unwrap_or(u32::MAX);
    let specification = ExecutorSpecification::default().with_vcores(vcores);
    let executor = Executor::new_basic(
        ExecutorRegistration {
            id: id.clone(),
            host: Some(name.clone()),
            // Nobody fetches anything from an executor, so it listens nowhere.
            port: 0,
            grpc_port: 0,
            specification: Some(specification.into()),
            os_info: Some(ExecutorOperatingSystemSpecification::default().into()),
            ballista_protocol_version: BALLISTA_PROTOCOL_VERSION,
        },
        &work_dir.display().to_string(),
        // Nothing but the numbers of shards goes through Ballista.
        Arc::new(move |_| Ok(Arc::clone(&runtime))),
        Arc::new(move || {
            SessionConfig::new_with_ballista().with_extension(Arc::clone(&in_session))
        }),
        slots,
    );
    let codec = BallistaCodec::<LogicalPlanNode, PhysicalPlanNode>::new(
        Arc::new(BallistaLogicalExtensionCodec::default()),
        Arc::new(ShardCodec::default()),
    );
    let run = async {
        let scheduler = Client::wait_for(&address, &network).await?.into_inner();
        let (free, health) = (worker.free(), ExecutorHealth::new());
        let ended = poll_loop(
            scheduler,
            Arc::new(executor),
            codec,
            None,
            Some(free),
            health,
        );
        ended.await.map_err(ClusterError::Executor)
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ClusterError::Start)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ClusterError::Start)?;
    // What it began runs as long as it does.
    let mut run = pin!(run.fuse());
    tokio::select! {
        ended = &mut run => ended?,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = worker.leaving() => {}
    }
    worker.leave();
    tell("sends nothing more, and waits for the calls in flight".to_owned());
    tokio::select! {
        () = worker.idle() => {}
        // Else the scheduler takes this executor for dead.
        _ = &mut run => worker.idle().await,
    }
    // Else the scheduler learns it by silence.
    if let Ok(mut scheduler) = Client::connect(&address, &network).await {
        let _ = scheduler.executor_stopped(&id).await;
    }
    match worker.withdrawn() {
        Some(why) => Err(ClusterError::Withdrawn { name, why }.into()),
        None => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), ClusterError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(ClusterError::Name(name.to_owned()));
    }
    Ok(())
}
