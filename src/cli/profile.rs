//! `rollstream profile`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args;

use super::measurement::MemoryArgs;
use super::output::{DisplayArgs, Exit, note, unless_gone};
use super::runs::{is_file, open, runs};
use crate::error::Error;
use crate::gym::GymChoice;
use crate::measure::MeasureError;
use crate::measure::ProfileReport;
use crate::measure::{Profile, ProfileTarget};
use crate::show;

const EXAMPLES: &str = "\
Examples:
  rollstream profile runs/first
  rollstream profile s3://bucket/run --allow-partial -o profiles/run
  rollstream profile results/rollouts.jsonl

It writes reward_profiling.jsonl and agent_metrics.json and, by the rules of NeMo Gym 0.7, repeat_level_metrics.json. \
For NAME.jsonl, the names of the files begin with NAME_.";

/// The options of `profile`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfileArgs {
    /// The run: a directory or an object-store prefix; or the rollouts of a NeMo Gym collection
    #[arg(value_name = "RUN|NAME.jsonl")]
    pub run: String,
    /// Where the files go: a directory or an object-store prefix [default: the run, or the directory of NAME.jsonl]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<String>,
    /// Profile the rollouts that exist, even if some are missing
    #[arg(long)]
    pub allow_partial: bool,
    /// The materialized inputs of NAME.jsonl, if not NAME_materialized_inputs.jsonl
    #[arg(long, value_name = "FILE")]
    pub materialized_inputs: Option<PathBuf>,
    /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto (the version of the run or the files)
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// The memory that queries may use.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// `rollstream profile`: writes NeMo Gym's reward profile of a run, or of NeMo Gym's own files.
pub(super) async fn profile(args: ProfileArgs) -> Result<Exit, Error> {
    let memory = args.memory.bytes();
    let (profile, target) = if is_file(&args.run) {
        let rollouts = Path::new(&args.run);
        let inputs = materialized_inputs(rollouts, &args)?;
        let profile = Profile::of_files(rollouts, &inputs, args.gym, memory).await?;
        (profile, beside(rollouts, &args)?)
    } else {
        if args.materialized_inputs.is_some() {
            return Err(Error::Usage(
                "--materialized-inputs is only for NAME.jsonl; a run contains its tasks".into(),
            ));
        }
        let runs = runs(std::slice::from_ref(&args.run)).await?;
        let Some(run) = runs.into_iter().next() else {
            return Ok(Exit::Done);
        };
        let profile = Profile::of_run(&run, args.gym, memory).await?;
        let place = args.output.as_deref().map_or(Ok(run), open)?;
        let prefix = String::new();
        (profile, ProfileTarget { place, prefix })
    };
    profile
        .check(args.allow_partial)
        .await
        .map_err(|error| with_way_out(error, &args.run))?;
    let mut notes = Vec::new();
    let written = profile.write(&target, &mut notes).await?;
    notes.iter().for_each(note);
    let report = ProfileReport {
        written,
        completion: profile.completion().clone(),
    };
    if !args.display.quiet {
        unless_gone(show::profile(&report, args.display.json))?;
    }
    Ok(Exit::Done)
}

/// Adds rollstream's options to an error that names NeMo Gym's.
fn with_way_out(error: Error, run: &str) -> Error {
    let Some(missing @ MeasureError::Missing { .. }) = error.cause() else {
        return error;
    };
    let finish = if is_file(run) {
        "rollstream import".to_owned()
    } else {
        format!("rollstream resume {}", show::quoted(run))
    };
    Error::Usage(format!(
        "{missing}\n\nHere, use --allow-partial. To collect the missing rollouts, start with `{finish}`."
    ))
}

fn materialized_inputs(rollouts: &Path, args: &ProfileArgs) -> Result<PathBuf, Error> {
    let path = match &args.materialized_inputs {
        Some(path) => path.clone(),
        None => rollouts.with_file_name(prefix(rollouts)? + "materialized_inputs.jsonl"),
    };
    for (path, option) in [
        (rollouts, "NAME.jsonl, the rollouts"),
        (&path, "--materialized-inputs FILE"),
    ] {
        if !path.is_file() {
            return Err(Error::Usage(format!(
                "'{}' does not exist; if the file has another name, give it as {option}",
                path.display()
            )));
        }
    }
    Ok(path)
}

fn beside(rollouts: &Path, args: &ProfileArgs) -> Result<ProfileTarget, Error> {
    let parent = rollouts.parent().and_then(Path::to_str);
    let parent = parent.filter(|parent| !parent.is_empty()).unwrap_or(".");
    let place = open(args.output.as_deref().unwrap_or(parent))?;
    let prefix = prefix(rollouts)?;
    Ok(ProfileTarget { place, prefix })
}

fn prefix(rollouts: &Path) -> Result<String, Error> {
    let stem = rollouts.file_stem().and_then(OsStr::to_str);
    let no_name = || Error::Usage(format!("'{}' has no file name", rollouts.display()));
    stem.map(|stem| format!("{stem}_")).ok_or_else(no_name)
}
