//! `rollstream export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::output::{DisplayArgs, Exit, print, warn};
use super::runs::open_recorded;
use crate::error::Error;
use crate::export::{ExportReport, ExportTarget, export_nemo_gym};

const EXAMPLES: &str = "\
Examples:
  rollstream export runs/rollouts -o results/rollouts.jsonl
  rollstream export s3://bucket/run -o results/

It writes NAME.jsonl, NAME_materialized_inputs.jsonl and NAME_failures.jsonl, sorted by task and rollout.";

/// The options of `export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The run: a directory or an object-store prefix
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Where the files go: NAME.jsonl, or a directory
    #[arg(long, short, value_name = "PATH")]
    pub output: PathBuf,
    /// Format of the files
    #[arg(long, value_enum, default_value_t = ExportFormat::NemoGym)]
    pub format: ExportFormat,
    /// Replace existing files
    #[arg(long)]
    pub overwrite: bool,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// The formats of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// NAME.jsonl, NAME_materialized_inputs.jsonl and NAME_failures.jsonl
    NemoGym,
}

/// `rollstream export`: writes a run as the files of another tool.
pub(super) async fn export(args: ExportArgs) -> Result<Exit, Error> {
    let (run, record) = open_recorded(&args.run).await?;
    let target = ExportTarget::new(&args.output, &args.run)?;
    let report = match args.format {
        ExportFormat::NemoGym => export_nemo_gym(&run, &record, &target, args.overwrite).await?,
    };
    report.warnings.iter().for_each(warn);
    if !args.display.quiet {
        print(text(&report, args.display.json))?;
    }
    Ok(Exit::Done)
}

fn text(report: &ExportReport, as_json: bool) -> String {
    let files = report.files.iter();
    if as_json {
        let files: Vec<_> = files
            .map(|(path, rows)| json!({"path": path.display().to_string(), "num_rows": rows}))
            .collect();
        let value = json!({"files": files, "warnings": report.warnings});
        return format!("{value:#}\n");
    }
    files
        .map(|(path, rows)| format!("{rows:>9} rows  {}\n", path.display()))
        .collect()
}
