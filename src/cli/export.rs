use std::io::{self, Write};

use serde_json::json;

use super::Exit;
use super::args::{ExportArgs, ExportFormat};
use super::exit::unless_gone;
use super::open::{open, warn};
use crate::error::Error;
use crate::export::{ExportReport, ExportTarget, export_nemo_gym};
use crate::show::ShowError;
use crate::store::{RunRecord, StoreError};

/// `rollstream export`: a run as the files of another tool.
pub(super) async fn export(args: ExportArgs) -> Result<Exit, Error> {
    let run = open(&args.run)?;
    let Some(record) = RunRecord::load(&run).await? else {
        let place = run.display("");
        return Err(StoreError::NoRun { place }.into());
    };
    let target = ExportTarget::new(&args.output, &args.run)?;
    let report = match args.format {
        ExportFormat::NemoGym => export_nemo_gym(&run, &record, &target, args.overwrite).await?,
    };
    for warning in &report.warnings {
        warn(warning);
    }
    if !args.display.quiet {
        let written = io::stdout()
            .lock()
            .write_all(text(&report, args.display.json).as_bytes());
        unless_gone(written.map_err(ShowError::from))?;
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
