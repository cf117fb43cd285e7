//! [`Router`]: who gets a row, by the rules of NeMo Gym 0.7.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::errors::Kind;
use super::row::{self, Refusal};
use crate::config::{Routing, RoutingMode};
use crate::json::{Object, python_string, quote, unquote};
use crate::request::{
    AGENT_REF, ENVIRONMENT_SERVER, ROLLOUT_INDEX, TASK_ID, TASK_INPUT, TASK_SOURCE,
};
use crate::servers::{Route, Servers};

/// What is known of the way of rows, and what was learned of it.
pub(super) struct Router {
    routing: Routing,
    servers: Option<Arc<Servers>>,
    /// Agents of task sources, each asked for once.
    sources: HashMap<Arc<str>, Result<Arc<str>, String>>,
    /// Names of agents in rows, and the others that they were replaced by, with the number of rows.
    replaced: BTreeMap<(String, Arc<str>), u64>,
    routes: BTreeSet<Route>,
}

/// Who gets a row.
pub(super) struct Way {
    /// What it names itself: its agent, its task source or its taskset.
    pub own: Option<Arc<str>>,
    /// The environment server that is to stand in the row.
    pub server: Option<Arc<str>>,
    /// The row is of a taskset.
    pub is_task: bool,
    task_source: Option<Arc<str>>,
    targets: Vec<Target>,
}

/// One who gets a row.
pub(super) enum Target {
    /// An agent by its name.
    Agent(Arc<str>),
    /// The agent of the row's task source.
    OfSource(Arc<str>),
    /// The environment server.
    OfServer,
}

impl Way {
    pub(super) fn take_targets(&mut self) -> Vec<Target> {
        std::mem::take(&mut self.targets)
    }
}

impl Target {
    /// The name that it has before anything is looked up.
    pub(super) fn name(&self) -> Option<&Arc<str>> {
        match self {
            Self::Agent(name) => Some(name),
            Self::OfSource(_) | Self::OfServer => None,
        }
    }
}

impl Router {
    pub(super) fn new(routing: Routing, servers: Option<Arc<Servers>>) -> Self {
        Self {
            routing,
            servers,
            sources: HashMap::new(),
            replaced: BTreeMap::new(),
            routes: BTreeSet::new(),
        }
    }

    /// Finds out who gets a row, and has the row name the agent that it is mapped to.
    pub(super) fn way(&mut self, row: &mut Object<'_>) -> Result<Way, Refusal> {
        let task_source = name_in(row, TASK_SOURCE)?;
        if let Some(taskset) = taskset(row) {
            let server = self.routing.server_routes.get(&taskset).ok_or_else(|| {
                let taskset = python_string(&taskset);
                let what =
                    format!("No environment server route is configured for taskset {taskset}");
                (Kind::Task, what)
            })?;
            return Ok(Way::to_server(
                Arc::from(server.as_str()),
                Arc::from(taskset),
                None,
                true,
            ));
        }
        let agent = match row::agent_name(row) {
            Ok(name) => Some(name),
            Err((Kind::NoAgent, _)) => None,
            Err(refusal) => return Err(refusal),
        };
        match self.routing.mode {
            RoutingMode::Taskset => {
                let what = "taskset routing takes only rows with task_id.taskset and task_input; give \
                            environment_routing_mode=agent for a mixed input";
                return Err((Kind::Task, what.to_owned()));
            }
            RoutingMode::Legacy => {
                let server: Arc<str> =
                    Arc::from(self.routing.server.as_deref().unwrap_or_default());
                let own = task_source.clone().unwrap_or_else(|| Arc::clone(&server));
                return Ok(Way::to_server(server, own, task_source, false));
            }
            RoutingMode::Agent => {}
        }
        let own: Option<Arc<str>> = agent
            .as_deref()
            .map(Arc::from)
            .or_else(|| task_source.clone());
        let agent = match self.mapped(agent.as_deref(), task_source.as_deref()) {
            Some(mapped) => {
                if let Some(agent) = agent.filter(|agent| **agent != *mapped) {
                    *self
                        .replaced
                        .entry((agent, Arc::clone(&mapped)))
                        .or_default() += 1;
                }
                row.set(AGENT_REF, agent_ref(&mapped));
                Some(mapped)
            }
            None => agent.map(Arc::from),
        };
        let fanned = own.as_deref().and_then(|own| self.routing.fan_out.get(own));
        let targets = match (fanned, agent, &task_source) {
            (Some(agents), ..) => agents
                .iter()
                .map(|agent| Target::Agent(Arc::from(agent.as_str())))
                .collect(),
            (None, Some(agent), _) => vec![Target::Agent(agent)],
            (None, None, Some(source)) => vec![Target::OfSource(Arc::clone(source))],
            (None, None, None) => return Err((Kind::NoAgent, String::new())),
        };
        Ok(Way {
            own,
            server: None,
            is_task: false,
            task_source,
            targets,
        })
    }

    /// The agent that takes the place of what a row names.
    fn mapped(&self, agent: Option<&str>, task_source: Option<&str>) -> Option<Arc<str>> {
        let names = [agent, task_source].into_iter().flatten();
        let mut entries = names.filter_map(|name| self.routing.agent_map.get(name));
        let mapped = entries.next().or(self.routing.default_agent.as_ref());
        mapped.map(|name| Arc::from(name.as_str()))
    }

    /// Writes the agent, or what stands for it, into a row whose numbers have been written. Gives the name that the
    /// tables have of who gets it.
    pub(super) fn address(
        &mut self,
        row: &mut Object<'_>,
        way: &Way,
        target: &Target,
    ) -> Result<Arc<str>, Refusal> {
        let own_agent = row::agent_name(row).ok();
        let own_server = name_in(row, ENVIRONMENT_SERVER)?;
        let is_named = own_agent.is_some();
        let agent = match target {
            Target::Agent(name) => {
                if own_agent.as_deref() != Some(name) {
                    row.set(AGENT_REF, agent_ref(name));
                }
                Some(Arc::clone(name))
            }
            Target::OfSource(_) if own_server.is_some() => None,
            Target::OfSource(source) => Some(self.of_source(source)?),
            Target::OfServer if way.is_task => None,
            Target::OfServer => own_agent.map(Arc::from),
        };
        let of_server = |server: &Arc<str>| {
            let servers = self.servers.as_deref()?;
            servers.agent_of_server(server).map(Arc::from)
        };
        let agent = match &own_server {
            Some(server) if !way.is_task => agent.or_else(|| of_server(server)),
            _ => agent,
        };
        if let Some(agent) = &agent
            && !is_named
            && target.name().is_none()
        {
            // What is looked up stands behind the numbers.
            if !row.contains(AGENT_REF) && !row.contains(ROLLOUT_INDEX) {
                row.set(ROLLOUT_INDEX, "0");
            }
            row.set(AGENT_REF, agent_ref(agent));
        }
        self.routes.insert(Route {
            server: own_server.clone(),
            agent: agent.clone(),
            task_source: way.task_source.clone(),
        });
        Ok(self.name(agent, own_server))
    }

    /// The name of who gets a row: its agent, unless that has another environment server.
    fn name(&self, agent: Option<Arc<str>>, server: Option<Arc<str>>) -> Arc<str> {
        let is_usual = |agent: &str, server: &str| {
            let servers = self.servers.as_deref();
            let usual = servers.and_then(|servers| servers.server_of_agent(agent).ok());
            self.routing.mode == RoutingMode::Legacy || usual == Some(server)
        };
        match (agent, server) {
            (Some(agent), Some(server)) if !is_usual(&agent, &server) => server,
            (Some(agent), _) => agent,
            (None, server) => server.unwrap_or_default(),
        }
    }

    fn of_source(&mut self, source: &Arc<str>) -> Result<Arc<str>, Refusal> {
        let servers = self.servers.as_deref();
        let found = self.sources.entry(Arc::clone(source)).or_insert_with(|| {
            let found = match servers {
                Some(servers) => servers.agent_of_source(source),
                None => Err(format!(
                    "{}: only NeMo Gym's head server knows its agent, and none was reached (--head-server)",
                    python_string(source)
                )),
            };
            found.map(Arc::from)
        });
        found.clone().map_err(|why| (Kind::TaskSource, why))
    }

    /// In how many rows another agent took the place of the one that they name.
    pub(super) fn num_replaced(&self) -> u64 {
        self.replaced.values().sum()
    }

    /// That agents were replaced, in the words of NeMo Gym.
    pub(super) fn warning(&self) -> Option<String> {
        let pairs = self.replaced.keys();
        let pairs =
            pairs.map(|(from, to)| format!("({}, {})", python_string(from), python_string(to)));
        let pairs: Vec<String> = pairs.collect();
        (!pairs.is_empty()).then(|| {
            format!(
                "agent_map overrode agent_ref values already present in the data: [{}]. Prior to this release, \
                 +agent_name only filled rows missing an agent_ref; it now re-routes every row.",
                pairs.join(", ")
            )
        })
    }

    pub(super) fn into_routes(self) -> BTreeSet<Route> {
        self.routes
    }
}

impl Way {
    fn to_server(
        server: Arc<str>,
        own: Arc<str>,
        task_source: Option<Arc<str>>,
        is_task: bool,
    ) -> Self {
        Self {
            own: Some(own),
            targets: vec![Target::OfServer],
            server: Some(server),
            is_task,
            task_source,
        }
    }
}

fn agent_ref(name: &str) -> String {
    format!("{{\"name\":{}}}", quote(name))
}

/// A field that is a name; null is none.
fn name_in(row: &Object<'_>, field: &str) -> Result<Option<Arc<str>>, Refusal> {
    match row.get(field) {
        None | Some("null") => Ok(None),
        Some(value) => match unquote(value) {
            Some(name) => Ok(Some(Arc::from(&*name))),
            None => Err((Kind::Task, format!("{field} must be a string"))),
        },
    }
}

/// The taskset that a row is of; none where it is a row of the usual kind.
fn taskset(row: &Object<'_>) -> Option<String> {
    let task_id = row.get(TASK_ID).filter(|_| row.contains(TASK_INPUT))?;
    let task_id = Object::parse(task_id).ok()?;
    let taskset = unquote(task_id.get("taskset")?)?;
    (!taskset.is_empty()).then(|| taskset.into_owned())
}
