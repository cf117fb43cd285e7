//! Rollouts of language-model agents, collected as a batch dataflow: tasks are rows of a table,
//! repeats a relational expansion, calls a streaming operator, answers Parquet, metrics SQL.
//!
//! ```text
//!   read ──► expand ──► run ──► land ──► measure ──► show
//! ```
//!
//! [`Sweep`] joins the steps and is where to begin; the command line is built on it. The modules,
//! in the order of the data:
//!
//! | module | what it knows |
//! |---|---|
//! | [`config`], [`gym`] | settings, and where each came from; which version of NeMo Gym is followed |
//! | [`read`], [`import`] | JSONL, prompt templates, overrides, the identity of tasks |
//! | [`expand`] | repeats, and which rollouts are still pending |
//! | [`request`], [`servers`], [`agent`] | what is sent, to whom, and what came back |
//! | [`call`], [`model`], [`environment`] | the calls within a rollout that runs here, and whom they ask |
//! | [`retry`] | what kinds of failure there are, and what follows from a failed attempt |
//! | [`operator`] | operators of ours in a logical plan |
//! | [`run`] | the operator that keeps calls in flight |
//! | [`outcome`], [`land`], [`store`] | what became of an attempt, and how it is kept |
//! | [`session`], [`measure`] | a run as tables, and what they say |
//! | [`group`] | all rollouts of a prompt as one record, for a trainer |
//! | [`json`], [`python`] | JSON as text; Python's truth, equality, printing and formats |
//! | [`export`] | a run as the files of another tool |
//! | [`health`] | whether rollouts are what they seem |
//! | [`guide`] | pages for whoever uses it |
//! | [`progress`], [`report`], [`status`], [`show`], [`cli`] | what people see |
//! | [`sim`] | agents to try all this with |

#![cfg_attr(test, allow(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod agent;
pub mod call;
pub mod cli;
pub mod config;
pub mod environment;
mod error;
pub mod expand;
pub mod export;
pub mod group;
pub mod guide;
pub mod health;
pub mod http;
pub mod import;
pub mod json;
pub mod land;
pub mod measure;
pub mod model;
pub mod operator;
pub mod outcome;
pub mod progress;
pub mod python;
pub mod read;
pub mod report;
pub mod request;
pub mod retry;
pub mod run;
pub mod schema;
pub mod servers;
pub mod session;
pub mod show;
pub mod sim;
pub mod status;
pub mod store;
mod sweep;

pub use config::gym;
pub use error::Error;
pub use group::{PromptGroup, RolloutManager, RolloutOptions, TrainingPrompt};
pub use measure::compare::{CompareRun, compare};
pub use measure::{
    AgentCoverage, AgentMetric, Aggregation, AggregationSource, LiveMetrics, Measurement,
    MetricsReport, Missing, PassAt, Price, Profile, ProfileReport, ProfileTarget,
    write_verify_responses,
};
pub use report::{ImportReport, NothingScored, SweepPlan, SweepReport};
pub use status::RunStatus;
pub use sweep::{NotResumable, Sweep, import_collection};
