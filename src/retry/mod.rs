//! Decides what follows a failed attempt: the one place where retries are decided.
//!
//! | to change | see |
//! |---|---|
//! | what kinds of failure exist, and what each counts against | [`FailureClass`] |
//! | how many failures a rollout may have | [`Budgets`], [`FailureCounts`] |
//! | how long to wait before the next attempt | [`Backoff`] |
//!
//! The run operator, the model client, the group manager and the object store retry by these rules; SQL asks them
//! through the function `failure_budget`. This module imports nothing of rollstream.

mod after_failure;
mod backoff;
mod failure;

pub use after_failure::{AfterFailure, Budget, Budgets, FailureCounts, Prior};
pub use backoff::Backoff;
pub use failure::{Failure, FailureClass, gym_class};
