//! Which version of NeMo Gym is followed: [`GymChoice`] is what was asked for, [`GymRules`] says what each version means,
//! and [`Routing`] sends rows to agents by the rules of 0.7. Nobody asks for a version, only for a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::option_spec::{Identity, OptionSpec};
use super::{ConfigError, DEFAULT_AGENT, Settings};
use crate::python::{repr_list, repr_str};

/// The file of a run that has all its metrics, as NeMo Gym writes them.
pub const AGGREGATE_METRICS: &str = "aggregate_metrics.json";

/// The rules by which versions of NeMo Gym differ.
#[derive(Debug, PartialEq, Eq)]
pub struct GymRules {
    /// The version.
    pub version: &'static str,
    /// A rollout whose answer has a truthy `mask_sample` is done, and in no metric of quality.
    pub masks: bool,
    /// In NeMo Gym's files, numbers whose names begin with `_` are metrics, and so is `mask_sample`.
    pub reserved: bool,
    /// NeMo Gym's files tell of the repeats of a data set, and of what was observed of turns and tokens.
    pub repeats: bool,
    /// Rows of its files need no response, and keys that they lack count as 0.
    pub lenient_rows: bool,
    /// Rollouts are of the environment server that their rows name, and of their agent where they name none; its server
    /// is shown more of an answer: `incomplete_details`, and a usage that is empty.
    pub servers: bool,
    /// What an agent's server says of a metric counts, also where we computed it otherwise.
    pub servers_prevail: bool,
    /// An answer without a reward is a rollout without a score, and no failure.
    pub unscored: bool,
    /// NeMo Gym's file of failures also has those without an answer.
    pub all_failures: bool,
    /// Blank lines among rollouts are passed over.
    pub blank_rollouts: bool,
    /// A run of which nothing can be scored ends with an error.
    pub needs_score: bool,
    /// A reward profile has a line for each agent at a task, where several agents worked on one.
    pub lines_by_agent: bool,
    /// A collection ends with a check of the health of its rollouts.
    pub health: bool,
    /// Settings route rows: `agent` replaces the agent that a row names, a row may name a task source or a taskset
    /// instead of an agent, and rows are sent to environment servers.
    pub routing: bool,
}

/// The rules of 0.5.
pub static GYM_05: GymRules = GymRules::new("0.5", false);

/// The rules of 0.7.
pub static GYM_07: GymRules = GymRules::new("0.7", true);

/// The version of NeMo Gym that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GymChoice {
    /// The one that the run, the files or the head server are of.
    #[default]
    Auto,
    /// This one, by hand.
    Of(&'static GymRules),
}

impl GymChoice {
    /// The rules that hold. `is_new` says whether the run, the files or the head server are of 0.7.
    pub fn rules(self, is_new: impl FnOnce() -> bool) -> &'static GymRules {
        match self {
            Self::Of(rules) => rules,
            Self::Auto if is_new() => &GYM_07,
            Self::Auto => &GYM_05,
        }
    }
}

impl GymRules {
    /// The rules of a version, from 0.7 on or before it.
    const fn new(version: &'static str, is_new: bool) -> Self {
        Self {
            version,
            masks: is_new,
            reserved: !is_new,
            repeats: is_new,
            lenient_rows: is_new,
            servers: is_new,
            servers_prevail: is_new,
            unscored: is_new,
            all_failures: is_new,
            blank_rollouts: is_new,
            needs_score: is_new,
            lines_by_agent: is_new,
            health: is_new,
            routing: is_new,
        }
    }

    /// The rules of a version; those of 0.5 if none is named, as in older runs.
    pub fn of(version: Option<&str>) -> &'static Self {
        match version {
            Some(version) if version == GYM_07.version => &GYM_07,
            _ => &GYM_05,
        }
    }
}

impl fmt::Display for GymChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Of(rules) => rules.version,
        })
    }
}

impl FromStr for GymChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Of(&GYM_05), Self::Of(&GYM_07)]
            .into_iter()
            .find(|choice| choice.to_string() == text.trim())
            .ok_or_else(|| {
                format!("unknown version of NeMo Gym '{text}'; use 'auto', '0.5' or '0.7'")
            })
    }
}

impl Serialize for GymChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GymChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // In a file, a version without quotes is a number.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Version {
            Text(String),
            Number(f64),
        }
        let text = match Version::deserialize(deserializer)? {
            Version::Text(text) => text,
            Version::Number(number) => number.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How rows that are not of a taskset find their environment server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoutingMode {
    /// By their agent: it is the one that refers to the agent.
    #[default]
    Agent,
    /// It is the same for all.
    Legacy,
    /// There may be none: all rows are of a taskset.
    Taskset,
}

/// Settings of routing, checked together.
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
    /// The settings that only rules with routing know.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        Self::options().map(|option| option.key)
    }

    fn options() -> impl Iterator<Item = &'static OptionSpec> {
        let options = Settings::options().iter();
        options.filter(|option| option.identity == Identity::Routing)
    }

    /// The routing of the settings; none where the rules know no routing.
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

    #[test]
    fn a_version_reads_as_it_is_written_also_as_a_number() {
        for text in ["auto", "0.5", "0.7"] {
            let choice: GymChoice = text.parse().unwrap();
            assert_eq!(choice.to_string(), text);
            let json = serde_json::to_string(&choice).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<GymChoice>(&json).unwrap(), choice);
            assert_eq!(serde_yaml_ng::from_str::<GymChoice>(text).unwrap(), choice);
        }
        assert!("0.6".parse::<GymChoice>().is_err());
        assert!(serde_yaml_ng::from_str::<GymChoice>("0.6").is_err());
    }

    #[test]
    fn what_is_asked_for_by_hand_holds_whatever_is_there() {
        assert_eq!(GymChoice::Of(&GYM_05).rules(|| true), &GYM_05);
        assert_eq!(GymChoice::Auto.rules(|| true), &GYM_07);
        assert_eq!(GymChoice::Auto.rules(|| false), &GYM_05);
        assert_eq!(GymRules::of(None), &GYM_05);
    }

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
