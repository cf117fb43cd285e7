use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Exit;
use super::aggregate::{is_file, runs};
use super::exit::unless_gone;
use super::open::{note, open};
use super::profile_args::ProfileArgs;
use crate::error::Error;
use crate::measure::MeasureError;
use crate::pipeline::{Profile, ProfileTarget};
use crate::report::ProfileReport;
use crate::show;
use crate::store::RunStore;

/// `rollstream profile`: NeMo Gym's reward profile of a run, or of its own files.
pub(super) async fn profile(args: ProfileArgs) -> Result<Exit, Error> {
    let memory = args.memory.as_usize();
    let (profile, target) = if is_file(&args.run) {
        let rollouts = Path::new(&args.run);
        let inputs = materialized_inputs(rollouts, &args)?;
        let target = beside(rollouts, &args)?;
        (
            Profile::of_files(rollouts, &inputs, args.gym, memory).await?,
            target,
        )
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

/// The files of NeMo Gym say how NeMo Gym is told to go on; this says how we are.
fn with_way_out(error: Error, run: &str) -> Error {
    match error.cause() {
        Some(missing @ MeasureError::Missing { .. }) => {
            let finish = match is_file(run) {
                true => "rollstream import",
                false => "rollstream collect --resume",
            };
            Error::Usage(format!(
                "{missing}\n\nHere that is --allow-partial. What is missing is collected with `{finish}`."
            ))
        }
        _ => error,
    }
}

fn materialized_inputs(rollouts: &Path, args: &ProfileArgs) -> Result<PathBuf, Error> {
    let path = match &args.materialized_inputs {
        Some(path) => path.clone(),
        None => rollouts.with_file_name(format!("{}materialized_inputs.jsonl", prefix(rollouts)?)),
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
    let place: RunStore = open(args.output.as_deref().unwrap_or(parent))?;
    let prefix = prefix(rollouts)?;
    Ok(ProfileTarget { place, prefix })
}

fn prefix(rollouts: &Path) -> Result<String, Error> {
    let stem = rollouts.file_stem().and_then(OsStr::to_str);
    let no_name = || Error::Usage(format!("'{}' has no name", rollouts.display()));
    stem.map(|stem| format!("{stem}_")).ok_or_else(no_name)
}
