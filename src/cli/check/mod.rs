//! `rollstream check`: assertions in SQL and the health of rollouts, for CI.

pub mod args;
mod gate;
mod start;
mod verdict;

pub(super) use start::check;
