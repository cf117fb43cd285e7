//! What the benchmarks share: [`Options`] are their flags, [`Report`] is what they print and write, with a [`Goal`] for
//! a figure and [`Growth`] over several sizes, [`Child`] is another process with its time, CPU and memory,
//! [`SimServer`] runs simulated agents in one, [`Sweep`] the collector, [`Answers`] makes rollouts without an agent, and
//! [`write_tasks`] makes tasks.

#![allow(
    dead_code,
    unused_imports,
    reason = "each benchmark is a program of its own and uses a part of this"
)]

mod answers;
mod figure;
mod growth;
mod process;
mod report;
mod sim_server;
mod sweep;

pub use answers::Answers;
pub use figure::{FigureOf, Goal, Spread};
pub use growth::Growth;
pub use process::{
    Child, Thread, Usage, cpu_time, itself, peak_memory, position, program, rollstream, threads,
};
pub use report::{Options, Report, millions, thousands};
pub use sim_server::SimServer;
pub use sweep::{Sweep, check_done, task_row, task_row_of, write_rows, write_tasks};
