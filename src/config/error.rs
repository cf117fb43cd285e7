//! [`ConfigError`]: errors in settings; and [`Origin`]: where the value of a setting came from.

use std::path::PathBuf;
use std::{fmt, io};

use super::KeyPath;
use crate::error::{Fatal, USAGE};

/// The reason why settings could not be resolved. Nothing has been read or sent yet.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file could not be read.
    #[error("cannot read the configuration file '{}': {source}; check the path given with --config or ROLLSTREAM_CONFIG", path.display())]
    ReadFile {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The extension of the configuration file is neither that of TOML nor that of YAML.
    #[error("cannot tell the format of the configuration file '{}'; name it .toml, .yaml or .yml", path.display())]
    FileFormat {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The configuration file is not valid TOML or YAML.
    #[error("the configuration file '{}' is not valid {format}: {message}", path.display())]
    ParseFile {
        /// The path as it was given.
        path: PathBuf,
        /// `TOML` or `YAML`.
        format: &'static str,
        /// The parser's message, with line and column if it knows them.
        message: String,
    },
    /// A key that is no setting.
    #[error("unknown setting `{key}` ({origin}); {hint}")]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// Where it was given.
        origin: Origin,
        /// The key that may have been meant.
        hint: String,
    },
    /// A value that the setting cannot have.
    #[error("the setting `{key}` ({origin}) is not valid: {reason}")]
    Invalid {
        /// The key, dotted.
        key: String,
        /// Where it was given.
        origin: Origin,
        /// The value that was found and the one that was expected. Never holds a secret.
        reason: String,
    },
    /// An option of NeMo Gym that means nothing to a collector.
    #[error("`{key}` has no meaning here: {reason}")]
    NoMeaning {
        /// The option as it was given, without its value.
        key: String,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// An argument that does not read as `+key=value`.
    #[error("cannot read the override `{text}`: {reason}")]
    Override {
        /// The argument, without its value if it has one.
        text: String,
        /// Why, and what to write instead.
        reason: String,
    },
    /// Two settings that exclude each other.
    #[error("{one} and {other} exclude each other; {remedy}")]
    Conflict {
        /// One setting, with its origin.
        one: String,
        /// The other setting, with its origin.
        other: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A setting that needs the rules of another version of NeMo Gym.
    #[error(
        "`{key}` needs the rules of NeMo Gym 0.7; name its head server (--head-server http://127.0.0.1:11000 unless it was moved), \
         give --gym 0.7, or leave it out"
    )]
    Gym {
        /// The setting.
        key: &'static str,
    },
    /// Settings that send rows nowhere, or to two places.
    #[error("{0}")]
    Routing(String),
    /// A setting that the command cannot do without.
    #[error("{what} is missing; {remedy}")]
    Missing {
        /// The missing setting.
        what: &'static str,
        /// The way to give it.
        remedy: &'static str,
    },
}

impl Fatal for ConfigError {
    fn exit_code(&self) -> u8 {
        USAGE
    }
}

impl ConfigError {
    /// A value that the setting cannot have.
    pub(super) fn invalid(key: &KeyPath, origin: &Origin, reason: impl Into<String>) -> Self {
        Self::Invalid {
            key: key.to_string(),
            origin: origin.clone(),
            reason: reason.into(),
        }
    }
}

/// The source of the value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// No layer sets it.
    #[default]
    Default,
    /// The configuration file, with the line of the key if it is known (from 1).
    File {
        /// The path as it was given.
        path: PathBuf,
        /// The line of the key.
        line: Option<usize>,
    },
    /// The environment variable of this name.
    Environment(String),
    /// A flag, such as `--concurrency`.
    Flag(String),
    /// An override without its value, such as `+num_samples_in_parallel`.
    Override(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Environment(name) | Self::Flag(name) | Self::Override(name) => f.write_str(name),
        }
    }
}
