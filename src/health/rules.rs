//! [`Rules`]: the files of `queries/health`, each a check. A new file is a new check. [`to_json`] is the SQL function by
//! which a rule spells what it found.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow::json::writer::{JsonArray, WriterBuilder};
use datafusion::common::{Result as QueryResult, exec_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::{DataFrame, Expr, SessionContext, cast, col, lit};
use datafusion::scalar::ScalarValue;
use include_dir::{Dir, include_dir};
use serde_json::value::RawValue;

use super::error::HealthError;
use crate::measure::MeasureError;

static RULES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/health");

/// The check that reports that another one failed to run.
pub(super) const BROKEN_CHECK: &str = "check_execution_error";

/// What a rule looks at, in the order in which findings are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// One record.
    Record,
    /// All records together.
    Records,
    /// The rollouts of a task.
    Tasks,
}

/// A check, and what it found.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name: that of its file, without the number in front.
    pub id: String,
    /// The number of its findings.
    pub found: u64,
    pub(super) unobserved: u64,
    pub(super) scope: Scope,
    pub(super) is_ignored: bool,
    sql: &'static str,
}

/// All checks, in their order.
#[derive(Debug, Clone)]
pub(super) struct Rules(pub Vec<Rule>);

impl Rules {
    /// Reads the files and marks the checks in `ignored`.
    ///
    /// # Errors
    /// There is no such check.
    pub(super) fn new(ignored: &[String]) -> Result<Self, HealthError> {
        let ignored = ignored.iter().flat_map(|names| names.split(','));
        let ignored = ignored.map(str::trim);
        let ignored: BTreeSet<&str> = ignored.filter(|name| !name.is_empty()).collect();
        let mut files: Vec<(&str, &'static str)> = RULES
            .files()
            .filter_map(|file| {
                let name = file.path().file_name()?.to_str()?.strip_suffix(".sql")?;
                Some((name, file.contents_utf8()?))
            })
            .collect();
        files.sort_unstable();
        let rules = files.into_iter().map(|(name, sql)| {
            let id = name.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
            Rule {
                id: id.to_owned(),
                found: 0,
                unobserved: 0,
                scope: scope(sql),
                is_ignored: ignored.contains(id),
                sql,
            }
        });
        let rules: Vec<Rule> = rules.collect();
        let known: BTreeSet<&str> = rules.iter().map(|rule| &*rule.id).collect();
        let unknown: Vec<String> = (&ignored - &known).into_iter().map(str::to_owned).collect();
        if !unknown.is_empty() {
            let known = rules.into_iter().map(|rule| rule.id).collect();
            return Err(HealthError::Unknown { unknown, known });
        }
        Ok(Self(rules))
    }

    /// Returns the names of the checks that are left out, sorted.
    pub(super) fn ignored(&self) -> BTreeSet<&str> {
        let ignored = self.0.iter().filter(|rule| rule.is_ignored);
        ignored.map(|rule| &*rule.id).collect()
    }

    /// Returns the position of a check, unless it is left out.
    pub(super) fn position(&self, id: &str) -> Option<usize> {
        let mut rules = self.0.iter();
        rules.position(|rule| rule.id == id && !rule.is_ignored)
    }

    /// Returns what all rules of the scopes find, in any order. Columns: `subject` (what it is about, a column of
    /// `table`), `scope`, `rule` (its position), `position` (of the finding), `locator`, `detail` and `error`. Without
    /// detail and error, a rule had no evidence.
    pub(super) async fn findings(
        &self,
        session: &SessionContext,
        table: &str,
        subject: &str,
        is_asked: impl Fn(Scope) -> bool,
    ) -> Result<DataFrame, HealthError> {
        let nothing = format!("SELECT {subject} FROM {table} WHERE false");
        let mut all = selected(session.sql(&nothing).await?, subject, Scope::Record, 0)?;
        let rules = self.0.iter().enumerate();
        for (position, rule) in rules.filter(|(_, rule)| is_asked(rule.scope) && !rule.is_ignored) {
            let found = session.sql(rule.sql).await;
            let found = found.and_then(|found| selected(found, subject, rule.scope, position));
            let found = found.map_err(|source| MeasureError::Query {
                name: rule.id.clone(),
                origin: "built in".to_owned(),
                error: Box::new(source),
            })?;
            all = all.union(found)?;
        }
        Ok(all)
    }
}

/// Selects the columns that all findings have from what a rule found.
fn selected(found: DataFrame, subject: &str, scope: Scope, rule: usize) -> QueryResult<DataFrame> {
    let column = |name: &str, kind: DataType| -> Expr {
        let is_there = found.schema().has_column_with_unqualified_name(name);
        let value = if is_there {
            col(name)
        } else {
            lit(ScalarValue::Null)
        };
        cast(value, kind).alias(name)
    };
    let columns = vec![
        col(subject),
        lit(scope as i64).alias("scope"),
        lit(i64::try_from(rule).unwrap_or_default()).alias("rule"),
        column("position", DataType::Int64),
        column("locator", DataType::Utf8),
        column("detail", DataType::Utf8),
        column("error", DataType::Utf8),
    ];
    found.select(columns)
}

fn scope(sql: &str) -> Scope {
    let header = sql.lines().map_while(|line| line.strip_prefix("--"));
    let mut scopes = header.filter_map(|line| line.trim().strip_prefix("Scope: "));
    match scopes.next() {
        Some("records") => Scope::Records,
        Some("tasks") => Scope::Tasks,
        _ => Scope::Record,
    }
}

/// `to_json(value STRUCT) -> VARCHAR`: the JSON text of an object, with its nulls.
pub(super) fn to_json() -> ScalarUDF {
    ScalarUDF::from(ToJson {
        signature: Signature::any(1, Volatility::Immutable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    signature: Signature,
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &'static str {
        "to_json"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> QueryResult<DataType> {
        match given {
            [DataType::Struct(_)] => Ok(DataType::Utf8),
            _ => exec_err!("to_json takes one struct, as named_struct('name', value)"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> QueryResult<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let [column] = columns.as_slice() else {
            return exec_err!("to_json: {} columns instead of 1", columns.len());
        };
        let rows = RecordBatch::from(column.as_struct());
        let mut text = Vec::new();
        let writer = WriterBuilder::new().with_explicit_nulls(true);
        let mut writer = writer.build::<_, JsonArray>(&mut text);
        writer.write(&rows)?;
        writer.finish()?;
        drop(writer);
        let rows: Vec<&RawValue> = match text.as_slice() {
            // Without rows nothing is written.
            [] => Vec::new(),
            text => serde_json::from_slice(text)
                .map_err(|error| DataFusionError::External(Box::new(error)))?,
        };
        let rows: StringArray = rows.iter().map(|row| Some(row.get())).collect();
        Ok(ColumnarValue::Array(Arc::new(rows)))
    }
}
