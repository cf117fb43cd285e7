//! What the benchmarks share: [`Options`] are their flags, [`Report`] is what they print and write, with a [`Goal`] for
//! a figure and [`Growth`] over several sizes, [`Child`] is another process with its time, CPU and memory,
//! [`SimServer`] the simulated agents in one, [`Sweep`] the collector, [`Answers`] makes rollouts without an agent,
//! [`write_tasks`] the tasks for one.

#![allow(
    dead_code,
    unused_imports,
    reason = "each benchmark is a program of its own and uses a part of this"
)]

mod answers;
mod child;
mod comparison;
mod figure;
mod get;
mod goal;
mod growth;
mod options;
mod process;
mod report;
mod sim_server;
mod spread;
mod sweep;
mod tasks;

pub use answers::Answers;
pub use child::{Child, Usage, itself, program, rollstream};
pub use figure::FigureOf;
pub use goal::Goal;
pub use growth::Growth;
pub use options::Options;
pub use process::{Thread, cpu_time, peak_memory, position, threads};
pub use report::{Report, millions, thousands};
pub use sim_server::SimServer;
pub use spread::Spread;
pub use sweep::{Sweep, check_done};
pub use tasks::{task_row, task_row_of, write_rows, write_tasks};
