//! A case as it is run: by the rules of one version of NeMo Gym, against what that version made of it.

use std::path::{Path, PathBuf};

use rollstream::gym::{GYM_05, GYM_07, GymChoice, GymRules};
use serde_json::Value;

/// A case under the rules of one version.
#[derive(Debug, Clone)]
pub struct Case {
    /// Where its files are.
    pub directory: PathBuf,
    /// What `case.json` says.
    pub json: Value,
    /// Where the expected files are.
    pub expected: PathBuf,
    /// The rules.
    pub rules: &'static GymRules,
}

impl Case {
    /// The case by each of the versions that something is expected of.
    pub fn all(directory: &Path, json: &Value) -> Vec<Self> {
        let suite = json["suite"].as_str().unwrap_or_default();
        let of = |expected: &str, rules| Self {
            directory: directory.to_owned(),
            json: json.clone(),
            expected: directory.join(expected),
            rules,
        };
        if suite.ends_with("07") {
            return vec![of("expected", &GYM_07)];
        }
        let mut all = vec![of("expected", &GYM_05)];
        if directory.join("expected_07").is_dir() {
            all.push(of("expected_07", &GYM_07));
        }
        all
    }

    /// The suite, whatever version its cases are of.
    pub fn suite(&self) -> &str {
        let suite = self.json["suite"].as_str().unwrap_or_default();
        suite.strip_suffix("07").unwrap_or(suite)
    }

    /// What a user would ask for.
    pub fn gym(&self) -> GymChoice {
        GymChoice::Of(self.rules)
    }

    /// Whether it is tagged so.
    pub fn has_tag(&self, tag: &str) -> bool {
        let tags = self.json["tags"].as_array();
        tags.is_some_and(|tags| tags.iter().any(|other| other == tag))
    }

    /// Whether an error is expected.
    pub fn expects_error(&self) -> bool {
        self.expected.join("error.json").exists()
    }
}
