//! `rollstream import`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::output::{DisplayArgs, Exit, print, warn};
use crate::config::{Argument, KeyPath, Layers, Settings};
use crate::error::Error;
use crate::gym::GymChoice;
use crate::import::CollectionFiles;
use crate::report::ImportReport;
use crate::store::RunState;
use crate::sweep::import_collection;

const EXAMPLES: &str = "\
Examples:
  rollstream import results/rollouts.jsonl -o runs/rollouts
  rollstream collect --resume -o runs/rollouts \\
      --head-server http://127.0.0.1:11000

It reads NAME.jsonl, NAME_materialized_inputs.jsonl and, if there is one, NAME_failures.jsonl, and leaves them as they \
are. A last line that NeMo Gym did not finish writing is left out, with a warning.";

/// The options of `import`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The rollouts of the collection, or their path without .jsonl
    #[arg(value_name = "NAME.jsonl")]
    pub rollouts: PathBuf,
    /// Where the run goes: directory or object-store prefix
    #[arg(long, short, value_name = "RUN")]
    pub output: String,
    /// The materialized inputs, if not NAME_materialized_inputs.jsonl
    #[arg(long, value_name = "FILE")]
    pub materialized_inputs: Option<PathBuf>,
    /// The flagged answers, if not NAME_failures.jsonl
    #[arg(long, value_name = "FILE")]
    pub failures: Option<PathBuf>,
    /// Replace an existing run
    #[arg(long)]
    pub overwrite: bool,
    /// Retry failures that agents call terminal: timeouts, and faults of the environment
    #[arg(long)]
    pub retry_terminal_timeouts: bool,
    /// Retry rollouts whose judge gave no valid answer (invalid_judge_response)
    #[arg(long)]
    pub retry_invalid_judge_responses: bool,
    /// Version of NeMo Gym whose rules the run follows: 0.5, 0.7, or auto (the version of the files)
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// `rollstream import`: makes a run of the files of a NeMo Gym collection.
pub(super) async fn import(args: ImportArgs) -> Result<Exit, Error> {
    let settings = settings(&args)?;
    let files = CollectionFiles::find(&args.rollouts, args.materialized_inputs, args.failures)?;
    let report = import_collection(files, &settings).await?;
    report.warnings.iter().for_each(warn);
    if args.display.json && !args.display.quiet {
        print(format!("{:#}\n", json!(report)))?;
    } else if !args.display.quiet {
        print(as_text(&report))?;
    }
    Ok(Exit::Done)
}

/// Resolves the settings of an import from the environment and the arguments.
fn settings(args: &ImportArgs) -> Result<Settings, Error> {
    let output = Argument::Text {
        flag: "--output".to_owned(),
        key: KeyPath::new(["output"]),
        text: args.output.clone(),
    };
    let layers = Layers::new().arguments([output]);
    let mut settings = layers.environment(std::env::vars_os()).resolve()?.settings;
    settings.input.clear();
    settings.overwrite = args.overwrite;
    settings.retry_terminal_timeouts |= args.retry_terminal_timeouts;
    settings.retry_invalid_judge_responses |= args.retry_invalid_judge_responses;
    if args.gym != GymChoice::Auto {
        settings.gym = args.gym;
    }
    Ok(settings)
}

fn as_text(report: &ImportReport) -> String {
    let counts = report.rollouts;
    let mut text = format!(
        "imported {} of {} rollouts, {} failed for good, {} pending; {} failed attempts on {} rollouts\n",
        counts.done,
        counts.planned,
        counts.failed,
        counts.pending,
        report.failed_attempts,
        report.failures.rollouts,
    );
    for path in &report.written {
        text.push_str(&format!("  {path}\n"));
    }
    if report.state != RunState::Finished {
        text.push_str(&format!(
            "Finish it: rollstream collect --resume --output {} --head-server URL\n",
            report.place
        ));
    }
    text
}
