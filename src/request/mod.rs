//! What is sent for a rollout.
//!
//! A task's request is JSON text; [`RequestTemplate`] knows the places in it that differ from rollout to rollout
//! (the rollout index, the seed, the attempt) and fills them without reading the text again. [`RequestError`]
//! says why a text cannot carry them. The names of those fields are here too: [`TASK_INDEX`], [`ROLLOUT_INDEX`],
//! [`ATTEMPT_INDEX`], [`AGENT_REF`], [`SKILLS_REF`] and [`RESPONSES_CREATE_PARAMS`].

mod extra_body;
mod python_json;
mod template;

pub use extra_body::ExtraBodyError;
pub use template::{RequestError, RequestTemplate};

/// The task's identity within a run; any JSON value.
pub const TASK_INDEX: &str = "_ng_task_index";
/// The rollout's number within its task, from 0.
pub const ROLLOUT_INDEX: &str = "_ng_rollout_index";
/// The number of failed attempts before this one; absent from the first.
pub const ATTEMPT_INDEX: &str = "_ng_attempt_index";
/// `{"name": ...}`: the agent that the rollout is for.
pub const AGENT_REF: &str = "agent_ref";
/// The skills that the agent is given.
pub const SKILLS_REF: &str = "skills_ref";
/// The conversation that a multi-turn rollout begins with, as NeMo RL has it.
pub const MESSAGE_LOG: &str = "message_log";
/// The request to the model.
pub const RESPONSES_CREATE_PARAMS: &str = "responses_create_params";
