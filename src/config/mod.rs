//! What a run was asked to do, and who asked for it.
//!
//! [`Settings`] are the typed options of a run. [`Layers`] collects what the defaults, a file, the environment and
//! the command line say, the later over the earlier, and resolves it into [`Resolved`]: the settings together with
//! the [`Origin`] of each. NeMo Gym's own option names are translated on the way in. Everything that can be wrong
//! with a setting by itself is a [`ConfigError`] here, so that later steps only meet values that make sense.

mod agent;
mod concurrency;
mod environment;
mod error;
mod fields;
mod file;
mod hydra;
mod interpolation;
mod key_path;
mod keys;
mod layers;
mod memory;
mod native;
mod nemo_gym;
mod origin;
mod overrides;
mod quantity;
mod repeats;
mod routing;
mod seed_field;
mod server_url;
mod settings;
mod shard;
mod tree;
mod variable_name;
mod yaml_line;

pub use agent::AgentSettings;
pub use concurrency::Concurrency;
pub use environment::{BEARER_TOKEN_VARIABLE, CONFIG_VARIABLE, PREFIX as ENVIRONMENT_PREFIX};
pub use error::ConfigError;
pub(crate) use hydra::{text as typed_text, value as typed_value};
pub use interpolation::InterpolationError;
pub(crate) use interpolation::{resolve, value_at};
pub use key_path::KeyPath;
pub use layers::{Argument, Layers, Resolved};
pub use memory::MemoryPlan;
pub use native::{AgentKind, Driver, GroupFailure, ModelApi, Resources, Rules};
pub use origin::Origin;
pub use quantity::{Bytes, Limit, Span};
pub use repeats::{DEFAULT_AGENT, Repeats, RepeatsError};
pub use routing::{Routing, RoutingMode};
pub use seed_field::{SeedField, UnknownSeedField};
pub use server_url::{ServerUrl, ServerUrlError};
pub use settings::Settings;
pub use shard::Shard;
pub use variable_name::{VariableName, VariableNameError};
