//! [`Routing`]: the agents that get a row, by the rules of NeMo Gym 0.7.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::option_spec::{Identity, OptionSpec};
use super::{ConfigError, DEFAULT_AGENT, Settings};
use crate::gym::GymRules;
use crate::python::{repr_list, repr_str};

/// How rows that are not of a taskset find their environment server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoutingMode {
    /// The environment server that refers to the row's agent.
    #[default]
    Agent,
    /// The same environment server for all rows.
    Legacy,
    /// No common one: all rows must belong to tasksets.
    Taskset,
}

/// The settings of routing, checked together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The agent for rows that name this agent or task source.
    pub agent_map: BTreeMap<String, String>,
    /// The agent for all other rows.
    pub default_agent: Option<String>,
    /// The agents that each get a row that names this agent or task source.
    pub fan_out: BTreeMap<String, Vec<String>>,
    /// How rows that are not of a taskset find their environment server.
    pub mode: RoutingMode,
    /// The environment server of all rows that are not of a taskset, where there is one.
    pub server: Option<String>,
    /// Environment servers by taskset.
    pub server_routes: BTreeMap<String, String>,
}

impl Routing {
    /// Returns the keys of the settings that only rules with routing know.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        Self::options().map(|option| option.key)
    }

    fn options() -> impl Iterator<Item = &'static OptionSpec> {
        let options = Settings::options().iter();
        options.filter(|option| option.identity == Identity::Routing)
    }

    /// Returns the routing of the settings; none if the rules know no routing.
    ///
    /// # Errors
    /// The settings contradict each other, or the rules do not know them.
    pub fn of(settings: &Settings, rules: &GymRules) -> Result<Option<Self>, ConfigError> {
        if !rules.routing {
            let values = serde_json::to_value(settings).unwrap_or_default();
            let is_set = |option: &&OptionSpec| values.get(option.key) != Some(&option.default);
            return match Self::options().find(is_set) {
                Some(OptionSpec { key, .. }) => Err(ConfigError::Gym { key }),
                None => Ok(None),
            };
        }
        check_fan_out(&settings.fan_out)?;
        let needs = |key: &str, mode: &str| {
            let mode = format!("environment_routing_mode={mode}");
            Err(ConfigError::Routing(format!("{mode} needs {key}")))
        };
        match settings.environment_routing_mode {
            RoutingMode::Legacy if settings.server_of_all().is_none() => {
                return needs("environment_server_name", "legacy");
            }
            RoutingMode::Taskset if settings.environment_server_routes.is_empty() => {
                return needs("environment_server_routes", "taskset");
            }
            _ => {}
        }
        let mut agent_map = settings.agent_map.clone();
        let mapped = agent_map.remove(DEFAULT_AGENT);
        let agent = settings.agent.clone().filter(|agent| !agent.is_empty());
        if let (Some(agent), Some(mapped)) = (&agent, &mapped)
            && agent != mapped
        {
            return Err(ConfigError::Routing(format!(
                "agent={} conflicts with agent_map._default={}; set only one of them",
                repr_str(agent),
                repr_str(mapped)
            )));
        }
        Ok(Some(Self {
            agent_map,
            default_agent: agent.or(mapped),
            fan_out: settings.fan_out.clone(),
            mode: settings.environment_routing_mode,
            server: settings.server_of_all().map(str::to_owned),
            server_routes: settings.environment_server_routes.clone(),
        }))
    }
}

impl Settings {
    /// The environment server of all rows that are not of a taskset, where there is one.
    pub fn server_of_all(&self) -> Option<&str> {
        let server = self.environment_server_name.as_deref();
        server.filter(|_| self.environment_routing_mode == RoutingMode::Legacy)
    }
}

fn check_fan_out(fan_out: &BTreeMap<String, Vec<String>>) -> Result<(), ConfigError> {
    for (name, agents) in fan_out {
        let name = repr_str(name);
        if agents.is_empty() {
            return Err(ConfigError::Routing(format!(
                "fan_out[{name}] is an empty list, which would silently drop every matching row (zero rollouts \
                 collected). Remove the key, or list at least one agent."
            )));
        }
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<&String> = agents.iter().filter(|agent| !seen.insert(*agent)).collect();
        if !twice.is_empty() {
            return Err(ConfigError::Routing(format!(
                "fan_out[{name}] lists the same agent more than once: {}. Each listed agent already runs every matching \
                 row; use num_repeats for repetition.",
                repr_list(twice)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gym::{GYM_05, GYM_07};

    fn routing(yaml: &str) -> Result<Routing, String> {
        let settings: Settings = serde_yaml_ng::from_str(yaml).unwrap();
        let routing = Routing::of(&settings, &GYM_07).map_err(|error| error.to_string())?;
        Ok(routing.unwrap())
    }

    #[test]
    fn an_agent_is_the_default_of_the_map() {
        let both = routing("{agent: a, agent_map: {x: y, _default: a}}").unwrap();
        assert_eq!(both.default_agent.as_deref(), Some("a"));
        assert_eq!(both.agent_map.len(), 1);
        assert_eq!(routing("{agent: ''}").unwrap().default_agent, None);
        let conflict = routing("{agent: a, agent_map: {_default: b}}").unwrap_err();
        assert!(conflict.contains("conflicts"), "{conflict}");
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for (yaml, expected) in [
            ("{fan_out: {a: []}}", "fan_out['a'] is an empty list"),
            (
                "{fan_out: {a: [c, b, c, b]}}",
                "more than once: ['b', 'c'].",
            ),
            (
                "{environment_routing_mode: legacy}",
                "needs environment_server_name",
            ),
            (
                "{environment_routing_mode: taskset}",
                "needs environment_server_routes",
            ),
        ] {
            let message = routing(yaml).unwrap_err();
            assert!(message.contains(expected), "{yaml}: {message}");
        }
    }

    #[test]
    fn rules_without_routing_refuse_what_is_not_as_by_default() {
        let of = |yaml: &str| {
            let settings: Settings = serde_yaml_ng::from_str(yaml).unwrap();
            Routing::of(&settings, &GYM_05)
        };
        let defaults = "{agent: a, agent_map: null, fan_out: {}, environment_routing_mode: agent, \
                        allow_unsupported_pairing: true}";
        assert!(of(defaults).unwrap().is_none());
        for key in [
            "agent_map: {a: b}",
            "fan_out: {a: [b]}",
            "interleave_repeats: true",
            "environment_routing_mode: taskset",
            "environment_server_name: x",
            "environment_server_routes: {a: b}",
        ] {
            let message = of(&format!("{{{key}}}")).unwrap_err().to_string();
            let name = key.split(':').next().unwrap();
            assert!(
                message.contains(name) && message.contains("--gym 0.7"),
                "{message}"
            );
        }
    }
}
