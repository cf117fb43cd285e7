use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Servers;
use super::close_match::close_match;
use super::config::Kind;
use crate::python::{repr_list, repr_str};

/// What a row says about where it goes. Rows that say the same are one route.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The environment server, where the row names one.
    pub server: Option<Arc<str>>,
    /// The agent.
    pub agent: Option<Arc<str>>,
    /// The task source.
    pub task_source: Option<Arc<str>>,
}

/// An agent, and the resources server that its rows are of.
type Pairing<'a> = (&'a str, Option<&'a str>);

impl Servers {
    /// Whether all routes lead to a server, and to one that accepts the agent.
    ///
    /// # Errors
    /// Why one does not; in the words of NeMo Gym where it has them.
    pub fn check(&self, routes: &BTreeSet<Route>, allow_unsupported: bool) -> Result<(), String> {
        let (named, direct): (Vec<&Route>, Vec<&Route>) =
            routes.iter().partition(|route| route.server.is_some());
        let pairings = self.pairings_of_servers(&named)?;
        self.check_agents(&pairings)?;
        self.check_pairings(&pairings, allow_unsupported)?;
        let pairings = direct.into_iter().filter_map(|route| {
            let agent = route.agent.as_deref()?;
            Some((agent, route.task_source.as_deref()))
        });
        let pairings: BTreeSet<Pairing<'_>> = pairings.collect();
        self.check_agents(&pairings)?;
        self.check_pairings(&pairings, allow_unsupported)?;
        if self.has_environment_servers() {
            for (agent, _) in pairings {
                self.server_of_agent(agent)?;
            }
        }
        Ok(())
    }

    /// The agents of the environment servers that rows name, and the resources servers of these.
    fn pairings_of_servers<'a>(
        &'a self,
        routes: &[&'a Route],
    ) -> Result<BTreeSet<Pairing<'a>>, String> {
        let servers = routes.iter().filter_map(|route| route.server.as_deref());
        let unknown: BTreeSet<&str> = servers
            .filter(|server| !self.is_environment_server(server))
            .collect();
        if !unknown.is_empty() {
            return Err(format!(
                "Environment servers are not present in the running config: {}",
                repr_list(unknown)
            ));
        }
        let mut pairings = BTreeSet::new();
        for route in routes {
            let Some(name) = route.server.as_deref() else {
                continue;
            };
            let Some(server) = self.instances.get(name) else {
                continue;
            };
            let quoted = repr_str(name);
            if let Some(agent) = route.agent.as_deref()
                && !server.agents.is_empty()
                && !server.agents.iter().any(|known| known == agent)
            {
                let agents = server.agents.iter().map(|agent| repr_str(agent));
                return Err(format!(
                    "Row agent_ref {} is not an agent of environment server {quoted}: {}",
                    repr_str(agent),
                    agents.collect::<Vec<_>>().join(", ")
                ));
            }
            let resources = server.resources_server.as_deref();
            if let (Some(source), Some(resources)) = (route.task_source.as_deref(), resources)
                && source != resources
            {
                return Err(format!(
                    "Row task_source {} does not match environment server {quoted} resources server {}",
                    repr_str(source),
                    repr_str(resources)
                ));
            }
            pairings.extend(server.own_agent.as_deref().map(|agent| (agent, resources)));
        }
        Ok(pairings)
    }

    fn check_agents(&self, pairings: &BTreeSet<Pairing<'_>>) -> Result<(), String> {
        let agents: BTreeSet<&str> = pairings.iter().map(|(agent, _)| *agent).collect();
        let unknown = agents
            .into_iter()
            .filter(|agent| !self.is(agent, Kind::Agent));
        let hints: Vec<String> = unknown.map(|agent| self.hint(agent)).collect();
        match hints.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "Rows reference agents not present in the running config: {}. Include the agent's config in the run, or \
                 re-route with +agent_map/+agent_name.",
                hints.join(", ")
            )),
        }
    }

    /// A name that is no agent's, and what may have been meant.
    fn hint(&self, name: &str) -> String {
        let quoted = repr_str(name);
        if self.instances.contains_key(name) {
            return format!("{quoted} (exists but is not an agent instance)");
        }
        match close_match(name, self.agents()) {
            Some(near) => format!("{quoted} (did you mean {}?)", repr_str(near)),
            None => quoted,
        }
    }

    /// Refuses agents whose type is not among those that their resources server accepts.
    fn check_pairings(
        &self,
        pairings: &BTreeSet<Pairing<'_>>,
        allow_unsupported: bool,
    ) -> Result<(), String> {
        if allow_unsupported || self.allow_unsupported_pairing {
            return Ok(());
        }
        let mut refused = BTreeMap::new();
        for (agent, source) in pairings {
            let Some(instance) = self.instances.get(*agent) else {
                continue;
            };
            let own = instance.resources_server.as_deref();
            let relations = [
                (*source, "their task_source"),
                (own, "the resources server it runs against"),
            ];
            for (verifier, relation) in relations {
                let allowed = verifier.and_then(|name| {
                    let verifier = self.instances.get(name);
                    verifier
                        .filter(|verifier| verifier.kind == Kind::Resources)?
                        .allowed_agents
                        .as_ref()
                });
                let (Some(verifier), Some(allowed)) = (verifier, allowed) else {
                    continue;
                };
                let kind = &instance.implementation;
                if !allowed.contains(kind) {
                    let line = format!(
                        "  - rows routed to '{agent}' run '{kind}', but {relation} '{verifier}' accepts only: {}",
                        allowed.join(", ")
                    );
                    refused.insert((*agent, verifier), line);
                }
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = refused.into_values().collect();
        Err(format!(
            "Rows would be scored by a verifier that does not accept the agent running them:\n{}\n\nRoute these rows to \
             an agent running one of the accepted types, or pass --allow-unsupported-pairing (or set \
             NEMO_GYM_ALLOW_UNSUPPORTED_PAIRING=1) to bypass the check.",
            lines.join("\n")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
rs: {resources_servers: {rs: {allowed_agents: [simple]}}}
one: {resources_servers: {one: {allowed_agents: simple}}}
a: {responses_api_agents: {simple: {resources_server: {name: rs}}}}
tool: {responses_api_agents: {tools: {resources_server: {name: rs}}}}
free: {responses_api_agents: {tools: {}}}
a_env: {environment_servers: {legacy_agent: {agent_server: {name: a}, resources_server: {name: rs}}}}
tool_env: {environment_servers: {legacy_agent: {agent_server: {name: tool}}}}
free_env: {environment_servers: {legacy_agent: {agent_server: {name: free}}}}
";

    fn check(route: [Option<&str>; 3], allow: bool) -> Result<(), String> {
        let [server, agent, task_source] = route.map(|name| name.map(Arc::from));
        let route = Route {
            server,
            agent,
            task_source,
        };
        let servers = Servers::parse(CONFIG).unwrap();
        servers.check(&BTreeSet::from([route]), allow)
    }

    #[test]
    fn agents_must_be_of_a_type_that_their_resources_servers_accept() {
        let direct = |agent, source| [None, Some(agent), source];
        assert_eq!(check(direct("a", Some("one")), false), Ok(()));
        assert_eq!(check(direct("free", None), false), Ok(()));
        for (route, expected) in [
            (
                direct("tool", None),
                "the resources server it runs against 'rs' accepts only: simple",
            ),
            (
                direct("free", Some("one")),
                "but their task_source 'one' accepts only: simple",
            ),
            ([Some("tool_env"), None, None], "'tool' run 'tools'"),
        ] {
            let message = check(route, false).unwrap_err();
            assert!(message.contains(expected), "{message}");
            assert_eq!(check(route, true), Ok(()));
        }
    }

    #[test]
    fn a_server_that_a_row_names_must_go_with_its_agent_and_source() {
        assert_eq!(check([Some("a_env"), Some("a"), Some("rs")], false), Ok(()));
        assert_eq!(check([Some("a_env"), None, None], false), Ok(()));
        for (route, expected) in [
            (
                [Some("x"), None, None],
                "not present in the running config: ['x']",
            ),
            (
                [Some("a"), None, None],
                "not present in the running config: ['a']",
            ),
            (
                [Some("a_env"), Some("free"), None],
                "'free' is not an agent of environment server 'a_env': 'a'",
            ),
            (
                [Some("a_env"), None, Some("one")],
                "'one' does not match environment server 'a_env'",
            ),
            ([None, Some("tol"), None], "'tol' (did you mean 'tool'?)"),
            (
                [None, Some("rs"), None],
                "'rs' (exists but is not an agent instance)",
            ),
        ] {
            let message = check(route, false).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
