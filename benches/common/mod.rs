//! What the benchmarks share: [`Options`] are their flags, [`Report`] is what they print and write,
//! [`Child`] is another process with its time, CPU and memory, [`SimServer`] the simulated agents in one,
//! [`Answers`] makes rollouts without an agent, [`write_tasks`] the tasks for one.

#![allow(
    dead_code,
    unused_imports,
    reason = "each benchmark is a program of its own and uses a part of this"
)]

mod answers;
mod child;
mod options;
mod report;
mod sim_server;
mod spread;
mod tasks;

pub use answers::Answers;
pub use child::{Child, Usage, itself, rollstream};
pub use options::Options;
pub use report::{Report, millions, thousands};
pub use sim_server::SimServer;
pub use spread::Spread;
pub use tasks::{task_row, write_tasks};
