//! What tests of the whole program share: [`Folder`], a place of a test's own where the program runs in a clean
//! environment; [`task`], task files that read like sentences; [`Simulated`], agents that the test can ask what they
//! were sent.

mod folder;
mod landed;
#[cfg(feature = "cluster")]
mod on_cluster;
mod program;
mod simulated;
mod task;
mod terminal;
mod waiting;

pub use folder::{Folder, SmallDisk};
pub use program::{Ended, Program, Running};
pub use simulated::{Simulated, instant, quick_and_slow};
pub use task::{Task, sums, task};
pub use terminal::{BROKEN, Terminal};
pub use waiting::{PATIENCE, free_port, signal, until};
