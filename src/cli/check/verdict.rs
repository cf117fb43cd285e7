use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::gate::Gate;
use crate::cli::sql::SqlSession;
use crate::error::{Error, USAGE};
use crate::session::QueryError;
use crate::show::{Format, RowLimit, ShowError, open_sink, open_table};

/// Rows of a gate that are shown.
const MAX_ROWS: usize = 20;

/// What came of a gate.
#[derive(Debug)]
pub(super) struct Verdict {
    /// The gate's name.
    pub name: String,
    /// Its violations, or why they are not known.
    pub found: Result<Violations, Error>,
}

/// The rows that a gate returned: the first of them, and the number of all.
#[derive(Debug)]
pub(super) struct Violations {
    pub count: u64,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
}

impl Verdict {
    /// Asks a gate.
    pub(super) async fn of(gate: Gate, session: &SqlSession) -> Self {
        let found = match session.plan(&gate.sql).await {
            Ok(frame) => count(frame).await,
            Err(error) => Err(wrong(error)),
        };
        Self {
            name: gate.name,
            found,
        }
    }

    pub(super) fn is_passed(&self) -> bool {
        matches!(&self.found, Ok(Violations { count: 0, .. }))
    }

    /// A line for people, and the rows below it.
    pub(super) fn text(&self) -> Result<String, ShowError> {
        let name = &self.name;
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => return Ok(format!("ERROR {name}: {error}\n")),
        };
        let violations = match found.count {
            0 => return Ok(format!("ok  {name}\n")),
            1 => "1 violation".to_owned(),
            count if count > MAX_ROWS as u64 => {
                format!("{count} violations, the first {MAX_ROWS}:")
            }
            count => format!("{count} violations"),
        };
        let table = found.written(|schema, output| {
            let limit = RowLimit {
                rows: 0,
                ..RowLimit::default()
            };
            Ok(open_table(schema, output, limit))
        })?;
        Ok(format!("FAIL {name}: {violations}\n{table}"))
    }

    /// For programs.
    pub(super) fn json(&self) -> Result<Value, Error> {
        let name = &self.name;
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => return Ok(json!({"name": name, "error": error.to_string()})),
        };
        let rows = found.written(|schema, output| open_sink(Format::Json, schema, output))?;
        let rows: Value = serde_json::from_str(&rows).map_err(Error::defect)?;
        Ok(json!({"name": name, "violations": found.count, "rows": rows}))
    }
}

type Sink<'a> = Box<dyn crate::show::RowSink + 'a>;
type Output<'a> = Box<dyn std::io::Write + Send + 'a>;

impl Violations {
    fn written(
        &self,
        open: impl for<'a> FnOnce(&SchemaRef, Output<'a>) -> Result<Sink<'a>, ShowError>,
    ) -> Result<String, ShowError> {
        let mut written = Vec::new();
        let mut sink = open(&self.schema, Box::new(&mut written))?;
        for rows in &self.rows {
            sink.write(rows)?;
        }
        sink.finish()?;
        Ok(String::from_utf8_lossy(&written).into_owned())
    }
}

/// Counts all rows of a query and holds the first.
async fn count(frame: DataFrame) -> Result<Violations, Error> {
    let schema = SchemaRef::clone(frame.schema().inner());
    let mut stream = frame.execute_stream().await.map_err(failed)?;
    let mut found = Violations {
        count: 0,
        schema,
        rows: Vec::new(),
    };
    let mut held = 0;
    while let Some(batch) = stream.try_next().await.map_err(failed)? {
        found.count += batch.num_rows() as u64;
        let wanted = (MAX_ROWS - held).min(batch.num_rows());
        if wanted > 0 {
            held += wanted;
            found.rows.push(batch.slice(0, wanted));
        }
    }
    Ok(found)
}

/// What a query that does not run says of itself, unless the machine or the store is at fault.
fn failed(error: DataFusionError) -> Error {
    let is_of_query = !matches!(
        error.find_root(),
        DataFusionError::IoError(_)
            | DataFusionError::ObjectStore(_)
            | DataFusionError::ResourcesExhausted(_)
            | DataFusionError::Internal(_)
    );
    match Error::from(error) {
        error if is_of_query => wrong(error),
        error => error,
    }
}

/// A query is part of the command line, and who wrote it can mend it.
fn wrong(error: Error) -> Error {
    match error.cause::<QueryError>() {
        Some(_) => error.with_exit_code(USAGE),
        None => error,
    }
}
