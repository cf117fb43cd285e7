use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use chrono::{SecondsFormat, Utc};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::artifacts;
use super::begin::{Existing, existing, rebuilt};
use super::groups;
use super::inputs::Inputs;
use super::live::{Live, LiveMetrics};
use super::longest_first::KnownSeconds;
use super::measured::Measured;
use super::measurement::{self, Measurement, Price, Source};
use super::supervisor::Supervisor;
use super::tables::Tables;
use super::{by_task, extension, identity, open_files, unscored, zeros};
use crate::agent::{
    AgentError, Agents, HeadServer, MetricServerOptions, MetricServers, Prior, RecordedAgents,
};
use crate::config::{AgentSettings, ConfigError, MemoryPlan, Routing, Settings};
use crate::error::Error;
use crate::expand::{self, AgentCounts};
use crate::gym::{GYM_07, GymChoice, GymRules};
use crate::import::Zeros;
use crate::land::{LandContext, LandStep};
use crate::measure::{MetricQueries, ParameterValue};
use crate::plan_node::Step;
use crate::progress::{AgentProgress, Progress};
use crate::report::{AgentMetric, GroupReport, NothingScored, SweepPlan, SweepReport};
use crate::run::{
    DispatchBudget, FailureLimits, Registry, RunContext, RunStep, Shutdown, StopReason,
};
use crate::schema::SCHEMA_VERSION;
use crate::servers::{Route, Servers};
use crate::session;
use crate::store::{
    Checkpointer, DispatchLogs, EnvironmentServer, LockOptions, LockScope, ParquetSink, RunCounts,
    RunLock, RunRecord, RunState, RunStore, StoreError, Writer,
};

/// Bytes of memory that the metrics of a sweep may take where they can go to temporary files: little, since
/// they run where the sweep has just run.
const MEMORY: usize = 32 * 1024 * 1024;

/// Rows that wait for their turn beyond those in flight. More of them where there are several agents:
/// the rows of one that is busy must not hide those of the others.
const LOOKAHEAD: usize = 4096;
const LOOKAHEAD_OF_MANY: usize = 64 * 1024;

/// How long a collector that falls silent keeps its lock. A store that does not answer must not end a
/// sweep at once: its answers are safe in the journal meanwhile. This is also the longest that such a store is waited
/// for, whatever `--agent-patience` says: a lock that could not be renewed for so long is lost.
const LEASE: Duration = Duration::from_secs(60);
const LEASE_ON_A_STORE: Duration = Duration::from_secs(3 * 60);

/// The longest time that the server of an agent may take for its metrics.
const AGENT_METRICS_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Bytes of requests that a batch of rows may hold, about.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;

/// A sweep: tasks, each sent to its agent a number of times, and the run that comes of it.
///
/// [`Sweep::prepare`] reads and checks everything that can be checked; until then, and in
/// [`Sweep::plan`], nothing is sent and nothing is written. [`Sweep::collect`] does the work.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use rollstream::config::Settings;
/// use rollstream::sim::{Sim, SimConfig};
/// use rollstream::Sweep;
///
/// let dir = tempfile::tempdir()?;
/// let tasks = dir.path().join("tasks.jsonl");
/// std::fs::write(&tasks, r#"{"responses_create_params": {"input": "What is 2 + 3?"}, "expected_answer": 5}"#)?;
///
/// let sim = Sim::start(SimConfig::default()).await?;
/// let settings = Settings {
///     input: vec![tasks.display().to_string()],
///     output: Some(dir.path().join("run").display().to_string()),
///     agent: Some("sim".into()),
///     num_repeats: "4".parse()?,
///     head_server: Some(sim.head_url().parse()?),
///     ..Settings::default()
/// };
/// let report = Sweep::prepare(settings).await?.collect().await?;
/// assert_eq!(report.rollouts.done, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Sweep {
    pub(super) settings: Settings,
    pub(super) rules: &'static GymRules,
    pub(super) run: RunStore,
    pub(super) inputs: Inputs,
    pub(super) record: RunRecord,
    pub(super) replaces: bool,
    pub(super) continues: bool,
    pub(super) extends: bool,
    /// Nothing was left to be done when it was gone on with.
    pub(super) was_finished: bool,
    /// The identity of the run as it was found.
    pub(super) found_identity: serde_json::Value,
    pub(super) agents: Agents,
    pub(super) counts: Vec<AgentCounts>,
    /// What earlier processes did for rollouts that are still pending.
    pub(super) prior: HashMap<(i64, i64), Prior>,
    pub(super) queries: MetricQueries,
    pub(super) checkpointer: Option<Checkpointer>,
    pub(super) progress: Arc<Progress>,
    pub(super) shutdown: Shutdown,
    /// What became of the groups of prompts.
    pub(super) groups: Option<GroupReport>,
    /// Why there is nothing to be scored.
    pub(super) nothing_scored: Option<NothingScored>,
    pub(super) live: Option<(Duration, watch::Sender<Arc<[AgentMetric]>>)>,
}

/// What a process did before the run was finished.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) written: Vec<String>,
    pub(super) elapsed: Duration,
    /// It was aborted before it began.
    pub(super) is_cut_off: bool,
}

fn parameters(
    queries: &MetricQueries,
    settings: &Settings,
) -> Result<HashMap<String, ParameterValue>, Error> {
    let texts = settings
        .params
        .iter()
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={text}"),
            None => format!("{name}={value}"),
        });
    Ok(queries.parameters(&texts.collect::<Vec<_>>())?)
}

/// Refuses rows that NeMo Gym's servers would not take. An agent with an address of its own need not be one of them.
fn check_routes(settings: &Settings, servers: &Servers, inputs: &Inputs) -> Result<(), Error> {
    let routes = inputs.summary.routes.iter().filter(|route| {
        let name = route.server.as_ref().or(route.agent.as_ref());
        let own = name.and_then(|name| settings.agents.get(&**name));
        !own.is_some_and(|own| own.url.is_some() || own.runs_here())
    });
    let routes: BTreeSet<Route> = routes.cloned().collect();
    let checked = servers.check(&routes, settings.allow_unsupported_pairing);
    checked.map_err(|reason| AgentError::Route(reason).into())
}

/// The environment servers of the agents that are not asked at an address of their own.
fn stamps(
    head: &HeadServer,
    names: &[String],
    settings: &Settings,
) -> BTreeMap<String, EnvironmentServer> {
    let server = settings.server_of_all();
    let has_url = |name: &String| {
        let own = settings.agents.get(name);
        own.is_some_and(|own| own.url.is_some() || own.runs_here())
    };
    let asked = names.iter().filter(|name| !has_url(name));
    let found = asked.filter_map(|agent| {
        let name = head.environment_server(agent, server).ok()?;
        let server = EnvironmentServer {
            name: name.to_owned(),
            implementation: head.servers().implementation(name)?.to_owned(),
            // Rows that name an agent are of that agent.
            agent: (agent == name)
                .then(|| head.servers().agent_of_server(name).map(str::to_owned))
                .flatten(),
        };
        Some((agent.clone(), server))
    });
    found.collect()
}

impl Sweep {
    /// Reads the input, finds the agents and checks the output.
    ///
    /// # Errors
    /// Anything is wrong with what was asked; nothing has been sent or written then.
    pub async fn prepare(mut settings: Settings) -> Result<Self, Error> {
        let queries = MetricQueries::load(settings.queries.as_deref())?;
        // Whether they are right is to be known before anything is sent.
        parameters(&queries, &settings)?;
        let run = RunStore::open(settings.required_output()?, settings.state_dir.as_deref())?;
        let found = existing(&run, &settings).await?;
        let replaces = settings.overwrite && !matches!(found, Existing::Nothing);
        let is_rebuilt = matches!(found, Existing::Remains) && !replaces;
        // So that the journal of what is replaced goes as well.
        let run = match &found {
            Existing::Run(record) => run.identified(&record.run_id),
            _ => run,
        };
        let existing = match found {
            Existing::Run(record) if !replaces => Some(*record),
            _ => None,
        };
        let head = HeadServer::of(&settings).await;
        let rules = settings.gym.rules(|| match (&existing, &head) {
            (Some(record), _) => record.rules() == &GYM_07,
            (None, Ok(Some(head))) => head.has_environment_servers(),
            (None, _) => false,
        });
        let (routing, head) = match (Routing::of(&settings, rules), head) {
            (Ok(routing), head) => (routing, head),
            // Which rules hold is not known: that is what is wrong, and not the settings.
            (Err(ConfigError::Gym { .. }), Err(error)) if settings.gym == GymChoice::Auto => {
                return Err(error.into());
            }
            (Err(error), _) => return Err(error.into()),
        };
        let servers = head.as_ref().ok().and_then(Option::as_ref);
        let servers = servers.map(|head| Arc::clone(head.servers()));
        zeros::of_settings(&settings, rules)?;
        let inputs = match &existing {
            Some(record) if settings.input.is_empty() && !settings.extend => {
                Inputs::of_run(&mut settings, rules, &run, record).await?
            }
            _ => Inputs::read(&settings, routing, servers.clone()).await?,
        };
        if let Some(servers) = servers {
            check_routes(&settings, &servers, &inputs)?;
        }
        let names: Vec<String> = inputs
            .summary
            .agents
            .keys()
            .map(|name| name.to_string())
            .collect();
        let environment_servers = match (&head, &existing) {
            (Ok(Some(head)), _) if rules.routing => stamps(head, &names, &settings),
            (_, Some(record)) => record.environment_servers.clone(),
            _ => BTreeMap::new(),
        };
        let agents = Agents::connect_by(&names, &settings, rules, head)?;
        let identity = inputs.identity.clone().unwrap_or_else(|| {
            identity::identity(&settings, rules, &inputs.records, inputs.prompt.as_deref())
        });
        let extends = match &existing {
            Some(record) if settings.extend => {
                extension::check(record, &identity, &run, &inputs.spool).await?
            }
            Some(record) => {
                identity::check(record, &identity, &run.display(""))?;
                false
            }
            None => false,
        };
        let now = now();
        let record = RunRecord {
            schema_version: SCHEMA_VERSION,
            run_id: existing
                .as_ref()
                .map_or_else(RunRecord::new_id, |record| record.run_id.clone()),
            rollstream_version: env!("CARGO_PKG_VERSION").to_owned(),
            state: RunState::Running,
            created_at: existing
                .as_ref()
                .map_or(now, |record| record.created_at.clone()),
            finished_at: None,
            identity,
            settings: serde_json::to_value(&settings).map_err(Error::defect)?,
            inputs: inputs.records.clone(),
            num_tasks: inputs.summary.rows,
            agents: agents.addresses(),
            environment_servers,
            rollouts: RunCounts::default(),
        };
        let continues = existing.is_some() || is_rebuilt;
        let found_identity = match &existing {
            Some(record) => record.identity.clone(),
            None => record.identity.clone(),
        };
        let is_finished = |record: &RunRecord| record.state == RunState::Finished;
        let was_finished = existing.as_ref().is_some_and(is_finished);
        let mut sweep = Self {
            found_identity,
            settings,
            rules,
            run: run.following(rules),
            inputs,
            record,
            replaces,
            continues,
            extends,
            was_finished,
            agents,
            counts: Vec::new(),
            prior: HashMap::new(),
            queries,
            checkpointer: None,
            progress: Arc::default(),
            shutdown: Shutdown::default(),
            groups: None,
            nothing_scored: None,
            live: None,
        };
        sweep.progress.follow(rules);
        sweep.progress.show_failures(sweep.settings.show_failures);
        // What is done of it is counted under the lock.
        let agents = sweep.inputs.summary.agents.iter();
        sweep
            .progress
            .begin(agents.map(|(name, rows)| {
                (name.to_string(), AgentProgress::before(rows.rollouts, 0, 0))
            }));
        if is_rebuilt {
            rebuilt(&mut sweep).await?;
        }
        sweep.check_task_names().await?;
        Ok(sweep)
    }

    /// Counts of the sweep, to be watched while it runs.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Has the sweep measured while it runs, `every` so often, from what has landed and what the journal
    /// holds.
    pub fn measure_live(&mut self, every: Duration) -> LiveMetrics {
        let (sender, receiver) = watch::channel(Arc::from([]));
        self.live = Some((every, sender));
        receiver
    }

    /// Ends the sweep early.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// What was decided that nobody asked for.
    pub fn notes(&self) -> Vec<String> {
        let version = self.rules.version;
        match self.settings.gym {
            GymChoice::Auto if self.rules != GymRules::of(None) => vec![format!(
                "the rules of NeMo Gym {version} hold (its head server has environment servers, or the run was begun \
                 so); --gym 0.5 keeps the older ones"
            )],
            _ => Vec::new(),
        }
    }

    /// Oddities of the input that are no errors.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.inputs.summary.warnings.clone();
        if self.inputs.summary.rows == 0 {
            warnings.push("the input has no tasks".to_owned());
        }
        let replaced = self.inputs.summary.num_replaced;
        if replaced > 0 {
            warnings.push(format!(
                "{replaced} of {} rows of the input name another agent than the one that they go to now",
                self.inputs.summary.rows
            ));
        }
        if let Some(own) = self.settings.agent.as_ref().filter(|_| !self.rules.routing) {
            let agents = self.inputs.summary.agents.iter();
            let others = agents.filter(|(name, _)| ***name != **own);
            let rows: u64 = others.map(|(_, agent)| agent.rows).sum();
            if rows > 0 {
                warnings.push(format!(
                    "{rows} of {} rows of the input name another agent than '{own}' and go to that one: --agent is for \
                     rows that name none",
                    self.inputs.summary.rows
                ));
            }
        }
        warnings.extend(open_files::warning(self.settings.concurrency));
        warnings
    }

    /// What [`Self::collect`] would do. Sends nothing and writes nothing.
    ///
    /// # Errors
    /// The plan can't be made.
    pub async fn plan(&self) -> Result<SweepPlan, Error> {
        let session = self.tables().session(session::config()).await?;
        let agents = expand::counts(&session).await?;
        let partitions = self.partitions(&agents);
        let session = self.session(self.config(), partitions).await?;
        let plan = self.physical(&session).await?;
        Ok(SweepPlan {
            partitions,
            physical: displayable(plan.as_ref()).indent(false).to_string(),
            agents,
            addresses: self.agents.addresses(),
        })
    }

    /// Sends what is pending, lands what is answered, measures it, and says what came of it.
    ///
    /// # Errors
    /// The run is locked, or landing or measuring failed. A rollout that fails is no error but a row
    /// of `attempts`.
    pub async fn collect(mut self) -> Result<SweepReport, Error> {
        // The lock itself is renewed without the patience that the sweep has with its store: see its lease.
        let place = self.run.clone();
        let lock = self.lock(&place, self.lock_options()).await?;
        let (progress, patience) = (self.progress(), self.settings.agent_patience.duration());
        let tell = move |text| progress.notice(text);
        let shutdown = self.shutdown.clone();
        let enough = move || {
            let shutdown = shutdown.clone();
            async move { shutdown.aborting().await }.boxed()
        };
        self.run = self.run.waited_for(patience, tell, enough);
        let supervisor = Supervisor::new(&self.settings, self.shutdown.clone());
        let writer = match lock.writer().await {
            Ok(writer) => Arc::new(writer),
            Err(error) => {
                lock.release().await;
                return Err(error.of_output());
            }
        };
        let done = tokio::select! {
            done = self.work(&writer) => done,
            lost = supervisor.watch(&lock) => Err(lost.into()),
        };
        if self.settings.shard.is_none() {
            let report = match done {
                Ok(done) => tokio::select! {
                    report = self.finish(done, &lock) => report,
                    lost = supervisor.watch(&lock) => Err(lost.into()),
                },
                Err(error) => Err(error),
            };
            lock.release_after(writer).await;
            return report;
        }
        // Of several processes the last one finishes what is common to all. Each gives its lock back before it looks
        // who else is there, so that one of them is the last.
        lock.release_after(writer).await;
        self.finish_shared(done?, &place, &supervisor).await
    }

    pub(super) async fn lock(
        &self,
        place: &RunStore,
        options: LockOptions,
    ) -> Result<RunLock, Error> {
        let tell = |text| self.progress.notice(text);
        let lock = RunLock::acquire_and_tell(place, options, tell).await;
        lock.map_err(|error| match error {
            StoreError::Locked { .. } => error.into(),
            error => error.of_output(),
        })
    }

    pub(super) fn lock_options(&self) -> LockOptions {
        let scope = match self.settings.shard {
            Some(shard) => LockScope::Shard {
                index: shard.index(),
                count: shard.count(),
            },
            None => LockScope::Run,
        };
        LockOptions {
            scope,
            lease: match (self.settings.lease, self.run.local_path()) {
                (Some(lease), _) => lease.duration(),
                (None, Some(_)) => LEASE,
                (None, None) => LEASE_ON_A_STORE,
            },
            break_existing: self.settings.break_lock,
        }
    }

    /// Sends what is pending, and lands what is answered.
    async fn work(&mut self, writer: &Arc<Writer>) -> Result<Done, Error> {
        let shutdown = self.shutdown.clone();
        tokio::select! {
            begun = self.begin(writer) => begun?,
            // What was being recovered can be recovered another time.
            () = shutdown.aborting() => return Ok(Done { is_cut_off: true, ..Done::default() }),
        }
        let began = Instant::now();
        let pending: u64 = self.counts.iter().map(AgentCounts::num_pending).sum();
        let landed = match pending {
            0 => Ok(Vec::new()),
            _ => {
                let _live = self.start_live()?;
                self.dataflow(writer).await
            }
        };
        let elapsed = began.elapsed();
        self.record.finished_at = Some(now());
        let written = match landed {
            Ok(written) => written,
            Err(error) => {
                if self.settings.shard.is_none() {
                    self.record.rollouts = self.progress.total().counts();
                    self.record.state = RunState::Failed;
                    // What ended the sweep matters more than that it could not be noted.
                    let _ = self.record.save(&self.run).await;
                }
                return Err(error);
            }
        };
        self.clean_up(writer).await?;
        Ok(Done {
            written,
            elapsed,
            is_cut_off: false,
        })
    }

    /// Notes how it ended, and measures. Under a lock of the whole run.
    pub(super) async fn finish(
        &mut self,
        done: Done,
        lock: &RunLock,
    ) -> Result<SweepReport, Error> {
        let Done {
            mut written,
            elapsed,
            is_cut_off,
        } = done;
        if is_cut_off {
            return self.report(written, Measured::default(), elapsed).await;
        }
        self.note_the_end().await?;
        let is_as_before =
            self.was_finished && written.is_empty() && self.settings.queries.is_none();
        // What was replaced is there until the end, for those who read it.
        let _compacted = self.compact(lock, &mut written).await;
        let earlier = match is_as_before {
            true => artifacts::earlier(&self.run).await?,
            false => None,
        };
        let names: Vec<String> = self.record.agents.keys().cloned().collect();
        let of_groups = groups::agents(&self.settings, &names);
        if earlier.is_none() && !of_groups.is_empty() {
            tokio::select! {
                report = groups::write(&self.run, &of_groups, MEMORY) => {
                    let report = report?;
                    written.push(report.written.clone());
                    self.groups = Some(report);
                }
                // What has landed can be put together another time.
                () = self.shutdown.aborting() => {}
            }
        }
        let measured = match earlier {
            Some(earlier) => earlier,
            None if self.settings.aggregate => self.measured().await?,
            None => Measured::default(),
        };
        self.nothing_scored = unscored::look(self).await?;
        written.push(self.run.display("run.json"));
        self.report(written, measured, elapsed).await
    }

    async fn measured(&self) -> Result<Measured, Error> {
        if self.settings.agent_metrics {
            tokio::select! {
                biased;
                // Who ends a sweep early does not want to wait for servers that may be why.
                () = self.shutdown.stopping() => {}
                measured = self.measure(true) => return measured,
            }
        }
        tokio::select! {
            measured = self.measure(false) => measured,
            // What has landed can be measured another time.
            () = self.shutdown.aborting() => {
                if self.progress.total().done_now > 0 {
                    self.progress.notice(format!(
                        "the metrics are not those of all that has landed; `rollstream aggregate {}` computes them",
                        self.run.display("")
                    ));
                }
                Ok(Measured::default())
            }
        }
    }

    async fn measure(&self, asks_servers: bool) -> Result<Measured, Error> {
        let runs = std::slice::from_ref(&self.run);
        let servers = asks_servers.then(|| {
            // Where they were a moment ago; a head server may have gone since.
            let addresses = self.record.agents.iter();
            let urls =
                addresses.filter_map(|(agent, url)| Some((agent.clone(), url.parse().ok()?)));
            MetricServers::new(MetricServerOptions {
                urls: urls.collect(),
                head_server: None,
                recorded: vec![RecordedAgents {
                    settings: self.settings.clone(),
                    addresses: self.record.agents.clone(),
                }],
                timeout: AGENT_METRICS_TIMEOUT,
                must_have: false,
            })
        });
        let measurement = Measurement {
            agent_servers: servers.transpose()?.map(Arc::new),
            ..self.measurement()?
        };
        let measured = measurement::measure(&Source::Runs(runs), &self.run, &measurement).await?;
        let notes = measured.notes.iter().cloned();
        notes.for_each(|note| self.progress.notice(note));
        Ok(measured)
    }

    fn measurement(&self) -> Result<Measurement, Error> {
        Ok(Measurement {
            prices: Price::of_agents(&self.settings),
            parameters: parameters(&self.queries, &self.settings)?,
            servers: self.record.environment_servers.clone(),
            rules: self.rules,
            zeros: zeros::of_settings(&self.settings, self.rules)?,
            ..Measurement::new(self.queries.clone(), MEMORY)
        })
    }

    fn start_live(&mut self) -> Result<Option<Live>, Error> {
        let Some((every, sender)) = self.live.take() else {
            return Ok(None);
        };
        // While it runs, what is missing is only not there yet.
        let measurement = Measurement {
            zeros: Zeros::default(),
            ..self.measurement()?
        };
        Live::start(self.run.clone(), measurement, every, sender).map(Some)
    }

    pub(super) fn tables(&self) -> Tables<'_> {
        Tables {
            spool: &self.inputs.spool,
            // Of a run that is not gone on with nothing counts, though it may still be there.
            run: self.continues.then_some(&self.run),
            shard: self.settings.shard,
            partitions: 1,
            is_interleaved: false,
            settings: &self.settings,
            agents: self.record.agents.keys().map(String::as_str).collect(),
        }
    }

    /// The one plan, from source to sink, and what it published.
    async fn dataflow(&mut self, writer: &Arc<Writer>) -> Result<Vec<String>, Error> {
        let settings = &self.settings;
        let is_limited = |agent: &AgentSettings| agent.concurrency.is_some();
        let many = self.counts.len() > 1 || settings.agents.values().any(is_limited);
        let dispatches = Arc::new(DispatchLogs::new(
            self.run.journal_dir(),
            Arc::clone(writer),
        ));
        let pending = self.counts.iter();
        let known = self
            .prior
            .iter()
            .filter(|_| settings.dispatch_longest_first);
        let known = known.filter_map(|(key, prior)| Some((*key, prior.seconds?)));
        let known = KnownSeconds(known.filter(|(_, seconds)| *seconds > 0.0).collect());
        let run = RunContext {
            prior: std::mem::take(&mut self.prior),
            pending: pending
                .map(|agent| (agent.agent_name.clone(), agent.num_pending()))
                .collect(),
            seed: settings.num_repeats_add_seed.then_some(settings.seed_field),
            memory: MemoryPlan::of(settings),
            most_calls: open_files::most_calls(),
            lookahead: match many {
                true => LOOKAHEAD_OF_MANY,
                false => LOOKAHEAD,
            },
            retry_backoff: settings.retry_backoff.duration(),
            retry_backoff_cap: settings.retry_backoff_cap.duration(),
            agent_patience: settings.agent_patience.duration(),
            dispatch_budget: settings.dispatch_budget_s.map(|budget| {
                let seconds = Duration::from_secs_f64;
                let margin = settings.drain_margin_s.map(seconds);
                DispatchBudget::new(Instant::now(), seconds(budget), margin)
            }),
            failure_limits: FailureLimits {
                max_failures: settings.max_failures,
                max_error_rate: settings.max_error_rate,
            },
            dispatches: Some(Arc::clone(&dispatches)),
            registry: Registry::default(),
            progress: Arc::clone(&self.progress),
            shutdown: self.shutdown.clone(),
            agents: std::mem::take(&mut self.agents),
        };
        let land = LandContext::new(
            Arc::new(ParquetSink::new(self.run.clone(), Arc::clone(writer))),
            self.run.journal_dir().to_owned(),
            Arc::clone(writer),
            settings.part_interval.duration(),
            self.run.local_path().is_none(),
            Arc::clone(&self.progress),
        );
        let config = self
            .config()
            .with_extension(Arc::new(known))
            .with_extension(Arc::new(run))
            .with_extension(Arc::new(land));
        let session = self.session(config, self.partitions(&self.counts)).await?;
        let plan = self.physical(&session).await?;
        let landed = published(execute_stream(plan, session.task_ctx())?, &self.shutdown);
        let progress = Arc::clone(&self.progress);
        let tell = move |error: StoreError| progress.notice(error.to_string());
        let interval = self.settings.checkpoint_interval.duration();
        let written = match &mut self.checkpointer {
            Some(checkpointer) => tokio::select! {
                landed = landed => landed?,
                never = checkpointer.keep(interval, tell) => match never {},
            },
            None => landed.await?,
        };
        dispatches.close()?;
        Ok(written)
    }

    /// Partitions of the plan. They are no part of the run: a resume may have others.
    fn partitions(&self, counts: &[AgentCounts]) -> usize {
        if let Some(partitions) = self.settings.partitions {
            return partitions.min(by_task::MOST);
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let pending = counts.iter().map(AgentCounts::num_pending).sum();
        by_task::suitable(cores, pending, self.settings.concurrency.most())
    }

    /// Configuration of the session that collects: one partition but for those of [`by_task`], so that
    /// the order of the input is the order of dispatch, and batches that stay small where requests are
    /// large.
    fn config(&self) -> SessionConfig {
        let spool = &self.inputs.spool;
        let row = spool.num_bytes / spool.num_rows.max(1);
        let rows = usize::try_from(BATCH_BYTES / row.max(1)).unwrap_or(usize::MAX);
        session::config()
            .with_target_partitions(1)
            .with_batch_size(rows.clamp(1, 4096))
    }

    /// A session whose tasks are in as many partitions as the sweep has.
    async fn session(
        &self,
        config: SessionConfig,
        partitions: usize,
    ) -> Result<SessionContext, Error> {
        let waiting = MemoryPlan::of(&self.settings).waiting;
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
        let tables = Tables {
            partitions,
            is_interleaved: self.settings.interleave_repeats,
            ..self.tables()
        };
        tables.bounded_session(config, waiting).await
    }

    async fn physical(&self, session: &SessionContext) -> Result<Arc<dyn ExecutionPlan>, Error> {
        let pending = expand::pending(session).await?.logical_plan().clone();
        let run = RunStep {
            concurrency: self.settings.concurrency.most(),
        };
        let land = LandStep {
            output: self.run.display(""),
            part_size: self.settings.part_size.get(),
        };
        let landed = land.on(run.on(pending)?)?;
        Ok(session.state().create_physical_plan(&landed).await?)
    }
}

/// Paths of the parts that a plan lands. When a partition fails, the others send nothing more, and
/// land what they have.
async fn published(
    mut landed: SendableRecordBatchStream,
    shutdown: &Shutdown,
) -> Result<Vec<String>, Error> {
    let mut written = Vec::new();
    let mut failed = None;
    while let Some(batch) = landed.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                shutdown.stop(StopReason::Failure);
                failed.get_or_insert(error);
                continue;
            }
        };
        let paths = batch.column_by_name("path");
        let paths = paths.and_then(|column| column.as_string_view_opt());
        written.extend(paths.into_iter().flatten().flatten().map(str::to_owned));
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(written),
    }
}

pub(super) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}
