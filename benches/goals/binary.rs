//! The program itself: how long it takes to say what it is, and how large it is.

use std::fs;

use anyhow::Context;
use clap::Args;

use super::Settings;
use crate::common::{Child, Goal, Report, millions, program, rollstream};

#[derive(Debug, Args)]
pub struct Binary {
    /// How often it is started
    #[arg(long, value_name = "N", default_value_t = 20)]
    starts: usize,
}

impl Binary {
    pub fn measure(&self, _: &Settings, report: &mut Report) -> anyhow::Result<()> {
        let help = || -> anyhow::Result<f64> {
            let usage = Child::start(rollstream().arg("--help"))?.finish()?.1;
            Ok(usage.wall.as_secs_f64() * 1e3)
        };
        // The first reads the file from the disk.
        help()?;
        let times: anyhow::Result<Vec<f64>> = (0..self.starts).map(|_| help()).collect();
        report
            .figure("binary", "--help", "ms", &times?)
            .goal(Goal::AtMost(20.0));
        let program = program();
        let size = fs::metadata(&program)
            .with_context(|| format!("cannot look at {}", program.display()))?
            .len();
        report
            .figure("binary", "size", "MB", &[millions(size as f64)])
            .goal(Goal::AtMost(150.0));
        Ok(())
    }
}
