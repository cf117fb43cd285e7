//! NeMo Gym's files beside a run: a sweep may resume from them, and writes them at its end.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use datafusion::prelude::SessionContext;

use super::output::{note, warn};
use super::runs::open;
use crate::config::Settings;
use crate::error::Error;
use crate::export::{ExportTarget, export_nemo_gym};
use crate::import::CollectionFiles;
use crate::schema::ROLLOUTS;
use crate::session::{self, RunTables};
use crate::store::{RunRecord, RunStore, StoreError};
use crate::sweep::import_collection;

/// Imports an unfinished NeMo Gym collection if the sweep resumes it, and returns the settings to continue with.
///
/// # Errors
/// The files can't be resumed, or they exist and the sweep neither resumes nor overwrites them.
pub(super) async fn resume(settings: Settings) -> Result<Settings, Error> {
    let (Some(rollouts), Some(place)) = (&settings.gym_output, &settings.output) else {
        return Ok(settings);
    };
    let (rollouts, place) = (Path::new(rollouts), place.clone());
    let run = open(&place)?;
    let target = ExportTarget::new(rollouts, &place)?;
    let is_imported = match RunRecord::load(&run).await {
        Ok(Some(record)) => {
            // An imported run can have fewer rollouts than its file: torn lines and answers to retry are left out.
            if settings.resume && !record.is_imported() {
                refuse_more(rollouts, &run).await?;
            }
            settings.resume && record.is_imported()
        }
        Ok(None) if rollouts.exists() && settings.resume => {
            let files = CollectionFiles::find(rollouts, None, None)?;
            let report = import_collection(files, &settings.clone().without_rows()).await?;
            report.warnings.iter().for_each(warn);
            note(format_args!(
                "resumes {}: {} of {} rollouts are done",
                rollouts.display(),
                report.rollouts.done,
                report.rollouts.planned
            ));
            true
        }
        Ok(None) if !settings.overwrite && !settings.resume => {
            if let Some(file) = target.existing() {
                return Err(Error::Usage(format!(
                    "{} exists, but there is no run at {place}; resume it (--resume, or \
                     +resume_from_cache=true), replace it (--overwrite), or choose another name",
                    file.display()
                )));
            }
            false
        }
        // An error of the run is reported when the sweep opens it.
        Ok(None) | Err(_) => false,
    };
    if !is_imported {
        return Ok(settings);
    }
    if !settings.input.is_empty() {
        note(format_args!(
            "the rows come from the resumed collection; {} is not read",
            settings.input.join(", ")
        ));
    }
    Ok(settings.without_rows())
}

/// Refuses to resume a run whose file has more rollouts than the run: another program has added to the file.
async fn refuse_more(rollouts: &Path, run: &RunStore) -> Result<(), Error> {
    let Ok(file) = File::open(rollouts) else {
        return Ok(());
    };
    let mut rows = 0_usize;
    for line in BufReader::new(file).split(b'\n') {
        let failed = |source| StoreError::File {
            action: "read",
            path: rollouts.to_owned(),
            source,
        };
        rows += usize::from(!line.map_err(failed)?.trim_ascii().is_empty());
    }
    let session = SessionContext::new_with_config(session::config());
    RunTables::look(run).await?.register(&session).await?;
    let known = session.table(ROLLOUTS).await?.count().await?;
    if rows > known {
        return Err(Error::Usage(format!(
            "{} has {rows} rollouts, but the run at {} has only {known}: another program added to the file. Import it \
             (`rollstream import {0} --output {1} --overwrite`), or move it away",
            rollouts.display(),
            run.display("")
        )));
    }
    Ok(())
}

/// Writes a run as NeMo Gym's files, and replaces existing ones.
pub(super) async fn write(rollouts: &Path, place: &str) -> Result<(), Error> {
    let run = open(place)?;
    let Some(record) = RunRecord::load(&run).await? else {
        return Ok(());
    };
    let target = ExportTarget::new(rollouts, place)?;
    let report = export_nemo_gym(&run, &record, &target, true).await?;
    report.warnings.iter().for_each(warn);
    Ok(())
}
