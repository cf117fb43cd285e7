//! The options of a run, and where the value of each came from.
//!
//! [`Settings`] are the options of a run, [`AgentSettings`] those of one agent: each option has one declaration, in
//! `options.rs` or `agent_options.rs` (see `option_spec.rs` for its form). [`Layers`] collects what the defaults, a file, the
//! environment and the command line set, the later over the earlier, and resolves it into [`Resolved`]: the settings with
//! the [`Origin`] of each. Names of NeMo Gym's options are translated on the way. Every invalid value is a
//! [`ConfigError`] here, so that later steps only meet values that make sense. Everybody uses this module; it uses
//! nothing of ours but `error`, `gym`, `python` and `retry`.

mod agent_options;
mod error;
mod fields;
mod layers;
mod memory;
mod names;
pub(crate) mod option_spec;
mod options;
mod quantity;
mod repeats;
mod routing;

pub use agent_options::{
    AgentKind, AgentSettings, Driver, GroupFailure, ModelApi, Resources, Rules,
};
pub use error::{ConfigError, Origin};
pub(crate) use fields::{gym_output, name_and_value, parameter_and_value};
pub use layers::{
    Argument, BEARER_TOKEN_VARIABLE, CONFIG_VARIABLE, InterpolationError, KeyPath, Layers,
    PREFIX as ENVIRONMENT_PREFIX, Resolved,
};
pub(crate) use layers::{resolve, similar, suggestion, typed_text, typed_value, value_at};
pub use memory::MemoryPlan;
pub use names::{Cluster, Secret, SeedField, ServerUrl, Split, VariableName};
pub use options::Settings;
pub use quantity::{Bytes, Concurrency, Limit, Shard, Span};
pub use repeats::{DEFAULT_AGENT, Repeats};
pub use routing::{Routing, RoutingMode};

/// The agent that `--model-url` and `--check` set up, before it gets the name of its model.
pub const MODEL_AGENT: &str = "model";

/// The environment for task names that no other one is for.
pub const DEFAULT_ENVIRONMENT: &str = DEFAULT_AGENT;
