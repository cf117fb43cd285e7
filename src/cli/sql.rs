use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;

use super::Exit;
use super::args::{SqlArgs, SqlFormat};
use super::exit::unless_gone;
use crate::error::Error;
use crate::measure::functions;
use crate::session;
use crate::show::{Format, open_sink};
use crate::store::{RunRecord, RunStore, StoreError};

/// `rollstream sql`: a query over one or several runs.
pub(super) async fn sql(args: SqlArgs) -> Result<Exit, Error> {
    let query = match (&args.command, &args.file) {
        (Some(query), _) => query.clone(),
        (None, Some(path)) => std::fs::read_to_string(path).map_err(|source| {
            Error::Usage(format!(
                "cannot read the query '{}' (-f): {source}",
                path.display()
            ))
        })?,
        (None, None) => String::new(),
    };
    let session = SessionContext::new_with_config(session::config());
    functions::register(&session);
    functions::register_json(&session)?;
    session::register_wide(&session, &runs(&args).await?).await?;
    let only_queries = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false);
    let frame = session.sql_with_options(&query, only_queries).await?;
    let schema = std::sync::Arc::new(frame.schema().as_arrow().clone());
    let output: Box<dyn Write + Send> = match &args.output_file {
        Some(path) => {
            let file = File::create(path).map_err(|source| StoreError::File {
                action: "create",
                path: path.clone(),
                source,
            })?;
            Box::new(BufWriter::new(file))
        }
        None => Box::new(BufWriter::new(io::stdout())),
    };
    let mut sink = open_sink(format(args.format), &schema, output)?;
    let mut rows = frame.execute_stream().await?;
    while let Some(batch) = rows.try_next().await? {
        if let Some(exit) = unless_gone(sink.write(&batch))? {
            return Ok(exit);
        }
    }
    unless_gone(sink.finish())?;
    Ok(Exit::Done)
}

/// The runs and what their rows are called by.
async fn runs(args: &SqlArgs) -> Result<Vec<(String, RunStore)>, Error> {
    let state_dir = std::env::var_os("ROLLSTREAM_STATE_DIR").map(PathBuf::from);
    let mut runs = Vec::new();
    for place in &args.runs {
        let run = RunStore::open(place, state_dir.as_deref())?;
        if RunRecord::load(&run).await?.is_none() {
            return Err(StoreError::NoRun {
                place: run.display(""),
            }
            .into());
        }
        runs.push((place.trim_end_matches('/').to_owned(), run));
    }
    Ok(runs)
}

fn format(format: SqlFormat) -> Format {
    match format {
        SqlFormat::Table => Format::Table,
        SqlFormat::Csv => Format::Csv,
        SqlFormat::Json => Format::Json,
        SqlFormat::Ndjson => Format::Ndjson,
        SqlFormat::Parquet => Format::Parquet,
    }
}
