//! What is the same for all rows: [`Settings`].

use std::path::PathBuf;

use clap::Args;

use crate::common::Options;

/// A factor between sizes.
const FACTOR: usize = 10;

/// What is the same for all rows.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    #[command(flatten)]
    pub options: Options,
    /// Measure what has a size at three, a factor of ten apart, and work out the exponents
    #[arg(long, global = true)]
    pub growth: bool,
    /// A Python: with aiohttp and DuckDB there are more baselines
    #[arg(long, value_name = "PROGRAM", default_value = "python3", global = true)]
    pub python: PathBuf,
}

impl Settings {
    /// What was asked for, or as many as there are by default, or as there are with `--quick`.
    pub fn size(&self, asked: Option<usize>, default: usize, quick: usize) -> usize {
        let usual = if self.options.quick { quick } else { default };
        asked.unwrap_or(usual).max(1)
    }

    /// `size`, after smaller ones where growth is to be measured.
    pub fn sizes_up_to(&self, size: usize) -> Vec<usize> {
        match self.growth {
            true => vec![size / FACTOR / FACTOR, size / FACTOR, size],
            false => vec![size],
        }
    }
}
