//! Prompts made of a template and a task's own fields.
//!
//! [`Prompt`] is a prompt file: a user text and perhaps a system text, both in Python's format syntax, because the
//! files are shared with Python tools. [`Prompt::messages`] fills them from one task. [`PromptError`] is what can
//! be wrong with the file, [`FillError`] what can be wrong with a task.

mod file;
mod float;
mod number;
mod spec;
mod syntax;
mod template;
mod value;

pub use file::{Prompt, PromptError};
pub use syntax::TemplateError;
pub use template::FillError;
pub(super) use value::is_truthy;
