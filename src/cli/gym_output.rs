//! NeMo Gym's files beside a run: what a sweep finds there when it begins, and what it leaves there.

use std::path::Path;

use super::open;
use crate::config::Settings;
use crate::error::Error;
use crate::export::{ExportTarget, export_nemo_gym};
use crate::import::CollectionFiles;
use crate::pipeline::import_collection;
use crate::store::RunRecord;

/// Files that NeMo Gym began are gone on with by a resume, as it does itself, and are not replaced by a sweep that knows
/// nothing of them.
///
/// # Errors
/// They can't be gone on with, or are in the way.
pub(super) async fn go_on(settings: Settings) -> Result<Settings, Error> {
    let (Some(rollouts), Some(place)) = (&settings.gym_output, &settings.output) else {
        return Ok(settings);
    };
    let (rollouts, place) = (Path::new(rollouts), place.clone());
    let is_imported = match RunRecord::load(&open::open(&place)?).await {
        Ok(Some(record)) => settings.resume && record.is_imported(),
        Ok(None) if rollouts.exists() && settings.resume => {
            let files = CollectionFiles::find(rollouts, None, None)?;
            let report = import_collection(files, &settings.clone().without_rows()).await?;
            report.warnings.iter().for_each(open::warn);
            open::note(format_args!(
                "goes on with {}: {} of {} rollouts are done",
                rollouts.display(),
                report.rollouts.done,
                report.rollouts.planned
            ));
            true
        }
        Ok(None) if rollouts.exists() && !settings.overwrite && settings.shard.is_none() => {
            return Err(Error::Usage(format!(
                "{} is there, and no run at {place} that it belongs to; go on with it (--resume, or \
                 +resume_from_cache=true), replace it (--overwrite), or take another name",
                rollouts.display()
            )));
        }
        // What is wrong with the run is said when it is opened to be worked on.
        Ok(None) | Err(_) => false,
    };
    if !is_imported {
        return Ok(settings);
    }
    if !settings.input.is_empty() {
        open::note(format_args!(
            "the rows are those of the collection that is gone on with; {} is not read",
            settings.input.join(", ")
        ));
    }
    Ok(settings.without_rows())
}

/// Writes what a run holds as NeMo Gym's files, over those of an earlier time.
///
/// # Errors
/// The run can't be read, or a file can't be written.
pub(super) async fn write(rollouts: &Path, place: &str) -> Result<(), Error> {
    let run = open::open(place)?;
    let Some(record) = RunRecord::load(&run).await? else {
        return Ok(());
    };
    let target = ExportTarget::new(rollouts, place)?;
    let report = export_nemo_gym(&run, &record, &target, true).await?;
    report.warnings.iter().for_each(open::warn);
    Ok(())
}
