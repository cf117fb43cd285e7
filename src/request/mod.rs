//! What is sent for a rollout.
//!
//! A task's request is JSON text; [`RequestTemplate`] knows the places in it that differ from rollout to rollout
//! (the rollout index, the seed, the attempt) and fills them without reading the text again. [`RequestError`]
//! says why a text cannot carry them. The names of those fields are here too: [`TASK_INDEX`], [`ROLLOUT_INDEX`],
//! [`ATTEMPT_INDEX`], [`AGENT_REF`], [`TASK_SOURCE`], [`ENVIRONMENT_SERVER`], [`SKILLS_REF`] and
//! [`RESPONSES_CREATE_PARAMS`].

mod extra_body;
mod template;

pub use extra_body::ExtraBodyError;
pub use template::{RequestError, RequestTemplate};

use crate::json::{Object, quote, unquote};

/// The task's identity within a run; any JSON value.
pub const TASK_INDEX: &str = "_ng_task_index";
/// The rollout's number within its task, from 0.
pub const ROLLOUT_INDEX: &str = "_ng_rollout_index";
/// The number of failed attempts before this one; absent from the first.
pub const ATTEMPT_INDEX: &str = "_ng_attempt_index";
/// `{"name": ...}`: the agent that the rollout is for.
pub const AGENT_REF: &str = "agent_ref";
/// The instance of NeMo Gym's configuration that declares the data set that the row is from.
pub const TASK_SOURCE: &str = "task_source";
/// The environment server that the row is sent to.
pub const ENVIRONMENT_SERVER: &str = "_ng_environment_server";
/// The implementation of the environment server that a result came from.
pub const RESULT_TYPE: &str = "_ng_result_type";
/// The id under which servers keep a rollout, where the row brings one.
pub const ROLLOUT_ID: &str = "_ng_rollout_id";
/// What identifies a task of a taskset: an object that names the taskset.
pub const TASK_ID: &str = "task_id";
/// What a task of a taskset is.
pub const TASK_INPUT: &str = "task_input";
/// The skills that the agent is given.
pub const SKILLS_REF: &str = "skills_ref";
/// The conversation that a multi-turn rollout begins with, as NeMo RL has it.
pub const MESSAGE_LOG: &str = "message_log";
/// The request to the model.
pub const RESPONSES_CREATE_PARAMS: &str = "responses_create_params";

/// An agent as [`AGENT_REF`] names it.
pub fn agent_ref(name: &str) -> String {
    format!("{{\"name\":{}}}", quote(name))
}

/// The name in a row's [`AGENT_REF`].
pub fn agent_name(row: &Object<'_>) -> Option<String> {
    let agent = Object::parse(row.get(AGENT_REF)?).ok()?;
    unquote(agent.get("name")?).map(|name| name.into_owned())
}
