//! [`SqlSession`]: the tables of the runs that were given, as `NAME=RUN` or `RUN` alone.

use std::path::Path;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{Expr, LogicalPlan, ident, lit};
use datafusion::prelude::SessionContext;

use super::catalog::table_hint;
use super::using::name_tables;
use crate::cli::measurement::{DEFAULT_MEMORY, FamilyArgs, metric_tables};
use crate::cli::runs::open_recorded;
use crate::error::Error;
use crate::group::{GROUPS, groups};
use crate::measure::MetricTables;
use crate::measure::functions;
use crate::session::{self, MetricNames, NamedRun, QueryError, RunTables};
use crate::store::part_name;

/// The session that runs queries.
pub(in crate::cli) struct SqlSession {
    context: SessionContext,
    runs: Vec<NamedRun>,
    names: MetricNames,
    metrics: Arc<MetricTables>,
}

impl SqlSession {
    /// Finds the runs. Their tables, and those of `metrics`, exist after `look`.
    pub(in crate::cli) async fn open(
        context: SessionContext,
        given: &[String],
        metrics: MetricTables,
    ) -> Result<Self, Error> {
        let mut runs = Vec::new();
        for given in given_runs(given)? {
            let (run, _) = open_recorded(&given.place).await?;
            runs.push(NamedRun {
                label: given.label,
                schema: given.schema,
                run,
            });
        }
        functions::register(&context);
        functions::register_json(&context)?;
        Ok(Self {
            context,
            runs,
            names: MetricNames::default(),
            metrics: Arc::new(metrics),
        })
    }

    /// Opens one run with the built-in metric families, and looks at it.
    pub(in crate::cli) async fn of_run(run: &str) -> Result<Self, Error> {
        let context = session::measuring(DEFAULT_MEMORY)?;
        let metrics = metric_tables(&FamilyArgs::default(), DEFAULT_MEMORY)?;
        let mut session = Self::open(context, &[run.to_owned()], metrics).await?;
        session.look().await?;
        Ok(session)
    }

    /// Looks at the runs: from here on, their tables have what the runs hold now. In `rollstream sql`, every statement
    /// gets a look of its own.
    pub(in crate::cli) async fn look(&mut self) -> Result<(), Error> {
        let tables = session::register_wide(&self.context, &self.runs, &mut self.names).await?;
        self.add_groups().await?;
        self.add_metrics(&tables)
    }

    /// Adds the table of groups, which a sweep writes when it ends. A run without groups has none in it.
    async fn add_groups(&self) -> Result<(), Error> {
        let with_run = self.has_labels();
        let mut all: Option<DataFrame> = None;
        for NamedRun { label, schema, run } in &self.runs {
            let name = part_name(GROUPS, GROUPS);
            let groups = if run.exists(&name).await? {
                session::part(&self.context, run, &name, &groups())?
            } else {
                self.context.read_batch(RecordBatch::new_empty(groups()))?
            };
            if let Some(schema) = schema {
                let own = TableReference::partial(schema.as_str(), GROUPS);
                let groups = groups.clone().into_view();
                self.context.register_table(own, groups)?;
            }
            all = Some(union(all, groups, with_run.then_some(label))?);
        }
        if let Some(all) = all {
            self.context.register_table(GROUPS, all.into_view())?;
        }
        Ok(())
    }

    /// Adds the metric tables: for one run to the default schema, for several to the schema of each, since equally
    /// numbered rollouts would be mixed otherwise.
    fn add_metrics(&self, tables: &[RunTables]) -> Result<(), Error> {
        let options = self.context.state().config().options().catalog.clone();
        let Some(catalog) = self.context.catalog(&options.default_catalog) else {
            return Ok(());
        };
        for (run, tables) in self.runs.iter().zip(tables) {
            let default = (self.runs.len() == 1).then_some(&options.default_schema);
            let names = default.into_iter().chain(&run.schema);
            let schemas: Vec<_> = names
                .filter_map(|name| Some((name, catalog.schema(name)?)))
                .collect();
            let (names, schemas): (Vec<_>, Vec<_>) = schemas.into_iter().unzip();
            let schemas = self.metrics.beside(tables, schemas);
            for (name, schema) in names.into_iter().zip(schemas) {
                catalog.register_schema(name, schema)?;
            }
        }
        Ok(())
    }

    /// Plans a statement over what the last look found.
    pub(in crate::cli) async fn plan(&self, statement: &str) -> Result<DataFrame, Error> {
        let only_queries = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false);
        let planned = self.context.sql_with_options(statement, only_queries).await;
        let error = match planned {
            Ok(frame) => return Ok(frame),
            Err(error) => error,
        };
        if let Some(frame) = self.plan_named(statement, &only_queries).await {
            return Ok(frame);
        }
        let Some(name) = session::missing_table(&error) else {
            return Err(error.into());
        };
        let hint = table_hint(&self.context, name).await;
        Err(QueryError::with_hint(error, hint).into())
    }

    /// Plans a statement that the engine only understands with names of tables.
    async fn plan_named(&self, statement: &str, options: &SQLOptions) -> Option<DataFrame> {
        let state = self.context.state();
        let dialect = state.config().options().sql_parser.dialect;
        let mut statement = state.sql_to_statement(statement, &dialect).ok()?;
        if !name_tables(&mut statement) {
            return None;
        }
        let plan = state.statement_to_plan(statement).await.ok()?;
        options.verify_plan(&plan).ok()?;
        Some(self.frame(plan))
    }

    /// Returns a plan as a query of this session.
    pub(in crate::cli) fn frame(&self, plan: LogicalPlan) -> DataFrame {
        DataFrame::new(self.context.state(), plan)
    }

    /// Returns the label of each run, with the condition for its rows in the tables of all runs.
    pub(in crate::cli) fn labels(&self) -> impl Iterator<Item = (&str, String)> {
        let is_alone = !self.has_labels();
        self.runs.iter().map(move |NamedRun { label, .. }| {
            let condition = format!("WHERE run = '{}'", label.replace('\'', "''"));
            (
                label.as_str(),
                if is_alone { String::new() } else { condition },
            )
        })
    }

    /// Whether the tables of all runs have a column `run`.
    fn has_labels(&self) -> bool {
        self.runs.len() > 1 || self.runs.iter().any(|run| run.schema.is_some())
    }

    pub(super) fn context(&self) -> &SessionContext {
        &self.context
    }

    pub(super) fn runs(&self) -> &[NamedRun] {
        &self.runs
    }

    pub(super) fn metrics(&self) -> &MetricTables {
        &self.metrics
    }
}

/// Adds the rows of a run, with its label in the column `run` if it has one.
fn union(
    before: Option<DataFrame>,
    rows: DataFrame,
    label: Option<&String>,
) -> Result<DataFrame, DataFusionError> {
    let columns = rows.schema().fields().iter();
    let columns = columns.map(|field| ident(field.name()));
    let label = label.map(|label| lit(label.as_str()).alias("run"));
    let columns: Vec<Expr> = label.into_iter().chain(columns).collect();
    let rows = rows.select(columns)?;
    match before {
        Some(before) => before.union(rows),
        None => Ok(rows),
    }
}

/// A run as it was given on the command line.
#[derive(Debug, PartialEq, Eq)]
struct NamedPlace {
    /// Directory or address.
    pub place: String,
    /// What the column `run` holds for it.
    pub label: String,
    /// The schema of its own tables, if it has one.
    pub schema: Option<String>,
}

/// Schemas that a session has already.
const TAKEN: [&str; 2] = ["public", "information_schema"];

/// Parses the runs that the command line gives.
fn given_runs(given: &[String]) -> Result<Vec<NamedPlace>, Error> {
    named(given, |place| Path::new(place).exists())
}

fn named(given: &[String], exists: impl Fn(&str) -> bool) -> Result<Vec<NamedPlace>, Error> {
    let given: Vec<(Option<&str>, &str)> = given
        .iter()
        .map(|text| match split(text) {
            Some((name, place)) if !exists(text) => (Some(name), place),
            _ => (None, text.as_str()),
        })
        .collect();
    let schema = |(name, place): &(Option<&str>, &str)| {
        let name = name.or_else(|| place.trim_end_matches('/').rsplit('/').next());
        name.filter(|name| is_identifier(name))
            .map(str::to_ascii_lowercase)
    };
    let schemas: Vec<Option<String>> = given.iter().map(schema).collect();
    let count = |schema: &String| schemas.iter().flatten().filter(|s| *s == schema).count();
    let mut runs: Vec<NamedPlace> = Vec::new();
    for ((name, place), schema) in given.iter().zip(&schemas) {
        let label = name.unwrap_or_else(|| place.trim_end_matches('/'));
        if place.is_empty() {
            return Err(Error::Usage(format!(
                "'{label}=' names no run; write {label}=RUN"
            )));
        }
        let is_taken = |schema: &String| TAKEN.contains(&schema.as_str());
        if let (Some(name), Some(schema)) = (name, schema)
            && is_taken(schema)
        {
            return Err(Error::Usage(format!(
                "a run cannot be called '{name}', the name of a built-in schema; give it another name"
            )));
        }
        if runs.iter().any(|run| run.label.eq_ignore_ascii_case(label)) {
            return Err(Error::Usage(match name {
                Some(name) => format!("two runs are called '{name}'; give each a name of its own"),
                None => {
                    format!("the run {label} is given twice; tell them apart with NAME={label}")
                }
            }));
        }
        // A given name takes precedence over the last part of a path.
        let is_free = |schema: &String| {
            name.is_some() || (given.len() > 1 && count(schema) == 1 && !is_taken(schema))
        };
        runs.push(NamedPlace {
            place: (*place).to_owned(),
            label: label.to_owned(),
            schema: schema.clone().filter(is_free),
        });
    }
    Ok(runs)
}

/// Splits a text into the name before a run, and the run.
pub(in crate::cli) fn split(text: &str) -> Option<(&str, &str)> {
    let (name, place) = text.split_once('=')?;
    is_identifier(name).then_some((name, place))
}

pub(super) fn is_identifier(text: &str) -> bool {
    let mut characters = text.chars();
    let first = characters.next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(line: &str) -> Vec<(String, String, Option<String>)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let runs = named(&words, |place| place == "a=b").unwrap();
        runs.into_iter()
            .map(|run| (run.label, run.place, run.schema))
            .collect()
    }

    fn run(label: &str, place: &str, schema: Option<&str>) -> (String, String, Option<String>) {
        (label.into(), place.into(), schema.map(str::to_owned))
    }

    #[test]
    fn a_name_goes_before_its_run() {
        assert_eq!(
            given("base=runs/a Cand=s3://b/c=d/"),
            [
                run("base", "runs/a", Some("base")),
                run("Cand", "s3://b/c=d/", Some("cand"))
            ]
        );
        assert_eq!(given("x=runs/a"), [run("x", "runs/a", Some("x"))]);
    }

    #[test]
    fn what_is_no_name_is_part_of_the_path() {
        assert_eq!(
            given("a=b runs/x=1 4x=y"),
            [
                run("a=b", "a=b", None),
                run("runs/x=1", "runs/x=1", None),
                run("4x=y", "4x=y", None)
            ]
        );
    }

    #[test]
    fn a_path_among_others_is_called_by_its_last_part_where_that_is_one_name() {
        assert_eq!(given("runs/a"), [run("runs/a", "runs/a", None)]);
        assert_eq!(
            given("runs/a/ s3://x/b c=d 1/c 2/e 3/e f-1 public"),
            [
                run("runs/a", "runs/a/", Some("a")),
                run("s3://x/b", "s3://x/b", Some("b")),
                run("c", "d", Some("c")),
                run("1/c", "1/c", None),
                run("2/e", "2/e", None),
                run("3/e", "3/e", None),
                run("f-1", "f-1", None),
                run("public", "public", None),
            ]
        );
    }

    #[test]
    fn a_name_is_given_once_and_to_a_run() {
        for (line, complaint) in [
            ("a=x A=y", "two runs are called 'A'"),
            ("x/y x/y/", "x/y is given twice"),
            ("x=", "'x=' names no run"),
            ("public=x", "cannot be called 'public'"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = named(&words, |_| false).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
