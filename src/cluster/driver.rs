//! [`collect`]: a sweep whose shards run on a cluster, as its driver sees it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::admission::Admission;
use super::board::{Board, Control, INTERVAL, Known, Order, ShardReport, Spec};
use super::limits;
use super::local::LocalExecutors;
use super::overview::Overview;
use super::plan::ShardStep;
use super::scheduler::{Client, Job, Scheduler};
use super::{ClusterError, Network};
use crate::config::{Cluster, Settings};
use crate::error::Error;
use crate::progress::{AgentProgress, Phase, Progress};
use crate::report::SweepReport;
use crate::run::{FailureLimits, Shutdown, StopReason};
use crate::store::{RunStore, StoreError};
use crate::sweep::{Begun, DrivenSweep, Sweep};

/// Shards for each slot: executors that are late find work, and the last shards are short.
const SHARDS_PER_SLOT: usize = 8;

/// The pause between two looks at the job and at local executors.
const TICK: Duration = Duration::from_millis(200);

/// A scheduler that does not answer for this long has gone.
const SCHEDULER_PATIENCE: Duration = Duration::from_secs(60);

/// A scheduler that does not know a job after this time has lost it.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// Shards that are incomplete when a job has ended are submitted again, this often with the first time.
const MOST_JOBS: usize = 4;

/// Collects a sweep on a cluster: begins the run, lets executors work on its shards, and ends it.
///
/// # Errors
/// The settings do not fit a cluster, there is no cluster, or the run can't be begun or ended, as [`Sweep::collect`] says.
pub(crate) async fn collect(sweep: Sweep, cluster: &Cluster) -> Result<SweepReport, Error> {
    let (slots, network) = limits::slots(sweep.settings(), cluster)?;
    let settings = limits::for_executors(sweep.settings(), slots)?;
    let engine = Engine::start(cluster, &network, sweep.settings()).await?;
    let (driven, begun) = DrivenSweep::begin(sweep).await?;
    let run = begun.run.clone();
    if begun.pending > 0 && !begun.shutdown.is_stopping() {
        let supervisor = driven.supervisor();
        let mut driver = Driver::begin(begun, engine, settings, slots).await?;
        let driven = tokio::select! {
            done = driver.drive(&driven) => done,
            never = supervisor.end() => match never {},
        };
        if let Err(error) = driven {
            driver.control.order = Order::Drain;
            driver.beat().await;
            return Err(error);
        }
    }
    let report = driven.end().await?;
    // Nobody reads these objects any more, and the next sweep has others.
    let _ = run.clear_cluster().await;
    Ok(report)
}

/// The scheduler, and the executors if they are ours.
#[derive(Debug)]
struct Engine {
    client: Client,
    executors: Option<LocalExecutors>,
    _scheduler: Option<Scheduler>,
}

impl Engine {
    async fn start(
        cluster: &Cluster,
        network: &Network,
        settings: &Settings,
    ) -> Result<Self, ClusterError> {
        let Cluster::Local(count) = cluster else {
            return Ok(Self {
                client: Client::connect(&cluster.to_string(), network).await?,
                executors: None,
                _scheduler: None,
            });
        };
        let scheduler = Scheduler::start(([127, 0, 0, 1], 0).into(), network).await?;
        let address = scheduler.address();
        let state_dir = settings.state_dir.as_deref();
        Ok(Self {
            client: Client::connect(&format!("grpc://{address}"), network).await?,
            executors: Some(LocalExecutors::start(*count, address, state_dir)?),
            _scheduler: Some(scheduler),
        })
    }

    /// Whether the executors were ours, and all have ended.
    fn is_gone(&self) -> bool {
        self.executors
            .as_ref()
            .is_some_and(LocalExecutors::is_empty)
    }
}

/// Follows the shards of a sweep.
#[derive(Debug)]
struct Driver {
    engine: Engine,
    board: Board,
    step: ShardStep,
    control: Control,
    progress: Arc<Progress>,
    shutdown: Shutdown,
    limits: FailureLimits,
    slots: usize,
    /// An executor that is silent for this long has dropped its calls.
    lease: Duration,
    /// Who may send, if executors are not ours.
    admission: Option<Admission>,
    pending: u64,
    /// The counts of the run when it was begun.
    began: BTreeMap<String, AgentProgress>,
    /// The reports of the last look.
    known: Known<ShardReport>,
    /// The first counts of each shard.
    before: HashMap<String, BTreeMap<String, AgentProgress>>,
    /// Notices that were shown, by shard and executor.
    shown: HashMap<(String, String), usize>,
    overview: Overview,
    /// What was said once.
    said: HashSet<String>,
    /// Whether the time for sending is over.
    is_spent: bool,
    /// Whether all shards were sent.
    is_over: bool,
}

impl Driver {
    async fn begin(
        begun: Begun,
        engine: Engine,
        settings: Settings,
        slots: usize,
    ) -> Result<Self, Error> {
        let Begun {
            run,
            record,
            settings: own,
            progress,
            shutdown,
            pending,
            lease,
        } = begun;
        let place = absolute(&run, &own)?;
        let settings = Settings {
            output: Some(place.clone()),
            ..settings
        };
        let admission = engine.executors.is_none().then(Admission::default);
        let spec = Spec::new(settings, slots, admission.is_some());
        let board = Board::begin(run, &spec).await?;
        let tasks = usize::try_from(record.num_tasks).unwrap_or(usize::MAX);
        let count = (slots * SHARDS_PER_SLOT).min(tasks).max(1);
        let mut driver = Self {
            engine,
            step: ShardStep {
                run: place,
                spec: board.digest().to_owned(),
                count: u32::try_from(count).unwrap_or(u32::MAX),
            },
            board,
            control: Control::default(),
            began: progress.by_agent(),
            progress,
            shutdown,
            limits: FailureLimits {
                max_failures: own.max_failures,
                max_error_rate: own.max_error_rate,
            },
            slots,
            lease,
            admission,
            pending,
            known: Known::new(),
            before: HashMap::new(),
            shown: HashMap::new(),
            overview: Overview::default(),
            said: HashSet::new(),
            is_spent: false,
            is_over: false,
        };
        driver.beat().await;
        Ok(driver)
    }

    /// Lets the executors work until nothing is pending, the sweep is stopped, or a job changes nothing.
    async fn drive(&mut self, driven: &DrivenSweep) -> Result<(), Error> {
        let mut jobs = 0;
        while jobs < MOST_JOBS {
            let is_lost = self.run_job(driven).await?;
            if self.is_spent {
                self.shutdown.stop(StopReason::DispatchBudget);
            }
            if self.shutdown.is_stopping() || self.engine.is_gone() || self.is_over {
                break;
            }
            let pending = driven.pending().await?;
            if pending == 0 || (pending == self.pending && !is_lost) {
                break;
            }
            self.pending = pending;
            jobs += usize::from(!is_lost);
        }
        Ok(())
    }

    /// Submits the shards as one job, and follows it to its end. Returns whether the scheduler has lost it.
    async fn run_job(&mut self, driven: &DrivenSweep) -> Result<bool, Error> {
        let plan = self.step.clone().plan()?;
        let session = format!("{}-{}", self.board.digest(), self.control.beat);
        let mut heard = Instant::now();
        let job = loop {
            match self.engine.client.submit(plan.clone(), &session).await {
                Ok(job) => break job,
                Err(error @ ClusterError::Scheduler { .. })
                    if heard.elapsed() < SCHEDULER_PATIENCE && !self.shutdown.is_stopping() =>
                {
                    self.say(&error.to_string());
                    self.look().await;
                    tokio::time::sleep(INTERVAL).await;
                }
                Err(error) => return Err(error.into()),
            }
        };
        heard = Instant::now();
        let mut is_lost = false;
        let mut looked: Option<Instant> = None;
        loop {
            let is_due = looked.is_none_or(|looked| looked.elapsed() >= INTERVAL);
            if is_due || self.order() != self.control.order {
                self.look().await;
                looked = Some(Instant::now());
                // Tasks that wait for a slot have nothing to do any more.
                if self.shutdown.is_stopping() && !driven.is_worked_on().await? {
                    let _ = self.engine.client.cancel(&job).await;
                    break;
                }
            }
            self.forget_the_dead().await;
            if self.engine.is_gone() {
                break;
            }
            match self.engine.client.job(&job).await {
                Ok(Job::Runs) => heard = Instant::now(),
                Ok(Job::Ended) => break,
                Ok(Job::Failed(why)) => {
                    self.progress
                        .notice(format!("the job of the cluster failed: {why}"));
                    break;
                }
                Ok(Job::Unknown) if heard.elapsed() > FORGOTTEN => {
                    self.say("the scheduler has lost the job: it is submitted again");
                    // The shards that run keep their locks, so that the new tasks wait for them.
                    is_lost = true;
                    break;
                }
                Ok(Job::Unknown) => {}
                Err(error) if heard.elapsed() > SCHEDULER_PATIENCE => return Err(error.into()),
                Err(error) => self.say(&error.to_string()),
            }
            tokio::time::sleep(TICK).await;
        }
        self.look().await;
        Ok(is_lost)
    }

    fn order(&self) -> Order {
        match self.progress.phase() {
            Phase::Dropping => Order::Drop,
            _ if self.shutdown.is_stopping() => Order::Drain,
            _ => Order::Send,
        }
    }

    /// Tells the executors that the driver lives, and what it wants. Returns whether they can know.
    async fn beat(&mut self) -> bool {
        self.control.beat += 1;
        // The next beat follows soon.
        self.board.set_control(&self.control).await.is_ok()
    }

    /// Reads the board, and ends the sweep if too much has failed.
    async fn look(&mut self) {
        self.control.order = self.order();
        let is_told = self.beat().await;
        let told = self.control.clone();
        if let Err(error) = self.read_board(is_told).await {
            self.say(&format!("the progress of executors is unknown: {error}"));
        }
        if told != self.control {
            self.beat().await;
        }
        let total = self.progress.total();
        if let Some(reason) = self.limits.exceeded(total.done_now, total.failed_now) {
            self.shutdown.stop(reason);
        }
    }

    async fn read_board(&mut self, is_told: bool) -> Result<(), StoreError> {
        if let Some(admission) = &mut self.admission {
            let claims = self.board.claims().await?;
            let waiting = admission.look(claims, self.slots, self.lease, is_told);
            let waiting: Vec<String> = waiting.into_iter().map(str::to_owned).collect();
            self.control.admitted = admission.admitted();
            for name in waiting {
                self.say(&format!(
                    "executor '{name}' waits, since others have the {} slots of --cluster-slots, by which the limits of calls \
                     are divided",
                    self.slots
                ));
            }
        }
        let reports = self.board.reports(&mut self.known).await?;
        let withdrawals = self.board.withdrawals().await?;
        let executors = self.overview.look(&reports, &withdrawals);
        for withdrawal in withdrawals.into_values() {
            self.say(&format!(
                "executor '{}' withdraws: {}",
                withdrawal.executor, withdrawal.why
            ));
        }
        let now = SystemTime::now();
        self.control.paused.retain(|_, until| *until > now);
        for (agent, until) in reports.values().flat_map(|report| &report.paused) {
            if *until > now {
                let latest = self.control.paused.entry(agent.clone()).or_insert(*until);
                *latest = (*latest).max(*until);
            }
        }
        self.is_spent = reports.values().any(|report| report.is_spent);
        let over = reports.values().filter(|report| report.is_over).count();
        self.is_over = over == self.step.count as usize;
        let mut agents = self.began.clone();
        for (shard, report) in reports {
            self.show_notices(&shard, &report);
            let before = self.before.entry(shard).or_insert(report.before);
            for (name, now) in &report.now {
                let unknown = AgentProgress::default();
                let before = before.get(name).unwrap_or(&unknown);
                agents
                    .entry(name.clone())
                    .or_default()
                    .add_change(before, now);
            }
        }
        let told = self.board.tell(&executors).await;
        self.progress.follow_others(agents, executors);
        told
    }

    fn show_notices(&mut self, shard: &str, report: &ShardReport) {
        let key = (shard.to_owned(), report.executor.clone());
        let shown = self.shown.entry(key).or_default();
        for notice in report.notices.iter().skip(*shown) {
            self.progress
                .notice(format!("{}: {notice}", report.executor));
        }
        *shown = report.notices.len();
    }

    /// Tells the scheduler which of our executors have ended, so that others go on at once.
    async fn forget_the_dead(&mut self) {
        let Some(executors) = &mut self.engine.executors else {
            return;
        };
        for (name, how) in executors.ended() {
            self.progress.notice(format!(
                "executor '{name}' has ended: others go on with its shards ({how})"
            ));
            // Else the scheduler learns it by silence.
            let _ = self.engine.client.executor_stopped(&name).await;
        }
    }

    fn say(&mut self, text: &str) {
        if self.said.insert(text.to_owned()) {
            self.progress.notice(text.to_owned());
        }
    }
}

/// Returns the place of a run as every process of this machine understands it.
fn absolute(run: &RunStore, settings: &Settings) -> Result<String, Error> {
    match run.local_path() {
        Some(path) => {
            let path = std::path::absolute(path);
            let path = path.map_err(|error| Error::failed("cannot name the run", error))?;
            Ok(path.display().to_string())
        }
        None => Ok(settings.required_output()?.to_owned()),
    }
}
