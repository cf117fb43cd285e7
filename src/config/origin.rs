//! [`Origin`]: who set a value.

use std::fmt;
use std::path::PathBuf;

/// Where the value of a setting came from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody asked for anything else.
    #[default]
    Default,
    /// The configuration file, with the line of the key where it is known (1-based).
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
