//! `rollstream sql`: one question, a script of them, or a conversation.

pub mod args;
mod catalog;
mod command;
mod completion;
mod editor;
mod engine;
mod functions;
mod interpreter;
mod repl;
pub(super) mod run_names;
mod script;
mod session;
mod start;
mod statements;

pub(super) use functions::first_sentence;
pub(super) use session::SqlSession;
pub(super) use start::sql;
pub(super) use statements::{Item, Statement, Statements};
