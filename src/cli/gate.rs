//! [`Gate`]: a query whose rows are violations, and the [`Verdict`] on it.

use std::path::Path;
use std::{fs, io};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use futures::TryStreamExt;
use serde_json::{Value, json};

use super::doubts;
use super::sql::{Item, Statement, Statements};
use crate::error::{Error, USAGE};
use crate::query::SqlSession;
use crate::session::QueryError;
use crate::show::{Format, RowLimit, ShowError, cut, open_sink, terminal_width};

/// A query whose rows are violations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gate {
    /// Its name in messages.
    pub name: String,
    /// The query, padded so that errors name its line and column in its file.
    pub sql: String,
}

/// Reads the value of `--gate`: an existing file, or else SQL.
pub(super) fn gates(given: &str) -> Result<Vec<Gate>, Error> {
    let usage = |reason: String| Error::Usage(format!("--gate {given}: {reason}"));
    let path = Path::new(given);
    let text = if path.is_file() {
        let text = fs::read_to_string(path);
        text.map_err(|source| usage(format!("cannot be read: {source}")))?
    } else if given.contains(char::is_whitespace) {
        given.to_owned()
    } else {
        // A query contains spaces, so this is meant as a path.
        return Err(usage("there is no such file".into()));
    };
    let gates = of_text(&text).map_err(usage)?;
    if gates.is_empty() {
        return Err(usage("there is no query".into()));
    }
    Ok(gates)
}

fn of_text(text: &str) -> Result<Vec<Gate>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let gate = |item| match item {
        Item::Statement(statement) => Ok(Gate {
            name: name(&statement, &lines),
            sql: statement.in_place(),
        }),
        Item::Command(command) => Err(format!(
            "'\\{command}' is a command of `rollstream sql`, not a query; a gate must be a query"
        )),
    };
    Statements::all(text).into_iter().map(gate).collect()
}

/// Returns the name of a gate: the first line of the comment before its query, or else of the query.
fn name(statement: &Statement, lines: &[&str]) -> String {
    let before = lines.get(..statement.line()).unwrap_or_default();
    let is_alone = lines
        .get(statement.line())
        .and_then(|line| line.split(&first_line(&statement.text)).next())
        .is_some_and(|space| space.trim().is_empty());
    let comment = before
        .iter()
        .rev()
        .map(|line| line.trim())
        .skip_while(|line| line.is_empty())
        .map_while(|line| line.strip_prefix("--"))
        .map(|line| line.trim_matches('-').trim())
        .filter(|line| !line.is_empty());
    match comment.last() {
        Some(comment) if is_alone => comment.to_owned(),
        _ => first_line(&statement.text),
    }
}

fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.trim().to_owned()
}

/// The number of rows of a gate that are shown.
const MAX_ROWS: usize = 20;

/// Characters of a gate's name in a message. The name may be a query.
const NAME_WIDTH: usize = 60;

/// Characters of the line about a gate where there is no terminal.
const LINE_WIDTH: usize = 120;

/// The result of a gate.
#[derive(Debug)]
pub(super) struct Verdict {
    /// The gate's name.
    pub name: String,
    /// Its violations, or the error of the query.
    pub found: Result<Violations, Error>,
    /// Why it may not mean what it says.
    doubts: Vec<String>,
}

/// The rows that a gate returned: the first ones, and the total number.
#[derive(Debug)]
pub(super) struct Violations {
    pub count: u64,
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
}

impl Verdict {
    /// Runs the query of a gate.
    pub(super) async fn of(gate: Gate, session: &SqlSession) -> Self {
        let (found, doubts) = match session.plan(&gate.sql).await {
            Ok(frame) => {
                // A query that fails says so itself.
                let doubts = doubts::of_gate(session, &frame).await;
                (count(frame).await, doubts.unwrap_or_default())
            }
            Err(error) => (Err(wrong(error)), Vec::new()),
        };
        Self {
            name: gate.name,
            found,
            doubts,
        }
    }

    /// Returns what speaks against its result.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let name = self.short_name();
        let doubts = self.doubts.iter();
        doubts.map(move |doubt| format!("{name}: {doubt}"))
    }

    /// Returns its name for messages: `gate 'Nothing is pending'`.
    pub(super) fn short_name(&self) -> String {
        format!("gate '{}'", cut(&self.name, NAME_WIDTH))
    }

    pub(super) fn is_passed(&self) -> bool {
        matches!(&self.found, Ok(Violations { count: 0, .. }))
    }

    /// Returns the verdict for people: a line, and the rows below it.
    pub(super) fn text(&self) -> Result<String, ShowError> {
        let width = terminal_width(io::stdout());
        let line = |word: &str, rest: &str| {
            let others = word.chars().count() + 1 + rest.chars().count();
            let room = width.unwrap_or(LINE_WIDTH).saturating_sub(others);
            format!("{word} {}{rest}\n", cut(&self.name, room.max(1)))
        };
        let found = match &self.found {
            Ok(found) => found,
            // What is wrong with it goes to the standard error.
            Err(_) => return Ok(line("ERROR", "")),
        };
        let violations = match found.count {
            0 => return Ok(line("ok ", "")),
            1 => "1 violation".to_owned(),
            count if count > MAX_ROWS as u64 => {
                format!("{count} violations, the first {MAX_ROWS}:")
            }
            count => format!("{count} violations"),
        };
        let table = found.written(Format::Table, width)?;
        Ok(line("FAIL", &format!(": {violations}")) + &table)
    }

    /// Returns the verdict for programs.
    pub(super) fn json(&self) -> Result<Value, Error> {
        let name = &self.name;
        let found = match &self.found {
            Ok(found) => found,
            Err(error) => return Ok(json!({"name": name, "error": error.to_string()})),
        };
        let rows = found.written(Format::Json, None)?;
        let rows: Value = serde_json::from_str(&rows).map_err(Error::defect)?;
        Ok(json!({"name": name, "violations": found.count, "rows": rows}))
    }
}

impl Violations {
    /// Formats the rows; a table fits a terminal of `width` columns.
    fn written(&self, format: Format, width: Option<usize>) -> Result<String, ShowError> {
        let mut written = Vec::new();
        let all = RowLimit {
            rows: 0,
            width,
            hint: "--json shows whole rows",
        };
        let mut sink = open_sink(format, &self.schema, Box::new(&mut written), all)?;
        for rows in &self.rows {
            sink.write(rows)?;
        }
        sink.finish()?;
        Ok(String::from_utf8_lossy(&written).into_owned())
    }
}

/// Counts all rows of a query, and keeps the first.
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

/// Converts the error of a query: a usage error, unless the machine or the store is at fault.
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

/// Makes an error of a query a usage error: the query is part of the command line.
fn wrong(error: Error) -> Error {
    match error.cause::<QueryError>() {
        Some(_) => error.with_exit_code(USAGE),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let gates = of_text(text).unwrap();
        gates.into_iter().map(|gate| gate.name).collect()
    }

    #[test]
    fn a_gate_is_called_by_the_comment_before_it_or_its_first_line() {
        let text = "\
-- All of it is there;
-- it was planned so.
SELECT *
FROM coverage
WHERE pending > 0;

------ No zeros ------

SELECT 1; SELECT 2 -- why
  FROM t;
SELECT 3
";
        assert_eq!(
            names(text),
            [
                "All of it is there;",
                "No zeros",
                "SELECT 2 -- why",
                "SELECT 3"
            ]
        );
        assert_eq!(names("SELECT 1;; -- nothing"), ["SELECT 1"]);
        assert_eq!(names("SELECT ';--'"), ["SELECT ';--'"]);
    }

    #[test]
    fn a_gate_keeps_its_place_for_messages() {
        let gates = of_text("SELECT 1;\n SELEC 2").unwrap();
        assert_eq!(gates[1].sql, "\n SELEC 2");
    }

    #[test]
    fn what_is_no_gate_is_refused() {
        for (given, complaint) in [
            ("nowhere/gates.sql", "no such file"),
            ("-- a comment", "there is no query"),
            ("\\d rollouts", "a gate must be a query"),
            ("", "no such file"),
        ] {
            let error = gates(given).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
