//! Joins the steps: [`Sweep`] reads, expands, runs, lands and measures. [`import_collection`] makes a run of the files of
//! another collector.

mod begin;
mod by_task;
mod compaction;
mod end;
mod extension;
mod groups;
mod identity;
mod imported;
mod inputs;
mod inputs_of_run;
mod invalid_judges;
mod longest_first;
mod open_files;
mod prepare;
mod recovery;
mod spool;
mod supervisor;
mod tables;
mod task_names;
mod task_order;
mod unscored;

pub use imported::import_collection;
pub use prepare::Sweep;
