//! Checks that rows lead to a server, and finds the agent of a task source. Errors are worded as in NeMo Gym.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{InstanceKind, Servers};
use crate::python::{repr_list, repr_str};

/// The server, agent and task source that a row names. Rows that name the same share a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The environment server, if the row names one.
    pub server: Option<Arc<str>>,
    /// The agent.
    pub agent: Option<Arc<str>>,
    /// The task source.
    pub task_source: Option<Arc<str>>,
}

/// An agent, and the resources server that its rows come from.
type Pairing<'a> = (&'a str, Option<&'a str>);

impl Servers {
    /// Checks that all routes lead to a server, and to one that accepts the agent.
    ///
    /// # Errors
    /// A route does not. The text says why, in the words of NeMo Gym if it has any.
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

    /// Returns the agents of the environment servers that rows name, each with its resources server.
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
            .filter(|agent| !self.is(agent, InstanceKind::Agent));
        let hints: Vec<String> = unknown.map(|agent| self.hint(agent)).collect();
        if hints.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "Rows reference agents not present in the running config: {}. Include the agent's config in the run, or \
                 re-route with +agent_map/+agent_name.",
                hints.join(", ")
            ))
        }
    }

    /// Formats a name that no agent has, with a hint at the name that may have been meant.
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
                        .filter(|verifier| verifier.kind == InstanceKind::Resources)?
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

impl Servers {
    /// Returns the agent that gets the rows of a task source: the instance of that name, or the agent of a resources
    /// server.
    ///
    /// # Errors
    /// There is no such agent, or more than one; in the words of NeMo Gym.
    pub fn agent_of_source(&self, source: &str) -> Result<String, String> {
        let quoted = repr_str(source);
        let Some(instance) = self.instances.get(source) else {
            let near = close_match(source, self.instances.keys().map(String::as_str));
            let near = near.map(|near| format!(" (did you mean {}?)", repr_str(near)));
            return Err(format!(
                "{quoted}: not in the running config{}",
                near.unwrap_or_default()
            ));
        };
        match instance.kind {
            InstanceKind::Plain => return Err(format!("{quoted}: not a server instance")),
            InstanceKind::Environment | InstanceKind::Other => {
                return Err(format!(
                    "{quoted}: instance is not an agent or resources server (datasets cannot route here)"
                ));
            }
            InstanceKind::Agent | InstanceKind::Resources => {}
        }
        let pin = match instance.pins.as_slice() {
            [] => None,
            [pin] => Some(pin),
            pins => {
                let mut pins = pins.to_vec();
                pins.sort_unstable();
                return Err(format!(
                    "{quoted}: its datasets pin conflicting agents ({}), which task_source alone cannot tell apart; pass \
                     +agent_map={{{source}: <agent>}} to pick one",
                    repr_list(pins)
                ));
            }
        };
        if instance.kind == InstanceKind::Agent {
            return match pin.filter(|pin| *pin != source) {
                None => Ok(source.to_owned()),
                Some(pin) => Err(format!(
                    "{quoted}: its datasets pin agent {}, but rows of an agent's own datasets go to that agent; drop the \
                     `agent:` key, or declare the dataset on the resources server",
                    repr_str(pin)
                )),
            };
        }
        let mut agents: Vec<&str> = self
            .agents()
            .filter(|agent| self.resources_server_of(agent) == Some(source))
            .collect();
        if let Some(pin) = pin {
            return if agents.contains(&pin.as_str()) {
                Ok(pin.clone())
            } else {
                Err(format!(
                    "{quoted}: its datasets pin agent {}, which is no agent that refers to this resources server ({})",
                    repr_str(pin),
                    repr_list(agents)
                ))
            };
        }
        agents.sort_unstable();
        match agents.as_slice() {
            [only] => Ok((*only).to_owned()),
            [] => Err(format!(
                "{quoted}: no agent in the running config references resources server {quoted}. Point an agent's \
                 `resources_server` at it, or declare the dataset on the agent."
            )),
            several => Err(format!(
                "{quoted}: {} agents reference this resources server ({}). Pin the harness with an `agent:` key on the \
                 dataset declaration, or pass +agent_map={{{source}: <agent>}} to pick one at run time.",
                several.len(),
                repr_list(several)
            )),
        }
    }
}

/// The least similarity of two names that are near.
const CUTOFF: f64 = 0.6;

/// Returns the name most like `word`, if one is near. Of several that are equally near, the last by code point.
///
/// For names of 200 or more characters, Python ignores frequent characters; here all count.
fn close_match<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().collect();
    let likeness = |name: &str| {
        let name: Vec<char> = name.chars().collect();
        let length = name.len() + word.len();
        match length {
            0 => 1.0,
            _ => 2.0 * in_common(&name, &word) as f64 / length as f64,
        }
    };
    names
        .map(|name| (likeness(name), name))
        .filter(|(likeness, _)| *likeness >= CUTOFF)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)))
        .map(|(_, name)| name)
}

/// Returns the number of common characters: of the longest common part, and of those before and after it.
fn in_common(a: &[char], b: &[char]) -> usize {
    let (mut length, mut end_a, mut end_b) = (0, 0, 0);
    // Lengths of the common parts that end before each place of `b`, for the character of `a` before.
    let mut before = vec![0; b.len() + 1];
    for (i, in_a) in a.iter().enumerate() {
        let mut now = vec![0; b.len() + 1];
        for (j, (in_b, (ended, end))) in b
            .iter()
            .zip(before.iter().zip(now.iter_mut().skip(1)))
            .enumerate()
        {
            if in_a == in_b {
                *end = ended + 1;
                if *end > length {
                    (length, end_a, end_b) = (*end, i + 1, j + 1);
                }
            }
        }
        before = now;
    }
    if length == 0 {
        return 0;
    }
    let part = |text: &[char], from: usize, to: usize| -> Vec<char> {
        text.get(from..to).unwrap_or_default().to_vec()
    };
    let left = in_common(&part(a, 0, end_a - length), &part(b, 0, end_b - length));
    let right = in_common(&part(a, end_a, a.len()), &part(b, end_b, b.len()));
    length + left + right
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

    const SOURCES: &str = "
number: 1
model: {responses_api_models: {m: {}}}
math: {resources_servers: {math: {datasets: [{agent: b}, {agent: b}, {}]}}}
odd: {resources_servers: {odd: {datasets: [{agent: own}]}}}
a: {responses_api_agents: {simple: {resources_server: {name: math}}}}
b: {responses_api_agents: {simple: {resources_server: {name: math}}}}
own: {responses_api_agents: {simple: {datasets: [{agent: own}]}}}
wrong: {responses_api_agents: {simple: {datasets: [{agent: a}]}}}
";

    #[test]
    fn a_task_source_is_an_agent_or_has_one() {
        let servers = Servers::parse(SOURCES).unwrap();
        let agent = |source: &str| servers.agent_of_source(source);
        assert_eq!(agent("math"), Ok("b".to_owned()));
        assert_eq!(agent("own"), Ok("own".to_owned()));
        assert_eq!(agent("a"), Ok("a".to_owned()));
        for (source, expected) in [
            ("number", "'number': not a server instance"),
            ("model", "instance is not an agent"),
            ("odd", "no agent that refers to this"),
            ("wrong", "pin agent 'a', but"),
            ("maths", "(did you mean 'math'?)"),
        ] {
            let message = agent(source).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    /// The expected values are those of CPython 3.13.
    #[test]
    fn near_names_are_those_of_difflib() {
        let names = ["ape", "apple", "peach", "puppy"];
        for (word, expected) in [
            ("appel", Some("apple")),
            ("ap", Some("ape")),
            ("puppies", Some("puppy")),
            ("zzz", None),
            ("", None),
        ] {
            assert_eq!(close_match(word, names.into_iter()), expected, "{word}");
        }
        let tie = ["abcx", "abcz", "abcy"];
        assert_eq!(close_match("abc", tie.into_iter()), Some("abcz"));
        // The longest common part counts, and not the largest number of common characters.
        assert_eq!(close_match("tide", ["diet"].into_iter()), None);
        assert_eq!(close_match("abcd", ["bcda"].into_iter()), Some("bcda"));
    }
}
