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

Of a run it writes reward_profiling.jsonl and agent_metrics.json, of NAME.jsonl NAME_reward_profiling.jsonl and
NAME_agent_metrics.json; by the rules of NeMo Gym 0.7 repeat_level_metrics.json as well.";

/// The options of `profile`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfileArgs {
    /// The run: a directory or an object-store prefix; or the rollouts of a NeMo Gym collection
    #[arg(value_name = "RUN|NAME.jsonl")]
    pub run: String,
    /// Where the files go: a directory or an object-store prefix [default: the run, or where NAME.jsonl is]
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<String>,
    /// Profile what is there, also where rollouts are missing
    #[arg(long)]
    pub allow_partial: bool,
    /// The materialized inputs of NAME.jsonl, if not NAME_materialized_inputs.jsonl
    #[arg(long, value_name = "FILE")]
    pub materialized_inputs: Option<PathBuf>,
    /// Version of NeMo Gym whose rules hold: 0.5, 0.7, or auto, which takes the one that the run follows or the files are of
    #[arg(long, value_name = "VERSION", default_value = "auto")]
    pub gym: GymChoice,
    /// How much memory it may use.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// How things are shown.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// `rollstream profile`: writes NeMo Gym's reward profile of a run, or of its own files.
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
                "--materialized-inputs is for NAME.jsonl; a run has its tasks".into(),
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

/// Adds the options of rollstream to an error that names those of NeMo Gym.
fn with_way_out(error: Error, run: &str) -> Error {
    let Some(missing @ MeasureError::Missing { .. }) = error.cause() else {
        return error;
    };
    let finish = if is_file(run) {
        "rollstream import"
    } else {
        "rollstream collect --resume"
    };
    Error::Usage(format!(
        "{missing}\n\nHere that is --allow-partial. What is missing is collected with `{finish}`."
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
                "'{}' is not there; if it has another name, give that as {option}",
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
    let no_name = || Error::Usage(format!("'{}' has no name", rollouts.display()));
    stem.map(|stem| format!("{stem}_")).ok_or_else(no_name)
}
