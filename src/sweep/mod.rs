//! Joins the steps: reads, expands, runs, lands and measures.
//!
//! [`Sweep`] is a sweep from its settings to its report; the command line and programs drive it.
//! [`import_collection`] turns a NeMo Gym collection into a run. The modules, in the order of a sweep's life:
//!
//! | module | what it does |
//! |---|---|
//! | `prepare` | checks all that can be checked before anything is sent |
//! | `inputs`, `identity` | the tasks, and whether a run may be resumed with them |
//! | `begin`, `recovery`, `invalid_judges` | creates, recovers or repairs the run before rollouts are sent |
//! | `plan`, `by_task`, `task_order`, `longest_first` | the physical plan: partitions, and the order of dispatch |
//! | `collect` | drives the plan under the lock of the run |
//! | `driven` | a sweep whose shards run on the executors of a cluster |
//! | `end`, `compaction`, `groups` | what is written and reported at the end |
//! | `imported` | a run from a NeMo Gym collection |

mod begin;
mod by_task;
mod collect;
mod compaction;
#[cfg(feature = "cluster")]
mod driven;
mod end;
mod groups;
mod identity;
mod imported;
mod inputs;
mod invalid_judges;
mod longest_first;
mod plan;
mod prepare;
mod recovery;
mod task_order;

#[cfg(feature = "cluster")]
pub(crate) use driven::{Begun, DrivenSweep};
pub use identity::NotResumable;
pub use imported::import_collection;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::agent::Agents;
use crate::config::Settings;
use crate::expand::AgentCounts;
use crate::gym::{GymChoice, GymRules};
use crate::measure::{AgentMetric, LiveMetrics, MetricQueries};
use crate::progress::Progress;
use crate::report::{GroupReport, NothingScored};
use crate::retry::Prior;
use crate::run::{DispatchBudget, Registry, Shutdown};
use crate::store::{Checkpointer, RunRecord, RunStore};
use inputs::Inputs;

/// A sweep: tasks, each sent to its agent a number of times, and the run that stores the answers.
///
/// [`Sweep::prepare`] reads and checks everything that can be checked. Neither it nor
/// [`Sweep::plan`] sends or writes anything. [`Sweep::collect`] does the work.
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
    settings: Settings,
    rules: &'static GymRules,
    run: RunStore,
    inputs: Arc<Inputs>,
    record: RunRecord,
    start: Start,
    agents: Agents,
    counts: Vec<AgentCounts>,
    /// Earlier attempts of rollouts that are still pending.
    prior: HashMap<(i64, i64), Prior>,
    queries: MetricQueries,
    checkpointer: Option<Checkpointer>,
    progress: Arc<Progress>,
    shutdown: Shutdown,
    /// Closed and empty when all rollouts were sent. It stays open where nothing is pending.
    sending: TaskTracker,
    /// Report on the groups that were written, one for each prompt.
    groups: Option<GroupReport>,
    /// Why the run has no score.
    nothing_scored: Option<NothingScored>,
    live: Option<(Duration, watch::Sender<Arc<[AgentMetric]>>)>,
    role: Role,
    limits: CallLimits,
}

/// What limits the calls of this process, which may work on several shards of a sweep.
#[derive(Debug, Clone)]
pub(crate) struct CallLimits {
    pub(crate) registry: Arc<Registry>,
    /// The dispatch budget that all of them have; else each has its own.
    pub(crate) budget: Option<Arc<DispatchBudget>>,
    /// Shards that it sends at a time. Each has its part of the memory.
    pub(crate) shards: u64,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            registry: Arc::default(),
            budget: None,
            shards: 1,
        }
    }
}

/// What a process does for its sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// All of it, or one shard of several that end the run together.
    Collector,
    /// It begins and ends the run. Others send the rollouts.
    Driver,
    /// It sends the rollouts of one shard. Its driver begins and ends the run.
    Executor,
}

/// What a sweep does with its output when it begins.
#[derive(Debug, Clone, PartialEq)]
enum Start {
    /// The place is empty.
    New,
    /// The run that is there is removed first.
    Replaced,
    /// The run that is there is resumed, with the tasks that it has.
    Resumed(Found),
    /// The run that is there is resumed, and its tasks are written again: there are more of them, or its record was lost.
    Extended(Found),
}

/// A run as it was found.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    identity: Value,
    /// The run was already complete.
    is_finished: bool,
    /// When it was last finished or interrupted.
    finished_at: Option<String>,
}

impl Found {
    /// Describes a run that is not finished.
    fn unfinished(record: &RunRecord) -> Self {
        Self {
            identity: record.identity.clone(),
            is_finished: false,
            finished_at: None,
        }
    }
}

impl Start {
    /// The run whose earlier work counts, if there is one.
    fn found(&self) -> Option<&Found> {
        match self {
            Self::New | Self::Replaced => None,
            Self::Resumed(found) | Self::Extended(found) => Some(found),
        }
    }

    fn set_finished(&mut self, is_finished: bool) {
        if let Self::Resumed(found) | Self::Extended(found) = self {
            found.is_finished = is_finished;
        }
    }
}

impl Sweep {
    /// Live counts of the sweep.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Its settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The place where its rollouts land.
    pub fn run(&self) -> &RunStore {
        &self.run
    }

    /// Measures the sweep while it runs, at the interval `every`, from the parts and the journal.
    pub fn measure_live(&mut self, every: Duration) -> LiveMetrics {
        let (sender, receiver) = watch::channel(Arc::from([]));
        self.live = Some((every, sender));
        receiver
    }

    /// Returns the handle that ends the sweep early.
    pub fn shutdown(&self) -> Shutdown {
        self.shutdown.clone()
    }

    /// Returns notes on decisions that the settings left open.
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

    /// Returns warnings on the input, and on a concurrency that the system does not allow.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.inputs.summary.warnings.clone();
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
                    "{rows} of {} rows of the input name another agent than '{own}', and keep it: --agent is for \
                     rows that name none",
                    self.inputs.summary.rows
                ));
            }
        }
        warnings.extend(collect::open_files_warning(self.settings.concurrency));
        warnings
    }
}

fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}
