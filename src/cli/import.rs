use std::io::{self, Write};

use serde_json::{Value, json};

use super::Exit;
use super::args::ImportArgs;
use super::exit::unless_gone;
use super::open::warn;
use crate::config::{Argument, KeyPath, Layers, Settings};
use crate::error::Error;
use crate::gym::GymChoice;
use crate::import::CollectionFiles;
use crate::report::ImportReport;
use crate::show::ShowError;
use crate::store::RunState;
use crate::sweep::import_collection;

/// `rollstream import`: the files of a NeMo Gym collection become a run.
pub(super) async fn import(args: ImportArgs) -> Result<Exit, Error> {
    let settings = settings(&args)?;
    let files = CollectionFiles::find(&args.rollouts, args.materialized_inputs, args.failures)?;
    let report = import_collection(files, &settings).await?;
    for warning in &report.warnings {
        warn(warning);
    }
    if !args.display.quiet {
        let text = match args.display.json {
            true => format!("{:#}\n", as_json(&report)),
            false => as_text(&report),
        };
        let written = io::stdout().lock().write_all(text.as_bytes());
        unless_gone(written.map_err(ShowError::from))?;
    }
    Ok(Exit::Done)
}

/// The settings that count for an import: where the run goes, and how many failures a rollout may have.
fn settings(args: &ImportArgs) -> Result<Settings, Error> {
    let output = Argument::Text {
        flag: "--output".to_owned(),
        key: KeyPath::new(["output"]),
        text: args.output.clone(),
    };
    let layers = Layers::new().arguments([output]);
    let resolved = layers.environment(std::env::vars_os()).resolve()?;
    Ok(Settings {
        input: Vec::new(),
        overwrite: args.overwrite,
        retry_terminal_timeouts: args.retry_terminal_timeouts
            || resolved.settings.retry_terminal_timeouts,
        retry_invalid_judge_responses: args.retry_invalid_judge_responses
            || resolved.settings.retry_invalid_judge_responses,
        gym: match args.gym {
            GymChoice::Auto => resolved.settings.gym,
            of => of,
        },
        ..resolved.settings
    })
}

fn as_json(report: &ImportReport) -> Value {
    json!({
        "place": report.place,
        "state": report.state,
        "rollouts": report.rollouts,
        "inputs": report.inputs,
        "answers": report.answers,
        "failed_attempts": report.failed_attempts,
        "failed_rollouts": report.failures.rollouts,
        "terminal_rollouts": report.failures.terminal,
        "exhausted_rollouts": report.failures.exhausted,
        "max_attempts": report.max_attempts,
        "warnings": report.warnings,
        "written": report.written,
    })
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
