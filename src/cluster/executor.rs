//! The process that runs shards: Ballista's executor around [`ShardWorker`].

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

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
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::board::{Board, Control, FoundSpec, INTERVAL, Order, ShardReport, Withdrawal};
use super::local::end_with_parent;
use super::plan::{ShardCodec, ShardStep};
use super::scheduler::Client;
use super::{ClusterError, Network};
use crate::config::{Bytes, Cluster, MemoryPlan, Settings, Span};
use crate::error::Error;
use crate::http::raise_open_files;
use crate::progress::{AgentProgress, Progress};
use crate::run::{Shutdown, StopReason};
use crate::store::{RunStore, StoreError};
use crate::sweep::Sweep;

/// An executor that leaves waits this much longer than its calls have: their answers land.
const LANDING: Duration = Duration::from_secs(10);

/// A driver that is silent for this long is dead.
const DRIVER_LEASE: Duration = Duration::from_secs(60);

/// The interval of copies of the journal: a machine of a cluster may be lost with what it has not copied.
const CHECKPOINTS: Span = Span::from_secs(1);

/// The most notices of a shard that its driver shows.
const MOST_NOTICES: usize = 20;

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
    std::fs::create_dir_all(&work_dir).map_err(ClusterError::Start)?;
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
    let worker = Arc::new(ShardWorker::new(name.clone(), slots));
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
        () = worker.leave.cancelled() => {}
    }
    worker.leave.cancel();
    tell("sends nothing more, and waits for the calls in flight".to_owned());
    worker.idle().await;
    // Else the scheduler learns it by silence.
    if let Ok(mut scheduler) = Client::connect(&address, &network).await {
        let _ = scheduler.executor_stopped(&id).await;
    }
    let why = worker.withdrawn.get().cloned();
    match why {
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

/// Runs shards in an executor, which Ballista's sessions know it by.
#[derive(Debug)]
pub(super) struct ShardWorker {
    name: String,
    slots: usize,
    /// Ends all shards: nothing more is sent.
    leave: CancellationToken,
    /// Why the executor has withdrawn.
    withdrawn: OnceLock<String>,
    /// Shards that run, and the longest grace time of their calls.
    active: watch::Sender<usize>,
    grace: watch::Sender<Duration>,
    /// The last beat of each driver, by the digest of its spec, and when it was new.
    drivers: Mutex<HashMap<String, (u64, Instant)>>,
}

/// A shard that runs.
struct Active<'a>(&'a ShardWorker);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.send_modify(|active| *active -= 1);
    }
}

impl ShardWorker {
    fn new(name: String, slots: usize) -> Self {
        Self {
            name,
            slots,
            leave: CancellationToken::new(),
            withdrawn: OnceLock::new(),
            active: watch::Sender::new(0),
            grace: watch::Sender::new(Duration::ZERO),
            drivers: Mutex::default(),
        }
    }

    /// Returns what a driver wants, by its last control object. One that was silent for longer than `lease` is dead, and what
    /// it began is to end.
    async fn order(&self, board: &Board, lease: Duration) -> Order {
        // A store that does not answer tells as little as a driver that is silent.
        let control = board.control().await.unwrap_or_default();
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        let first = (0, Instant::now());
        let (beat, heard) = drivers.entry(board.digest().to_owned()).or_insert(first);
        let control = control.unwrap_or(Control {
            beat: *beat,
            ..Control::default()
        });
        if control.beat != *beat {
            (*beat, *heard) = (control.beat, Instant::now());
        }
        if control.order == Order::Send && heard.elapsed() > lease {
            return Order::Drain;
        }
        control.order
    }

    fn is_stopped(&self) -> bool {
        self.leave.is_cancelled()
    }

    /// Waits until the shards have ended, for as long as their calls may take.
    async fn idle(&self) {
        let grace = *self.grace.borrow();
        let mut active = self.active.subscribe();
        let ended = active.wait_for(|active| *active == 0);
        let _ = tokio::time::timeout(grace.saturating_add(LANDING), ended).await;
    }

    /// Runs a shard to its end. If the executor leaves first, this never returns: Ballista gives the shard to another when
    /// this process has ended.
    pub(super) async fn work(&self, step: &ShardStep, number: u32) {
        self.active.send_modify(|active| *active += 1);
        let active = Active(self);
        let worked = self.try_work(step, number).await;
        drop(active);
        match worked {
            // The shard has a new owner, which goes on with it.
            Err(error) if matches!(error.cause(), Some(StoreError::LockLost { .. })) => {}
            Err(error) => self.withdraw(step, &error).await,
            Ok(()) => {}
        }
        if self.is_stopped() {
            pending::<()>().await;
        }
    }

    /// Says why this executor does not work on the sweep, and ends it.
    async fn withdraw(&self, step: &ShardStep, error: &Error) {
        let why = error.report();
        if self.withdrawn.set(why.clone()).is_err() {
            return;
        }
        if let Ok(run) = RunStore::open(&step.run, None) {
            let withdrawal = Withdrawal {
                executor: self.name.clone(),
                why,
            };
            let board = Board::new(run, &step.spec);
            // The process says it too.
            let _ = board.withdraw(&withdrawal).await;
        }
        self.leave.cancel();
    }

    async fn try_work(&self, step: &ShardStep, number: u32) -> Result<(), Error> {
        if step.run.is_empty() {
            return Err(ClusterError::Unreadable.into());
        }
        let board = Board::new(RunStore::open(&step.run, None)?, &step.spec);
        let settings = match board.spec().await? {
            FoundSpec::Readable(settings) => *settings,
            FoundSpec::OtherVersion(driver) => return Err(ClusterError::Version { driver }.into()),
            FoundSpec::Unreadable => return Err(ClusterError::Unreadable.into()),
            // A task of a sweep that has ended.
            FoundSpec::Missing => return Ok(()),
        };
        let settings = self.of_shard(settings, step, number)?;
        let lease = settings.lease.map_or(DRIVER_LEASE, Span::duration);
        if self.order(&board, lease).await != Order::Send || self.is_stopped() {
            return Ok(());
        }
        let grace = settings.grace.duration();
        self.grace
            .send_modify(|longest| *longest = grace.max(*longest));
        let sweep = Sweep::prepare(settings).await?;
        let (progress, shutdown) = (sweep.progress(), sweep.shutdown());
        let shard = Shard {
            worker: self,
            board: &board,
            number,
            lease,
            before: OnceLock::new(),
            progress: &progress,
            shutdown,
        };
        let mut report = ShardReport {
            executor: self.name.clone(),
            works: true,
            ..ShardReport::default()
        };
        let done = tokio::select! {
            done = sweep.collect_share(|progress| {
                let _ = shard.before.set(progress.by_agent());
            }) => done,
            never = shard.follow(&mut report) => match never {},
        };
        report.works = false;
        shard.tell(&mut report).await;
        done
    }

    /// Returns the settings for one shard of a sweep.
    fn of_shard(
        &self,
        settings: Settings,
        step: &ShardStep,
        number: u32,
    ) -> Result<Settings, Error> {
        let shard = format!("{number}/{}", step.count).parse();
        let memory = (MemoryPlan::of(&settings).total >> 20) / self.slots.max(1) as u64;
        Ok(Settings {
            output: Some(step.run.clone()),
            shard: Some(shard.map_err(Error::Usage)?),
            memory: Some(Bytes::from_mib(u32::try_from(memory).unwrap_or(u32::MAX))),
            checkpoint_interval: settings.checkpoint_interval.min(CHECKPOINTS),
            ..settings
        })
    }
}

/// A shard at work, as its driver sees it.
struct Shard<'a> {
    worker: &'a ShardWorker,
    board: &'a Board,
    number: u32,
    /// A driver that is silent for longer is dead.
    lease: Duration,
    /// The counts at its begin.
    before: OnceLock<BTreeMap<String, AgentProgress>>,
    progress: &'a Progress,
    shutdown: Shutdown,
}

impl Shard<'_> {
    /// Reports to the driver, and does what it orders, until dropped.
    async fn follow(&self, report: &mut ShardReport) -> Infallible {
        loop {
            self.tell(report).await;
            match self.worker.order(self.board, self.lease).await {
                Order::Send => {}
                Order::Drain => self.shutdown.stop(StopReason::Signal),
                Order::Drop => self.shutdown.abort(),
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.worker.leave.cancelled(), if !self.shutdown.is_stopping() => {
                    self.shutdown.stop(StopReason::Signal);
                }
            }
        }
    }

    /// Puts the report on the board, if the shard has begun. A report that is lost is followed by another.
    async fn tell(&self, report: &mut ShardReport) {
        let Some(before) = self.before.get() else {
            return;
        };
        report.before.clone_from(before);
        report.now = self.progress.by_agent();
        report.in_flight = self.progress.in_flight();
        let room = MOST_NOTICES - report.notices.len();
        let notices = self.progress.take_notices();
        report.notices.extend(notices.into_iter().take(room));
        let _ = self.board.report(self.number, report).await;
    }
}
