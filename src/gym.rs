//! Which version of NeMo Gym is followed: [`GymChoice`] is what was asked for, and [`GymRules`] says what each version means.
//! Nobody asks for a version, only for a rule.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// The text names no version of NeMo Gym whose rules are known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown version of NeMo Gym '{0}'; use 'auto', '0.5' or '0.7'")]
pub struct UnknownGymVersion(pub String);

impl fmt::Display for GymChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Of(rules) => rules.version,
        })
    }
}

impl FromStr for GymChoice {
    type Err = UnknownGymVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::Of(&GYM_05), Self::Of(&GYM_07)]
            .into_iter()
            .find(|choice| choice.to_string() == text.trim())
            .ok_or_else(|| UnknownGymVersion(text.to_owned()))
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
}
