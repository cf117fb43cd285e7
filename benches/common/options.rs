//! The flags that every benchmark has.

use std::path::PathBuf;

use clap::Args;

/// How much is measured, and where the figures go.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Write the figures to this file as JSON, to be compared with those of another run
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure little and quickly: a trial of the benchmark, not of the program
    #[arg(long)]
    pub quick: bool,
    /// How often each cell is measured, alternating with its baseline [default: 5; 2 with --quick]
    #[arg(long, value_name = "N")]
    pub repeats: Option<usize>,
    /// Passed by `cargo bench`
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Options {
    /// How often each cell is measured.
    pub fn repeats(&self) -> usize {
        self.repeats
            .unwrap_or(if self.quick { 2 } else { 5 })
            .max(1)
    }
}
