//! Checks a sweep before anything is sent or written: [`Sweep::prepare`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use tokio_util::task::TaskTracker;

use super::identity::{self, NotResumable};
use super::inputs::Inputs;
use super::{CallLimits, Found, Role, Start, Sweep, now};
use crate::agent::{AgentError, Agents, HeadServer};
use crate::config::{ConfigError, MODEL_AGENT, Routing, Settings};
use crate::error::Error;
use crate::gym::{GYM_07, GymChoice, GymRules};
use crate::measure::{MetricQueries, zeros};
use crate::progress::{AgentProgress, Progress};
use crate::read::{Kind, ReadTasksError};
use crate::run::Shutdown;
use crate::schema::{self, SCHEMA_VERSION};
use crate::servers::{Route, Servers};
use crate::status;
use crate::store::{EnvironmentServer, RunCounts, RunRecord, RunState, RunStore, StoreError};

/// The values of the metrics' parameters.
pub(super) fn parameters(
    queries: &MetricQueries,
    settings: &Settings,
) -> Result<HashMap<String, ScalarValue>, Error> {
    let texts = settings
        .params
        .iter()
        .map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}={text}"),
            None => format!("{name}={value}"),
        });
    Ok(queries.parameters(&texts.collect::<Vec<_>>())?)
}

/// Returns the only agent that the settings know, for the rows that name none. A run that began without such an agent
/// goes on without it.
fn sole_agent(settings: &Settings, existing: Option<&RunRecord>) -> Option<String> {
    let mut agents = settings.agents.iter();
    let (Some((name, own)), None, None) = (agents.next(), agents.next(), &settings.head_server)
    else {
        return None;
    };
    let is_known = own.url.is_some() || own.runs_here();
    let began_without = existing.is_some_and(|record| record.identity["agent"].is_null());
    (is_known && !began_without).then(|| name.clone())
}

/// Calls the agent of a model what it is called in the run: `model` in those of earlier versions.
fn use_recorded_name(record: &RunRecord, settings: &mut Settings) {
    let (Some(here), Some(name)) = (record.identity.get("agents"), &settings.agent) else {
        return;
    };
    let was = here.get(MODEL_AGENT).and_then(|own| own["model"].as_str());
    if was == Some(name)
        && here.get(name).is_none()
        && let Some(own) = settings.agents.remove(name)
    {
        settings.agents.insert(MODEL_AGENT.to_owned(), own);
        settings.agent = Some(MODEL_AGENT.to_owned());
    }
}

/// Gives agents elsewhere the addresses that the run has on record, if the settings name no others.
fn use_recorded_addresses(record: &RunRecord, settings: &mut Settings) {
    if settings.head_server.is_some() {
        return;
    }
    let here = record.identity.get("agents");
    for (name, address) in &record.agents {
        let ran_here = here.is_some_and(|agents| agents.get(name).is_some());
        let is_told = settings
            .agents
            .get(name)
            .is_some_and(|own| own.url.is_some() || own.runs_here());
        if let (false, false, Ok(url)) = (ran_here, is_told, address.parse()) {
            settings.agents.entry(name.clone()).or_default().url = Some(url);
        }
    }
}

/// Refuses rows that NeMo Gym's servers would not take, but for agents that have a `url` or run within rollstream.
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

/// Returns the environment servers of the agents that have no `url` and do not run within rollstream.
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
            // Rows that name an agent belong to that agent.
            agent: (agent == name)
                .then(|| head.servers().agent_of_server(name).map(str::to_owned))
                .flatten(),
        };
        Some((agent.clone(), server))
    });
    found.collect()
}

/// Returns whether all lines of the input are tasks, but some name no agent.
fn lacks_agents(error: &Error) -> bool {
    let Some(ReadTasksError::Input(errors)) = error.cause() else {
        return false;
    };
    let first = errors.findings().next();
    first.is_some_and(|(kind, ..)| kind == Kind::NoAgent)
}

impl Sweep {
    /// Reads the input, finds the agents and checks the output.
    ///
    /// # Errors
    /// Something is wrong with the settings, the input, the agents or the output. Nothing was sent or written then.
    pub async fn prepare(mut settings: Settings) -> Result<Self, Error> {
        let queries = MetricQueries::load(settings.queries.as_deref())?;
        // Wrong parameters must fail before anything is sent.
        parameters(&queries, &settings)?;
        let run = RunStore::open(settings.required_output()?, settings.state_dir.as_deref())?;
        let found = existing(&run, &settings).await?;
        let replaces = settings.overwrite && !matches!(found, Existing::Nothing);
        let is_rebuilt = matches!(found, Existing::Remains) && !replaces;
        // Identified, so that the journal of a replaced run is removed as well.
        let run = match &found {
            Existing::Run(record) => run.identified(&record.run_id),
            _ => run,
        };
        let existing = match found {
            Existing::Run(record) if !replaces => Some(*record),
            _ => None,
        };
        if let Some(record) = &existing {
            use_recorded_name(record, &mut settings);
            use_recorded_addresses(record, &mut settings);
        }
        let head = HeadServer::of(&settings).await;
        let rules = settings.gym.rules(|| match (&existing, &head) {
            (Some(record), _) => record.rules() == &GYM_07,
            (None, Ok(Some(head))) => head.has_environment_servers(),
            (None, _) => false,
        });
        if !rules.routing && settings.agent.is_none() {
            settings.agent = sole_agent(&settings, existing.as_ref());
        }
        let (routing, head) = match (Routing::of(&settings, rules), head) {
            (Ok(routing), head) => (routing, head),
            // The head server failed, so the rules are unknown. That is the error to show, not one of the settings.
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
            _ => {
                let read = Inputs::read(&settings, routing, servers.clone()).await;
                let inputs = match (read, head.is_err()) {
                    // By the rules of the head server, rows may need no agent.
                    (Err(error), true) if lacks_agents(&error) => {
                        return Err(head.err().map_or(error, Error::from));
                    }
                    (read, _) => read?,
                };
                if inputs.summary.rows == 0 {
                    let given = settings.input.join(", ");
                    let why = format!("the input has no tasks ({given}): see --input and --limit");
                    return Err(Error::Usage(why));
                }
                inputs
            }
        };
        if let Some(servers) = servers {
            check_routes(&settings, &servers, &inputs)?;
        }
        let names = inputs.summary.agents.keys();
        let names: Vec<String> = names.map(|name| name.to_string()).collect();
        let environment_servers = match (&head, &existing) {
            (Ok(Some(head)), _) if rules.routing => stamps(head, &names, &settings),
            (_, Some(record)) => record.environment_servers.clone(),
            _ => BTreeMap::new(),
        };
        let agents = Agents::connect_by(&names, &settings, rules, head)?;
        let identity = inputs.identity.clone().unwrap_or_else(|| {
            identity::identity(&settings, rules, &inputs.records, inputs.prompt.as_deref())
        });
        let start = match &existing {
            Some(record) => {
                let found = Found {
                    identity: record.identity.clone(),
                    is_finished: record.state == RunState::Finished,
                    finished_at: record.finished_at.clone(),
                };
                if !settings.extend {
                    identity::check(record, &identity, &run.display(""))?;
                    Start::Resumed(found)
                } else if identity::check_extension(record, &identity, &run, &inputs.spool).await? {
                    Start::Extended(found)
                } else {
                    Start::Resumed(found)
                }
            }
            None if is_rebuilt => Start::Extended(Found {
                identity: identity.clone(),
                is_finished: false,
                finished_at: None,
            }),
            None if replaces => Start::Replaced,
            None => Start::New,
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
            started_at: existing
                .as_ref()
                .and_then(|record| record.started_at.clone()),
            finished_at: None,
            identity,
            settings: serde_json::to_value(&settings).map_err(Error::defect)?,
            inputs: inputs.records.clone(),
            num_tasks: inputs.summary.rows,
            agents: agents.addresses(),
            environment_servers,
            rollouts: RunCounts::default(),
        };
        let mut sweep = Self {
            progress: new_progress(&settings, rules),
            settings,
            rules,
            run: run.following(rules),
            inputs: Arc::new(inputs),
            record,
            start,
            agents,
            counts: Vec::new(),
            prior: HashMap::new(),
            queries,
            checkpointer: None,
            shutdown: Shutdown::default(),
            sending: TaskTracker::new(),
            groups: None,
            nothing_scored: None,
            live: None,
            role: Role::Collector,
            limits: CallLimits::default(),
        };
        // Done rollouts are counted later, under the lock.
        let agents = sweep.inputs.summary.agents.iter();
        sweep.progress.begin(agents.map(|(name, rows)| {
            (
                name.to_string(),
                AgentProgress::before(rows.rollouts, 0, BTreeMap::new()),
            )
        }));
        if is_rebuilt {
            sweep.rebuild().await?;
        }
        sweep.check_tasks().await?;
        Ok(sweep)
    }
}

/// Returns the progress of a sweep before anything is counted.
pub(super) fn new_progress(settings: &Settings, rules: &'static GymRules) -> Arc<Progress> {
    let progress = Progress::default();
    progress.follow(rules);
    progress.show_failures(settings.show_failures);
    Arc::new(progress)
}

/// What a sweep finds at its output.
#[derive(Debug)]
enum Existing {
    /// Nothing that belongs to a run.
    Nothing,
    /// A run.
    Run(Box<RunRecord>),
    /// A run whose record is missing or can't be read.
    Remains,
}

/// Looks for a run at the output; refuses one that the settings neither resume nor overwrite.
async fn existing(run: &RunStore, settings: &Settings) -> Result<Existing, Error> {
    if let Some(path) = run.local_path()
        && path.exists()
        && !path.is_dir()
    {
        let source = std::io::Error::from(ErrorKind::NotADirectory);
        return Err(StoreError::File {
            action: "create a run at",
            path: path.to_owned(),
            source,
        }
        .of_output());
    }
    let takes_over = settings.resume || settings.overwrite;
    match RunRecord::load(run).await {
        Ok(Some(record)) if takes_over || settings.shard.is_some() => {
            Ok(Existing::Run(Box::new(record)))
        }
        Ok(Some(_)) => {
            let state = status::state(run).await?.to_string();
            let place = run.display("");
            Err(StoreError::Exists { place, state }.into())
        }
        Ok(None) => match refuse_remains(run).await {
            Ok(()) => Ok(Existing::Nothing),
            Err(error) => match RunRecord::load(run).await {
                // Another process that shares the work has just created the run, its record first.
                Ok(Some(record)) if takes_over || settings.shard.is_some() => {
                    Ok(Existing::Run(Box::new(record)))
                }
                _ if takes_over => Ok(Existing::Remains),
                _ => Err(error),
            },
        },
        Err(StoreError::Record { .. }) if takes_over => Ok(Existing::Remains),
        Err(StoreError::Version { .. }) if settings.overwrite => Ok(Existing::Remains),
        Err(error) => Err(error.of_output()),
    }
}

/// Refuses remains of a run without a run.json. A run writes it first, so they are of a run whose record was lost, and
/// would be counted as the work of the new one.
pub(super) async fn refuse_remains(run: &RunStore) -> Result<(), Error> {
    match run.remains().await.map_err(StoreError::of_output)? {
        Some(remains) => Err(StoreError::NoRecord {
            place: run.display(""),
            remains,
        }
        .of_output()),
        None => Ok(()),
    }
}

impl Sweep {
    /// Takes over a run that has lost its record, if the input still asks for all tasks of the run.
    async fn rebuild(&mut self) -> Result<(), Error> {
        let run = &self.run;
        let refuse = |difference: String| NotResumable {
            place: run.display(""),
            difference,
        };
        let tasks = run.checked_parts(schema::TASKS).await;
        if tasks.map_err(StoreError::of_output)?.whole.is_empty() {
            let rollouts = run.parts(schema::ROLLOUTS).await;
            if !rollouts.map_err(StoreError::of_output)?.is_empty() {
                let why = "neither its run.json nor its tasks can be read, so the original settings are unknown; use --overwrite";
                return Err(refuse(why.to_owned()).into());
            }
        } else {
            let lost = identity::lost(run, &self.inputs.spool).await?;
            if !lost.is_empty() {
                return Err(refuse(format!(
                    "its run.json can't be read, and its tasks come from another input: {}",
                    lost.join("; ")
                ))
                .into());
            }
        }
        if let Some(run_id) = run.find_run_id().await.map_err(StoreError::of_output)? {
            self.record.run_id = run_id;
        }
        self.progress.notice(format!(
            "{} can't be read: it is written anew from the input and options that are given now",
            self.run.display("run.json")
        ));
        Ok(())
    }
}
