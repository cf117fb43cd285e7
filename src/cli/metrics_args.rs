use std::path::PathBuf;

use clap::Args;

pub(super) const METRICS_EXAMPLES: &str = "\
Examples:
  rollstream metrics
  rollstream metrics task_statistics --sql
  rollstream metrics --queries my_metrics --json | jq -r '.[].name'";

/// The options of `metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// The family to show; without it all are listed
    pub name: Option<String>,
    /// Directory of .sql files that replace or add metrics
    #[arg(long, value_name = "DIR")]
    pub queries: Option<PathBuf>,
    /// Show the SQL as well
    #[arg(long)]
    pub sql: bool,
    /// Show JSON for programs: of all families an array, of one an object
    #[arg(long)]
    pub json: bool,
}
