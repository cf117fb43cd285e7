//! Collects rollouts of language-model agents as a batch dataflow: tasks are rows of a table,
//! repeats are a relational expansion, calls are a streaming operator, answers are Parquet, metrics are SQL.
//!
//! ```text
//!             JSONL
//!               │   read      TaskReader: a line is a row of `tasks`
//!               ▼
//!             tasks
//!               │   expand    SQL: a row for each rollout that is pending
//!               ▼
//!            pending
//!               │   run       RunStep, RunExec: asks an Agent, retries by Budgets, many calls in flight
//!               ▼
//!            outcomes
//!               │   land      LandStep, LandExec: a journal by a Writer, then Parquet
//!               ▼
//!   rollouts, attempts, calls
//!               │   measure   MetricQueries: a SQL file is a table of metrics
//!               ▼
//!        metrics, reports
//!               │   show      ProgressDisplay, RowSink
//!               ▼
//!        terminal, files
//! ```
//!
//! [`Sweep`] puts the steps into one plan; the command line is built on it. The table lists the modules bottom-up:
//! a module imports only modules above it, no step imports another, and only the command line and the viewer
//! import `show`, the command line alone `sim`. `tests/imports.rs` enforces this.
//!
//! | module | what it knows |
//! |---|---|
//! | [`schema`] | the columns of every table that is kept |
//! | `error` | what ends a command, with its exit code and its causes |
//! | [`retry`] | the kinds of failure, and what follows from a failed attempt |
//! | [`gym`] | which version of NeMo Gym is followed |
//! | [`json`] | JSON as text, parsed only where something reads it |
//! | [`operator`] | our own operators in DataFusion's plans |
//! | [`guide`] | the pages of the user guide |
//! | [`python`] | Python's rules of truth, equality, printing, formats and file patterns |
//! | [`config`] | options, and where the value of each came from |
//! | [`request`], [`servers`] | what is sent, and the configuration of NeMo Gym's servers |
//! | [`http`], [`call`] | connections, and the calls within a rollout that rollstream runs itself |
//! | [`outcome`] | what became of an attempt |
//! | [`model`], [`environment`], [`agent`] | the models, environments and agents that answer a rollout |
//! | [`store`], [`session`] | a run as files on a disk or in an object store, and as tables |
//! | [`progress`] | how far a sweep has got |
//! | [`read`] | step: tasks from JSONL, with templates, overrides and routes |
//! | [`expand`] | step: repeats, and which rollouts are pending |
//! | [`run`] | step: the operator that keeps calls in flight |
//! | [`land`] | step: the operator that writes answers durably |
//! | [`status`] | how a run is doing, from its files alone |
//! | [`transcript`] | a rollout as people read it: prompt, turns, scores, attempts |
//! | [`group`] | all rollouts of a prompt as one record, for a trainer |
//! | [`import`], [`export`] | from files of NeMo Gym to a run, and back |
//! | [`measure`] | step: metrics, comparisons, NeMo Gym's metric files |
//! | [`track`] | what trackers (W&B, MLflow) get of a run |
//! | `query` | the tables of runs as people query them |
//! | [`report`] | what a command did |
//! | [`health`] | the health checks of rollouts |
//! | [`show`] | step: all that people see |
//! | `view` | runs as pages in a browser, and as a file |
//! | `sweep` | the steps as one plan: begin, resume, extend, replace |
//! | `cluster` | a sweep on many machines, with Ballista (cargo feature `cluster`) |
//! | `launch` | NeMo Gym's own programs around a sweep: data, servers, and their end |
//! | [`sim`] | agents to try all this with |
//! | [`cli`] | the commands |

#![cfg_attr(test, allow(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

pub mod agent;
pub mod call;
pub mod cli;
#[cfg(feature = "cluster")]
mod cluster;
pub mod config;
pub mod environment;
mod error;
pub mod expand;
pub mod export;
pub mod group;
pub mod guide;
pub mod gym;
pub mod health;
pub mod http;
pub mod import;
pub mod json;
pub mod land;
mod launch;
pub mod measure;
pub mod model;
pub mod operator;
pub mod outcome;
pub mod progress;
pub mod python;
mod query;
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
pub mod track;
pub mod transcript;
mod view;

pub use error::Error;
pub use group::{PromptGroup, RolloutManager, RolloutOptions, TrainingPrompt, run_examples};
pub use measure::compare::{CompareRun, compare};
pub use measure::{
    AgentCoverage, AgentMetric, Aggregation, AggregationSource, LiveMetrics, Measurement,
    MetricsReport, Missing, PassAt, Price, Profile, ProfileReport, ProfileTarget,
    write_verify_responses,
};
pub use report::{ImportReport, NothingScored, SweepPlan, SweepReport};
pub use status::RunStatus;
pub use sweep::{NotResumable, Sweep, import_collection};
