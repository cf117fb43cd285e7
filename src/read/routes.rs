//! [`Router`]: decides who gets a row, by the rules of NeMo Gym 0.7.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::errors::Kind;
use super::row::{self, Refusal};
use crate::config::{Routing, RoutingMode};
use crate::json::{Object, unquote};
use crate::python::repr_str;
use crate::request::{
    AGENT_REF, ENVIRONMENT_SERVER, ROLLOUT_INDEX, TASK_ID, TASK_INPUT, TASK_SOURCE, agent_ref,
};
use crate::servers::{Route, Servers};

/// The routing rules, with the look-ups and replacements so far.
pub(super) struct Router {
    routing: Routing,
    servers: Option<Arc<Servers>>,
    /// Agents of task sources, each looked up once.
    sources: HashMap<Arc<str>, Result<Arc<str>, String>>,
    /// Agents named in rows and the agents that replaced them, with the number of rows.
    replaced: BTreeMap<(String, Arc<str>), u64>,
    routes: BTreeSet<Route>,
}

/// Who gets a row.
#[derive(Default)]
pub(super) struct Way {
    /// The name in the row: its agent, its task source or its taskset.
    pub own: Option<Arc<str>>,
    /// The environment server that is written into the row.
    pub server: Option<Arc<str>>,
    /// Whether the row is of a taskset.
    pub is_task: bool,
    task_source: Option<Arc<str>>,
    pub targets: Vec<Target>,
}

/// A recipient of a row.
pub(super) enum Target {
    /// An agent by its name.
    Agent(Arc<str>),
    /// The agent of the row's task source.
    OfSource(Arc<str>),
    /// The environment server.
    OfServer,
}

impl Target {
    /// Returns the name of an agent that needs no look-up.
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

    /// Determines who gets a row, and writes the agent that it is mapped to into the row.
    pub(super) fn way(&mut self, row: &mut Object<'_>) -> Result<Way, Refusal> {
        let task_source = name_in(row, TASK_SOURCE)?;
        if let Some(taskset) = taskset(row) {
            let server = self.routing.server_routes.get(&taskset).ok_or_else(|| {
                let taskset = repr_str(&taskset);
                let what =
                    format!("No environment server route is configured for taskset {taskset}");
                (Kind::Task, what)
            })?;
            return Ok(Way {
                own: Some(Arc::from(taskset)),
                server: Some(Arc::from(server.as_str())),
                is_task: true,
                targets: vec![Target::OfServer],
                ..Way::default()
            });
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
                return Ok(Way {
                    own: Some(own),
                    server: Some(server),
                    task_source,
                    targets: vec![Target::OfServer],
                    ..Way::default()
                });
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
            task_source,
            targets,
            ..Way::default()
        })
    }

    /// Returns the agent that replaces the one that a row names.
    fn mapped(&self, agent: Option<&str>, task_source: Option<&str>) -> Option<Arc<str>> {
        let names = [agent, task_source].into_iter().flatten();
        let mut entries = names.filter_map(|name| self.routing.agent_map.get(name));
        let mapped = entries.next().or(self.routing.default_agent.as_ref());
        mapped.map(|name| Arc::from(name.as_str()))
    }

    /// Writes the recipient into a row that has its numbers already. Returns the recipient's name in the tables.
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
            // A looked-up agent stands behind the numbers in the row.
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

    /// Returns the recipient's name: its agent, unless the agent usually has another environment server.
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
                    "{}: only NeMo Gym's head server knows its agent, but no head server was reached (--head-server)",
                    repr_str(source)
                )),
            };
            found.map(Arc::from)
        });
        found.clone().map_err(|why| (Kind::TaskSource, why))
    }

    /// Returns the number of rows in which another agent replaced the named one.
    pub(super) fn num_replaced(&self) -> u64 {
        self.replaced.values().sum()
    }

    /// Returns NeMo Gym's warning that agents were replaced, if any were.
    pub(super) fn warning(&self) -> Option<String> {
        let pairs = self.replaced.keys();
        let pairs = pairs.map(|(from, to)| format!("({}, {})", repr_str(from), repr_str(to)));
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

/// Returns the name in a field; `None` if it is missing or null.
fn name_in(row: &Object<'_>, field: &str) -> Result<Option<Arc<str>>, Refusal> {
    match row.get(field) {
        None | Some("null") => Ok(None),
        Some(value) => match unquote(value) {
            Some(name) => Ok(Some(Arc::from(&*name))),
            None => Err((Kind::Task, format!("{field} must be a string"))),
        },
    }
}

/// Returns the taskset of a row; `None` for other rows.
fn taskset(row: &Object<'_>) -> Option<String> {
    let task_id = row.get(TASK_ID).filter(|_| row.contains(TASK_INPUT))?;
    let task_id = Object::parse(task_id).ok()?;
    let taskset = unquote(task_id.get("taskset")?)?;
    (!taskset.is_empty()).then(|| taskset.into_owned())
}

#[cfg(test)]
mod tests {
    use crate::config::{Repeats, Routing, SeedField, Settings};
    use crate::gym::GYM_07;
    use crate::read::{ReadError, ReadOptions, ReadSummary, TaskReader, TaskRow};
    use crate::servers::Servers;

    const CONFIG: &str = "
rs: {resources_servers: {rs: {}}}
a: {responses_api_agents: {simple: {resources_server: {name: rs}}}}
b: {responses_api_agents: {simple: {}}}
a_env: {environment_servers: {legacy_agent: {agent_server: {name: a}}}}
b_env: {environment_servers: {legacy_agent: {agent_server: {name: b}}}}
both: {environment_servers: {turns: {agent_server: {name: b}, other: {type: responses_api_agents, name: b}}}}
";

    fn options(settings: &str) -> ReadOptions {
        let settings: Settings = serde_yaml_ng::from_str(settings).unwrap();
        ReadOptions {
            routing: Some(Routing::of(&settings, &GYM_07).unwrap().unwrap()),
            servers: Some(Servers::parse(CONFIG).unwrap().into()),
            ..ReadOptions::default()
        }
    }

    fn read(options: ReadOptions, lines: &[&str]) -> Result<(Vec<TaskRow>, ReadSummary), String> {
        let mut tasks = TaskReader::new(options);
        let mut rows = Vec::new();
        let emit = |row| {
            rows.push(row);
            Ok::<(), ReadError>(())
        };
        tasks
            .read("in", (lines.join("\n") + "\n").as_bytes(), emit)
            .unwrap();
        let summary = tasks
            .finish()
            .map_err(|errors| errors.messages().join("\n"))?;
        Ok((rows, summary))
    }

    fn sent(settings: &str, line: &str) -> (String, String) {
        let (mut rows, _) = read(options(settings), &[line]).unwrap();
        let row = rows.remove(0);
        (row.agent_name.to_string(), row.request)
    }

    const LEGACY: &str = "{environment_routing_mode: legacy, environment_server_name: both}";

    #[test]
    fn in_the_mode_legacy_all_rows_go_to_one_server() {
        let (agent, request) = sent(
            LEGACY,
            r#"{"responses_create_params":{},"agent_ref":{"name":"b","x":1}}"#,
        );
        assert_eq!(agent, "b");
        assert_eq!(
            request,
            r#"{"responses_create_params":{},"agent_ref":{"name":"b","x":1},"_ng_task_index":0,"_ng_environment_server":"both"}"#
        );
        let (agent, request) = sent(LEGACY, r#"{"responses_create_params":{}}"#);
        assert_eq!(agent, "b");
        assert_eq!(
            request,
            r#"{"responses_create_params":{},"_ng_task_index":0,"_ng_environment_server":"both","_ng_rollout_index":0,"agent_ref":{"name":"b"}}"#
        );
    }

    #[test]
    fn a_row_may_bring_its_environment_server() {
        let line = |agent: &str, server: &str| {
            format!(
                r#"{{"responses_create_params":{{}},"agent_ref":{{"name":"{agent}"}},"_ng_environment_server":"{server}"}}"#
            )
        };
        assert_eq!(sent("{}", &line("a", "a_env")).0, "a");
        // Its agent has two: the name says which.
        assert_eq!(sent("{}", &line("b", "both")).0, "both");
    }

    #[test]
    fn rows_of_tasksets_need_a_route_and_cannot_be_changed() {
        let task = r#"{"task_id":{"taskset":"s"},"task_input":{}}"#;
        let routes = "{environment_server_routes: {s: both}}";
        assert_eq!(sent(routes, task).0, "both");
        let refused = |options: ReadOptions, line: &str| read(options, &[line]).unwrap_err();
        let message = refused(options("{}"), task);
        assert!(message.contains("for taskset 's'"), "{message}");
        let seeded = ReadOptions {
            seed: Some(SeedField::default()),
            ..options(routes)
        };
        let message = refused(seeded, task);
        assert!(message.contains("num_repeats_add_seed"), "{message}");
        let only = "{environment_routing_mode: taskset, environment_server_routes: {s: both}}";
        let message = refused(options(only), r#"{"responses_create_params":{}}"#);
        assert!(message.contains("taskset routing"), "{message}");
    }

    #[test]
    fn an_agent_without_a_number_of_repeats_is_named_with_what_the_row_named() {
        let options = ReadOptions {
            repeats: Repeats::per_agent(vec![("x".to_owned(), 1)]).unwrap(),
            ..options("{fan_out: {a: [a, b]}}")
        };
        let line = r#"{"responses_create_params":{},"agent_ref":{"name":"a"}}"#;
        let message = read(options, &[line]).unwrap_err();
        assert!(message.contains("keys ['a', 'b / a'] and no"), "{message}");
    }

    #[test]
    fn a_seed_finds_room_in_metadata_that_is_null() {
        let options = ReadOptions {
            seed: Some(SeedField::MetadataExtraBody),
            ..options("{agent: a}")
        };
        let line = r#"{"responses_create_params":{"metadata":null,"n":null}}"#;
        let (rows, summary) = read(options, &[line]).unwrap();
        assert!(rows[0].request.contains(r#"{"metadata":{},"n":null}"#));
        assert_eq!(summary.num_replaced, 0);
    }

    #[test]
    fn task_sources_need_somebody_who_knows_them() {
        let line = r#"{"responses_create_params":{},"task_source":"rs"}"#;
        assert_eq!(sent("{}", line).0, "a");
        let options = ReadOptions {
            servers: None,
            ..options("{}")
        };
        let message = read(options, &[line]).unwrap_err();
        assert!(message.contains("--head-server"), "{message}");
    }
}
