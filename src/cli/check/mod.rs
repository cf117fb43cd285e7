//! `rollstream check`: assertions in SQL, for CI.

pub mod args;
mod gate;
mod start;
mod verdict;

pub(super) use start::check;
