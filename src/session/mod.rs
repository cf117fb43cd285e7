//! The tables of runs inside DataFusion: [`register_store`] makes a run's store readable,
//! [`RunTables`] gives its tables as views, also while they are being written.

mod context;
mod memory;
mod tables;
mod union;
mod wide;

pub use context::{config, gathering, measuring, register_store};
pub use tables::{RunTables, any_part, dispatches, part};
pub use union::register_union;
pub use wide::register_wide;
