//! [`Rules`]: the files of `queries/health`, each a check. A new file is a new check.

use std::collections::BTreeSet;

use datafusion::arrow::datatypes::DataType;
use datafusion::prelude::{DataFrame, Expr, SessionContext, cast, col, lit};
use datafusion::scalar::ScalarValue;
use include_dir::{Dir, include_dir};

use super::error::HealthError;
use crate::measure::MeasureError;

static RULES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/health");

/// The check that is found at fault where another one breaks down.
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

/// A check.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    /// Its name: that of its file, without the number that says its place.
    pub id: String,
    pub scope: Scope,
    pub is_ignored: bool,
    sql: &'static str,
}

/// All checks, in their order.
#[derive(Debug, Clone)]
pub(super) struct Rules(pub Vec<Rule>);

impl Rules {
    /// Reads the files; those of the checks in `ignored` are left out.
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
            let numbered = name.split_once('_');
            let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
            let id = numbered
                .filter(|(number, _)| is_number(number))
                .map_or(name, |(_, id)| id);
            Rule {
                id: id.to_owned(),
                scope: scope(sql),
                is_ignored: ignored.contains(id),
                sql,
            }
        });
        let rules: Vec<Rule> = rules.collect();
        let is_known = |name: &&&str| rules.iter().any(|rule| rule.id == **name);
        let unknown: Vec<String> = ignored
            .iter()
            .filter(|name| !is_known(name))
            .map(ToString::to_string)
            .collect();
        if !unknown.is_empty() {
            return Err(HealthError::Unknown {
                unknown,
                known: rules.into_iter().map(|rule| rule.id).collect(),
            });
        }
        Ok(Self(rules))
    }

    /// The names of those that are left out, sorted.
    pub(super) fn ignored(&self) -> BTreeSet<&str> {
        let ignored = self.0.iter().filter(|rule| rule.is_ignored);
        ignored.map(|rule| &*rule.id).collect()
    }

    pub(super) fn position(&self, id: &str) -> Option<usize> {
        self.0.iter().position(|rule| rule.id == id)
    }

    /// What all rules of the scopes find, in any order. Columns: `subject` (what it is about), `scope`, `rule` (its
    /// position), `position` (of the finding), `locator`, `detail` and `error`. Without detail and error, a rule had no
    /// evidence.
    pub(super) async fn findings(
        &self,
        session: &SessionContext,
        subject: &str,
        is_asked: impl Fn(Scope) -> bool,
    ) -> Result<Option<DataFrame>, HealthError> {
        let mut all: Option<DataFrame> = None;
        let rules = self.0.iter().enumerate();
        for (position, rule) in rules.filter(|(_, rule)| is_asked(rule.scope) && !rule.is_ignored) {
            let found = rule.findings(session, subject, position).await;
            let found = found.map_err(|source| MeasureError::Query {
                name: rule.id.clone(),
                origin: "built in".to_owned(),
                source: Box::new(source),
            })?;
            all = Some(match all {
                Some(all) => all.union(found).map_err(HealthError::tables)?,
                None => found,
            });
        }
        Ok(all)
    }
}

fn scope(sql: &str) -> Scope {
    let header = sql.lines().map_while(|line| line.strip_prefix("--"));
    let named = header
        .filter_map(|line| line.trim().strip_prefix("Scope: "))
        .next();
    match named {
        Some("records") => Scope::Records,
        Some("tasks") => Scope::Tasks,
        _ => Scope::Record,
    }
}

impl Rule {
    async fn findings(
        &self,
        session: &SessionContext,
        subject: &str,
        position: usize,
    ) -> datafusion::error::Result<DataFrame> {
        let frame = session.sql(self.sql).await?;
        let column = |name: &str, kind: DataType| -> Expr {
            let is_there = frame.schema().has_column_with_unqualified_name(name);
            let value = if is_there {
                col(name)
            } else {
                lit(ScalarValue::Null)
            };
            cast(value, kind).alias(name)
        };
        let columns = vec![
            col(subject),
            lit(self.scope as i64).alias("scope"),
            lit(i64::try_from(position).unwrap_or_default()).alias("rule"),
            column("position", DataType::Int64),
            column("locator", DataType::Utf8),
            column("detail", DataType::Utf8),
            column("error", DataType::Utf8),
        ];
        frame.select(columns)
    }
}
