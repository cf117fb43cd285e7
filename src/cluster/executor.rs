//! The process that runs shards: Ballista's executor around a [`ShardWorker`].

use std::path::PathBuf;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigExt;
use ballista_core::ids::new_instance_id;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_executor::shutdown::Shutdown as BallistaShutdown;
use datafusion::prelude::SessionConfig;
use tempfile::TempDir;
use tokio::runtime::Handle;
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
    /// Shards that run at a time.
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
    tell(format!(
        "executor '{name}' has {slots} slots, and asks the scheduler at {host}:{port} for shards"
    ));
    let (in_ballista, scheduler) = (network.clone(), address.clone());
    let worker = Arc::new(ShardWorker::new(name.clone(), slots, state_dir));
    let in_session = Arc::clone(&worker);
    let config = ExecutorProcessConfig {
        executor_id: id.clone(),
        // Else the scheduler asks the connection for it.
        external_host: Some(name.clone()),
        port: 0,
        scheduler_host: host.clone(),
        scheduler_port: port,
        scheduler_connect_timeout_seconds: super::scheduler::CONNECT_SECONDS,
        vcores: slots,
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        work_dir: Some(work_dir.display().to_string()),
        // Nothing but the numbers of shards goes through Ballista.
        memory_pool_size: Some(0),
        override_config_producer: Some(Arc::new(move || {
            SessionConfig::new_with_ballista().with_extension(Arc::clone(&in_session))
        })),
        override_physical_codec: Some(Arc::new(ShardCodec::default())),
        override_create_grpc_client_endpoint: Some(Arc::new(move |_| {
            Ok(in_ballista.endpoint(&scheduler)?)
        })),
        // Nobody fetches anything from an executor, so it listens nowhere. The task belongs to Ballista.
        override_arrow_flight_service: Some(Arc::new(|_, _, mut shutdown: BallistaShutdown, _| {
            Handle::current().spawn(async move {
                shutdown.recv().await;
                Ok::<(), BallistaError>(())
            })
        })),
        ..ExecutorProcessConfig::default()
    };
    let run = async {
        // Ballista would not say why it can't connect.
        Client::wait_for(&address, &network).await?;
        let ended = start_executor_process(Arc::new(config)).await;
        ended.map_err(ClusterError::Executor)
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ClusterError::Start)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ClusterError::Start)?;
    tokio::select! {
        ended = run => {
            // A signal ends Ballista's part, too.
            if !worker.is_stopped() {
                ended?;
            }
        }
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        () = worker.leaving() => {}
    }
    worker.leave();
    tell("sends nothing more, and waits for the calls in flight".to_owned());
    worker.idle().await;
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
