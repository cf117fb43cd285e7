//! [`ShardWorker`]: runs the shards that an executor is given.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::future::pending;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ClusterError;
use super::admission::Claims;
use super::board::{Board, Control, FoundSpec, INTERVAL, Order, ShardReport, Spec, Withdrawal};
use super::limits;
use super::plan::ShardStep;
use super::slots::Slots;
use crate::config::{self, Settings, Span};
use crate::error::Error;
use crate::progress::{AgentProgress, Progress};
use crate::run::{DispatchBudget, Registry, Shutdown, StopReason};
use crate::store::{RunStore, StoreError};
use crate::sweep::{CallLimits, Sweep};

/// An executor that leaves waits this much longer than its calls have: their answers land.
const LANDING: Duration = Duration::from_secs(10);

/// The most notices of a shard that its driver shows.
const MOST_NOTICES: usize = 20;

/// The interval of copies of the journal: a machine of a cluster may be lost with what it has not copied.
const CHECKPOINTS: Span = Span::from_secs(1);

/// A driver that is silent for this long is dead.
const DRIVER_LEASE: Duration = Duration::from_secs(60);

/// An executor has this many shards for each slot at most. One sends, and the others wait for their last answers.
const MOST_SHARDS: usize = 4;

/// The pause between two looks of an executor that waits to be admitted.
const LOOK: Duration = Duration::from_millis(500);

/// A driver that is silent for this long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Runs shards in an executor, which Ballista's sessions know it by.
#[derive(Debug)]
pub(super) struct ShardWorker {
    /// Where shards run: Ballista's own threads are as few as the slots, and give way to all others.
    runtime: Handle,
    name: String,
    slots: Slots,
    state_dir: Option<PathBuf>,
    /// Ends all shards: nothing more is sent.
    leave: CancellationToken,
    /// Why the executor has withdrawn.
    withdrawn: OnceLock<String>,
    /// Shards that run, and the longest grace time of their calls.
    active: watch::Sender<usize>,
    grace: watch::Sender<Duration>,
    /// By the digests of their specs.
    drivers: Mutex<HashMap<String, KnownDriver>>,
    claims: Claims,
}

/// A driver, and what its shards share.
#[derive(Debug)]
struct KnownDriver {
    /// Its last beat, and when it was new.
    beat: u64,
    heard: Instant,
    shared: Shared,
    /// Whether it lets this executor send.
    is_admitted: bool,
}

/// What all shards of a sweep have in an executor.
#[derive(Debug, Clone)]
struct Shared {
    limits: CallLimits,
    /// The sweep, once a shard of it has begun.
    sweep: Arc<OnceCell<Sweep>>,
}

/// A shard that runs.
struct Active<'a>(&'a ShardWorker);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.send_modify(|active| *active -= 1);
    }
}

impl ShardWorker {
    /// Creates the worker of this process, on whose runtime the shards run.
    pub(super) fn new(name: String, slots: usize, state_dir: Option<PathBuf>) -> Self {
        Self {
            runtime: Handle::current(),
            claims: Claims::new(name.clone(), slots),
            name,
            slots: Slots::new(slots),
            state_dir,
            leave: CancellationToken::new(),
            withdrawn: OnceLock::new(),
            active: watch::Sender::new(0),
            grace: watch::Sender::new(Duration::ZERO),
            drivers: Mutex::default(),
        }
    }

    /// Returns the free slots, for Ballista.
    pub(super) fn free(&self) -> Arc<Semaphore> {
        self.slots.free()
    }

    /// Returns what the shards of a sweep share in this process.
    fn shared(&self, board: &Board, spec: &Spec) -> Shared {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.retain(|_, driver| driver.heard.elapsed() < FORGOTTEN);
        let elapsed = spec.began.elapsed().unwrap_or_default();
        let driver = drivers.entry(board.digest().to_owned());
        let driver = driver.or_insert_with(|| KnownDriver {
            beat: 0,
            heard: Instant::now(),
            is_admitted: false,
            shared: Shared {
                limits: CallLimits {
                    registry: Arc::new(Registry::of_part(self.part(spec))),
                    budget: DispatchBudget::of(&spec.settings, elapsed),
                    shards: self.slots.count() as u64,
                },
                sweep: Arc::default(),
            },
        });
        driver.shared.clone()
    }

    /// Returns the part of the slots of a sweep that this executor has.
    fn part(&self, spec: &Spec) -> f64 {
        (self.slots.count() as f64 / spec.slots.max(1) as f64).min(1.0)
    }

    /// Returns what a driver wants, by its last control object. One that was silent for longer than `lease` is dead, and what
    /// it began is to end.
    async fn order(&self, board: &Board, lease: Duration) -> Order {
        // A store that does not answer tells as little as a driver that is silent.
        let control = board.control().await.unwrap_or_default();
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = drivers.get_mut(board.digest()) else {
            return Order::Drain;
        };
        let control = control.unwrap_or(Control {
            beat: driver.beat,
            ..Control::default()
        });
        if control.beat != driver.beat {
            (driver.beat, driver.heard) = (control.beat, Instant::now());
        }
        driver.is_admitted = control.admitted.contains(&self.name);
        for (agent, until) in control.paused {
            driver.shared.limits.registry.pause(&agent, until);
        }
        if control.order == Order::Send && driver.heard.elapsed() > lease {
            return Order::Drain;
        }
        control.order
    }

    /// Waits until the driver admits this executor or stops the sweep, or until the executor leaves.
    async fn admission(&self, board: &Board, lease: Duration) {
        let is_admitted = || {
            let drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
            let driver = drivers.get(board.digest());
            driver.is_some_and(|driver| driver.is_admitted)
        };
        while self.order(board, lease).await == Order::Send && !is_admitted() {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.leave.cancelled() => return,
            }
        }
    }

    /// Leaves the cluster: nothing more is sent.
    pub(super) fn leave(&self) {
        self.leave.cancel();
    }

    /// Waits until this executor leaves.
    pub(super) async fn leaving(&self) {
        self.leave.cancelled().await;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.leave.is_cancelled()
    }

    /// Returns why the executor has withdrawn, if it has.
    pub(super) fn withdrawn(&self) -> Option<String> {
        self.withdrawn.get().cloned()
    }

    /// Waits until the shards have ended, for as long as their calls may take.
    pub(super) async fn idle(&self) {
        let grace = *self.grace.borrow();
        let mut active = self.active.subscribe();
        let ended = active.wait_for(|active| *active == 0);
        let _ = tokio::time::timeout(grace.saturating_add(LANDING), ended).await;
    }

    /// Runs a shard to its end, unless dropped. If the executor leaves first, this never returns: Ballista gives the shard to
    /// another when this process has ended.
    ///
    /// # Errors
    /// The shard's task panicked.
    pub(super) async fn run(
        self: Arc<Self>,
        step: ShardStep,
        number: u32,
    ) -> Result<(), JoinError> {
        let sending = TaskTracker::new();
        let (own, of_shard) = (Arc::clone(&self), sending.clone());
        let mut shard = JoinSet::new();
        let work = async move { own.work(&step, number, &of_shard).await };
        shard.spawn_on(work, &self.runtime);
        let ended = tokio::select! {
            ended = shard.join_next() => return ended.unwrap_or(Ok(())),
            () = self.lend_slot(&sending) => shard.join_next().await,
        };
        self.slots.take_back();
        ended.unwrap_or(Ok(()))
    }

    /// Lends the slot of a shard when all is sent, unless too many shards wait already or the executor leaves.
    async fn lend_slot(&self, sending: &TaskTracker) {
        sending.wait().await;
        let mut active = self.active.subscribe();
        let most = self.slots.count() * MOST_SHARDS;
        // It can't fail: the other end is ours.
        let _ = active.wait_for(|active| *active < most).await;
        if self.is_stopped() {
            pending::<()>().await;
        }
        self.slots.lend();
    }

    async fn work(&self, step: &ShardStep, number: u32, sending: &TaskTracker) {
        self.active.send_modify(|active| *active += 1);
        let active = Active(self);
        let worked = self.work_patiently(step, number, sending).await;
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
        // Where the run is not, nobody reads it, and it would pass for what is left of a run.
        let is_elsewhere = matches!(error.cause(), Some(ClusterError::NoRun(_)));
        if !is_elsewhere && let Ok(board) = self.board(step) {
            let withdrawal = Withdrawal {
                executor: self.name.clone(),
                why,
            };
            // The process says it too.
            let _ = board.withdraw(&withdrawal).await;
        }
        self.leave.cancel();
    }

    fn board(&self, step: &ShardStep) -> Result<Board, StoreError> {
        let run = RunStore::open(&step.run, self.state_dir.as_deref())?;
        Ok(Board::new(run, &step.spec))
    }

    /// Waits for a store that is out of reach: it may be for everybody.
    async fn work_patiently(
        &self,
        step: &ShardStep,
        number: u32,
        sending: &TaskTracker,
    ) -> Result<(), Error> {
        let until = Instant::now() + DRIVER_LEASE;
        loop {
            match self.try_work(step, number, sending).await {
                Err(error)
                    if error.cause().is_some_and(StoreError::may_pass)
                        && Instant::now() < until
                        && !self.is_stopped() =>
                {
                    tokio::time::sleep(INTERVAL).await;
                }
                worked => return worked,
            }
        }
    }

    async fn try_work(
        &self,
        step: &ShardStep,
        number: u32,
        sending: &TaskTracker,
    ) -> Result<(), Error> {
        if step.run.is_empty() {
            return Err(ClusterError::Unreadable.into());
        }
        let board = self.board(step)?;
        let spec = match board.spec().await? {
            FoundSpec::Readable(spec) => *spec,
            FoundSpec::OtherVersion(driver) => return Err(ClusterError::Version { driver }.into()),
            FoundSpec::Unreadable => return Err(ClusterError::Unreadable.into()),
            // A task of a sweep that has ended.
            FoundSpec::Missing => return Ok(()),
            FoundSpec::NoRun => return Err(ClusterError::NoRun(step.run.clone()).into()),
        };
        let shared = self.shared(&board, &spec);
        let settings = limits::of_executor(spec.settings.clone(), self.part(&spec));
        let shard = format!("{number}/{}", step.count).parse();
        let shard: config::Shard = shard.map_err(Error::Usage)?;
        let settings = Settings {
            output: Some(step.run.clone()),
            state_dir: self.state_dir.clone(),
            shard: Some(shard),
            checkpoint_interval: settings.checkpoint_interval.min(CHECKPOINTS),
            ..settings
        };
        let lease = settings.lease.map_or(DRIVER_LEASE, Span::duration);
        if !spec.admits {
            return self
                .work_on(&board, settings, shard, lease, shared, sending)
                .await;
        }
        self.claims.check(&board).await?;
        let mut worked = pin!(async {
            self.claims.put(&board, 1).await?;
            self.admission(&board, lease).await;
            self.work_on(&board, settings, shard, lease, shared, sending)
                .await
        });
        let worked = tokio::select! {
            worked = &mut worked => worked,
            namesake = self.claims.keep(&board) => {
                self.withdraw(step, &namesake.into()).await;
                worked.await
            }
        };
        // A claim that is not renewed ends.
        let _ = self.claims.put(&board, -1).await;
        worked
    }

    /// Collects a shard, unless the driver or this executor has stopped.
    async fn work_on(
        &self,
        board: &Board,
        settings: Settings,
        shard: config::Shard,
        lease: Duration,
        Shared { limits, sweep }: Shared,
        sending: &TaskTracker,
    ) -> Result<(), Error> {
        if self.order(board, lease).await != Order::Send || self.is_stopped() {
            return Ok(());
        }
        let grace = settings.grace.duration();
        self.grace
            .send_modify(|longest| *longest = grace.max(*longest));
        let sweep = sweep.get_or_try_init(|| Sweep::prepare(settings)).await?;
        let sweep = sweep.for_shard(shard, self.slots.count(), sending.clone());
        let (progress, shutdown) = (sweep.progress(), sweep.shutdown());
        let shard = Shard {
            worker: self,
            board,
            number: shard.index(),
            lease,
            before: OnceLock::new(),
            registry: Arc::clone(&limits.registry),
            progress: &progress,
            shutdown,
        };
        let mut report = ShardReport {
            executor: self.name.clone(),
            works: true,
            ..ShardReport::default()
        };
        let done = tokio::select! {
            done = sweep.collect_share(limits, |progress| {
                let _ = shard.before.set(progress.by_agent());
            }) => done,
            never = shard.follow(&mut report) => match never {},
        };
        report.works = false;
        report.is_over = done.is_ok() && !shard.shutdown.is_stopping();
        shard.tell(&mut report).await;
        done
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
    registry: Arc<Registry>,
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
        report.beat += 1;
        report.before.clone_from(before);
        report.now = self.progress.by_agent();
        report.in_flight = self.progress.in_flight();
        report.is_spent = self.shutdown.reason() == Some(StopReason::DispatchBudget);
        report.paused = self.registry.pauses();
        let room = MOST_NOTICES - report.notices.len();
        let notices = self.progress.take_notices();
        report.notices.extend(notices.into_iter().take(room));
        let _ = self.board.report(self.number, report).await;
    }
}
