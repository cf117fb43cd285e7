//! `rollstream export`.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use datafusion::dataframe::DataFrame;
use futures::TryStreamExt;
use serde_json::json;

use super::output::{DisplayArgs, Exit, note, print, unless_gone, warn};
use super::runs::{open_recorded, session_of};
use super::sweep_args::tracker_settings;
use crate::error::Error;
use crate::export::{ExportError, ExportReport, ExportTarget, export_nemo_gym};
use crate::progress::Progress;
use crate::schema;
use crate::show::{Format, RowLimit, ShowError, open_sink};
use crate::status;
use crate::store::{RunRecord, RunState, RunStore};
use crate::track::{Ending, Trackers};

const EXAMPLES: &str = "\
Examples:
  rollstream export runs/rollouts -o results/rollouts.jsonl
  rollstream export s3://bucket/run -o results/

  rollstream export runs/rollouts -o rollouts.csv
  rollstream export runs/rollouts --format jsonl -o - | head -1

  rollstream export runs/rollouts +wandb_project=mine +wandb_name=first

By default it writes NAME.jsonl, NAME_materialized_inputs.jsonl and NAME_failures.jsonl, sorted by task and rollout. \
The other formats write the table `rollouts` with a column for every metric as one file, or with `-o -` to the standard \
output. The name of a `.csv` or `.parquet` file says its format. CSV leaves out the columns that hold JSON and maps.

With the keys of a tracker, or without --output, it logs the run to W&B or MLflow: to those that the keys name, or the \
sweep's settings. Of a run that a tracker has in part, it logs the rest.";

/// The options of `export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The run: a directory or an object-store prefix
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Keys of a tracker, such as +mlflow_run_name=first
    #[arg(value_name = "+KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Where the files go: a file, a directory, or `-` for the standard output
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Format of the files [default: by the name of the output, or else nemo-gym]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,
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
    /// The table `rollouts` as comma-separated values
    Csv,
    /// The table `rollouts` as Parquet
    Parquet,
    /// The table `rollouts`, one JSON object per line
    Jsonl,
}

impl ExportFormat {
    /// Returns the format that a file's name says.
    fn of(output: &Path) -> Self {
        match Format::of_file(output) {
            Some(Format::Csv) => Self::Csv,
            Some(Format::Parquet) => Self::Parquet,
            _ => Self::NemoGym,
        }
    }

    /// Returns the format of the one file of a table, and its extension.
    fn of_table(self) -> Option<(Format, &'static str)> {
        match self {
            Self::NemoGym => None,
            Self::Csv => Some((Format::Csv, "csv")),
            Self::Parquet => Some((Format::Parquet, "parquet")),
            Self::Jsonl => Some((Format::Ndjson, "jsonl")),
        }
    }
}

/// The columns that a line of CSV has no room for.
const NESTED: [&str; 5] = [
    schema::METRICS,
    schema::INTEGER_METRICS,
    schema::PERF,
    schema::INFO,
    schema::RESULT,
];

/// `rollstream export`: writes a run as the files of another tool.
pub(super) async fn export(args: ExportArgs) -> Result<Exit, Error> {
    let (run, record) = open_recorded(&args.run).await?;
    if args.output.is_none() || !args.overrides.is_empty() {
        log(&args, &run, &record).await?;
    }
    let Some(output) = &args.output else {
        return Ok(Exit::Done);
    };
    let format = args.format.unwrap_or_else(|| ExportFormat::of(output));
    if let Some((format, extension)) = format.of_table() {
        return export_table(&args, output, format, extension).await;
    }
    let target = ExportTarget::new(output, &args.run)?;
    let report = export_nemo_gym(&run, &record, &target, args.overwrite).await?;
    report.warnings.iter().for_each(warn);
    if !args.display.quiet {
        print(text(&report, args.display.json))?;
    }
    Ok(Exit::Done)
}

/// Logs the run to trackers.
async fn log(args: &ExportArgs, run: &RunStore, record: &RunRecord) -> Result<(), Error> {
    let settings = status::settings(run, record)?;
    let settings = settings.with(tracker_settings(&args.overrides)?);
    let progress = Arc::new(Progress::default());
    let quiet = args.display.quiet;
    let tell = move |text| {
        if !quiet {
            note(text);
        }
    };
    let Some(trackers) = Trackers::start(&settings, run, &progress, tell)? else {
        return Err(Error::Usage(
            "say where to: --output FILE, or the keys of a tracker: +wandb_project=... +wandb_name=..., or \
             +mlflow_tracking_uri=... +mlflow_experiment_name=... +mlflow_run_name=..."
                .to_owned(),
        ));
    };
    // Nothing is collected: there are only the points of earlier processes.
    progress.begin([]);
    let warnings = trackers.finish(Ending {
        ended_well: record.state == RunState::Finished,
        has_metrics: true,
        has_rollouts: settings.upload_rollouts,
    });
    match warnings.await.join("\n") {
        none if none.is_empty() => Ok(()),
        warnings => Err(Error::failed("", warnings)),
    }
}

/// Writes the table of rollouts as one file, or to the standard output.
async fn export_table(
    args: &ExportArgs,
    output: &Path,
    format: Format,
    extension: &str,
) -> Result<Exit, Error> {
    let session = session_of(&args.run).await?;
    let frame = session
        .plan("SELECT * FROM rollouts ORDER BY task_index, rollout_index")
        .await?;
    let frame = if format == Format::Csv {
        frame.drop_columns(&NESTED)?
    } else {
        frame
    };
    if output == Path::new("-") {
        return match write_rows(frame, format, Box::new(io::stdout())).await? {
            Ok(_) => Ok(Exit::Done),
            Err(error) => Ok(unless_gone(Err(error))?.unwrap_or(Exit::Done)),
        };
    }
    let mut path = output.to_owned();
    if path.is_dir() {
        let name = args.run.trim_end_matches('/').rsplit('/').next();
        let name = name.filter(|name| !matches!(*name, "" | "." | ".."));
        path = path.join(format!("{}.{extension}", name.unwrap_or("rollouts")));
    }
    let failed = |source| ExportError::Write {
        path: path.clone(),
        source,
    };
    if path.exists() && !args.overwrite {
        return Err(ExportError::Exists(path).into());
    }
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    // It appears only when it is complete.
    let file = tempfile::Builder::new()
        .prefix(".rollstream-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent)
        .map_err(failed)?;
    let output = file.as_file().try_clone().map_err(failed)?;
    let num_rows = write_rows(frame, format, Box::new(io::BufWriter::new(output))).await??;
    file.persist(&path).map_err(|error| failed(error.error))?;
    let report = ExportReport {
        files: vec![(path, num_rows)],
        warnings: Vec::new(),
    };
    if !args.display.quiet {
        print(text(&report, args.display.json))?;
    }
    Ok(Exit::Done)
}

/// Writes the rows of a query, and returns their number.
async fn write_rows(
    frame: DataFrame,
    format: Format,
    output: Box<dyn Write + Send>,
) -> Result<Result<u64, ShowError>, Error> {
    let schema = Arc::new(frame.schema().as_arrow().clone());
    let mut sink = match open_sink(format, &schema, output, RowLimit::default()) {
        Ok(sink) => sink,
        Err(error) => return Ok(Err(error)),
    };
    let mut rows = frame.execute_stream().await?;
    let mut num_rows = 0;
    while let Some(batch) = rows.try_next().await? {
        num_rows += batch.num_rows() as u64;
        if let Err(error) = sink.write(&batch) {
            return Ok(Err(error));
        }
    }
    Ok(sink.finish().map(|()| num_rows))
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
