//! Splits a run by the values of a column or a field: [`Subsets`].

use arrow::datatypes::DataType;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::{Expr, JoinType, ident, lit};
use datafusion::prelude::SessionContext;

use super::functions;
use super::rows::{Column, Rows};
use super::source::Source;
use crate::error::Error;
use crate::json;
use crate::schema::{
    AGENT_NAME, FIRST_ROLLOUT_INDEX, INFO, INTEGER_METRICS, METRICS, NUM_REPEATS, REQUEST, RESULT,
    ROLLOUT_INDEX, ROLLOUTS, TABLES, TASK_INDEX, TASKS, tasks,
};
use crate::session::{self, Spool};

/// The largest number of subsets.
const MAX_SUBSETS: usize = 1_000;

const LABELS: &str = "labels";
const LABEL: &str = "label";

/// The rollouts by the values of a column, or of a path into the requests or answers.
pub(super) struct Subsets {
    values: Vec<String>,
    /// Whether all rollouts of a task are in one subset.
    is_of_tasks: bool,
    /// The subset of each task or of each rollout.
    labels: DataFrame,
}

impl Subsets {
    /// Finds the subsets.
    ///
    /// # Errors
    /// No task or rollout has such a value, or there are too many different ones.
    pub(super) async fn of(
        source: &Source<'_>,
        by: &str,
        memory: usize,
        spool: &Spool,
    ) -> Result<Self, Error> {
        let session = session::gathering(memory)?;
        functions::register(&session);
        source.register(&session).await?;
        let mut found = None;
        for (is_of_tasks, table, value) in candidates(&session, by).await? {
            let has_values = session
                .table(table)
                .await?
                .filter(value.clone().is_not_null())?;
            if has_values.limit(0, Some(1))?.count().await? > 0 {
                found = Some((is_of_tasks, table, value));
                break;
            }
        }
        let Some((is_of_tasks, table, value)) = found else {
            return Err(Error::Usage(format!(
                "--by {by}: no column has this name, and no task or answer has this field; \
                 request.PATH and result.PATH look only into tasks or answers"
            )));
        };
        let mut columns = vec![ident(AGENT_NAME), ident(TASK_INDEX)];
        if !is_of_tasks {
            columns.push(ident(ROLLOUT_INDEX));
        }
        columns.push(value.alias(LABEL));
        let labels = session.table(table).await?.select(columns)?;
        let labels = labels.filter(ident(LABEL).is_not_null())?;
        let labels = if is_of_tasks {
            labels.distinct()?
        } else {
            labels
        };
        spool.keep(&session, LABELS, labels).await?;
        let labels = session.table(LABELS).await?;
        let distinct = labels.clone().select(vec![ident(LABEL)])?.distinct()?;
        let sorted = distinct.sort(vec![ident(LABEL).sort(true, false)])?;
        let most = sorted.limit(0, Some(MAX_SUBSETS + 1))?;
        let values = Rows::start(most, |batch| String::read(batch, LABEL)).await?;
        let values = values.collect().await?;
        if values.len() > MAX_SUBSETS {
            return Err(Error::Usage(format!(
                "--by {by}: more than {MAX_SUBSETS} different values; choose something with fewer"
            )));
        }
        Ok(Self {
            values,
            is_of_tasks,
            labels,
        })
    }

    /// Returns the names of the subsets, sorted.
    pub(super) fn values(&self) -> impl Iterator<Item = &String> {
        self.values.iter()
    }

    /// Restricts the tables of a session to one subset.
    pub(super) async fn restrict(
        &self,
        session: &SessionContext,
        value: &str,
    ) -> Result<(), Error> {
        let labels = self.labels.clone().filter(ident(LABEL).eq(lit(value)))?;
        let keys: &[&str] = if self.is_of_tasks {
            &[AGENT_NAME, TASK_INDEX]
        } else {
            &[AGENT_NAME, TASK_INDEX, ROLLOUT_INDEX]
        };
        let names: Vec<String> = keys.iter().map(|key| format!("of_{key}")).collect();
        let renamed = keys.iter().zip(&names);
        let renamed = renamed.map(|(key, name)| ident(*key).alias(name));
        let labels = labels.select(renamed.collect::<Vec<Expr>>())?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut tables = Vec::new();
        for table in TABLES {
            if !session.table_exist(table)? || (table == TASKS && !self.is_of_tasks) {
                continue;
            }
            let rows = session.table(table).await?;
            let rows = labels
                .clone()
                .join(rows, JoinType::RightSemi, &names, keys, None)?;
            tables.push((table, rows));
        }
        if let (false, Some((_, rollouts))) = (
            self.is_of_tasks,
            tables.iter().find(|(table, _)| *table == ROLLOUTS),
        ) {
            // The subset of a rollout without an answer is unknown: only rollouts with an answer are planned.
            let schema = tasks();
            let planned = schema
                .fields()
                .iter()
                .map(|field| match field.name().as_str() {
                    name @ (TASK_INDEX | AGENT_NAME) => ident(name),
                    FIRST_ROLLOUT_INDEX => ident(ROLLOUT_INDEX).alias(FIRST_ROLLOUT_INDEX),
                    NUM_REPEATS => lit(1_i64).alias(NUM_REPEATS),
                    name if field.data_type() == &DataType::Int64 => lit(0_i64).alias(name),
                    name => lit("").alias(name),
                });
            let planned = rollouts.clone().select(planned.collect::<Vec<Expr>>())?;
            tables.push((TASKS, planned));
        }
        for (table, rows) in tables {
            session.deregister_table(table)?;
            session.register_table(table, rows.into_view())?;
        }
        Ok(())
    }
}

/// Returns where to look for a value, in order: whether it is a task's, the table, and the value as text.
async fn candidates(
    session: &SessionContext,
    by: &str,
) -> Result<Vec<(bool, &'static str, Expr)>, Error> {
    let text = |name: &str| datafusion::logical_expr::cast(ident(name), DataType::Utf8View);
    let path = |column: &str, path: &str| -> Result<Expr, Error> {
        json::Path::parse(path).map_err(|error| Error::usage(format!("--by {by}"), error))?;
        Ok(functions::json_text_at().call(vec![ident(column), lit(path)]))
    };
    if let Some(rest) = by.strip_prefix("request.") {
        return Ok(vec![(true, TASKS, path(REQUEST, rest)?)]);
    }
    if let Some(rest) = by.strip_prefix("result.") {
        return Ok(vec![(false, ROLLOUTS, path(RESULT, rest)?)]);
    }
    let mut candidates = Vec::new();
    for (is_of_tasks, table) in [(true, TASKS), (false, ROLLOUTS)] {
        let rows = session.table(table).await?;
        let is_text = ![METRICS, INTEGER_METRICS, INFO, RESULT, REQUEST].contains(&by);
        if is_text && rows.schema().has_column_with_unqualified_name(by) {
            candidates.push((is_of_tasks, table, text(by)));
        }
    }
    candidates.push((true, TASKS, path(REQUEST, by)?));
    candidates.push((false, ROLLOUTS, path(RESULT, by)?));
    Ok(candidates)
}
