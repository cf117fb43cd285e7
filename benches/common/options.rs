//! The flags that every benchmark has.

use std::path::PathBuf;

use clap::Args;

/// How much is measured, and where the figures go.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Write the figures to this file as JSON, to be compared with those of another run
    #[arg(long, value_name = "FILE", global = true)]
    pub json: Option<PathBuf>,
    /// Print each figure beside that of an earlier run, from the JSON that it wrote
    #[arg(long, value_name = "FILE", global = true)]
    pub against: Option<PathBuf>,
    /// Measure little and quickly: a trial of the benchmark, not of the program
    #[arg(long, global = true)]
    pub quick: bool,
    /// How often each cell is measured, alternating with its baseline [default: 5; 2 with --quick]
    #[arg(long, value_name = "N", global = true)]
    pub repeats: Option<usize>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true, global = true)]
    pub bench: bool,
}

impl Options {
    /// How often each cell is measured.
    pub fn repeats(&self) -> usize {
        self.repeats_or(if self.quick { 2 } else { 5 })
    }

    /// How often a cell is measured that takes minutes, where nobody says so.
    pub fn repeats_or(&self, default: usize) -> usize {
        self.repeats.unwrap_or(default).max(1)
    }
}
