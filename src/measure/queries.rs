//! Loads the SQL files that define the metrics: [`MetricQueries`] holds a [`MetricQuery`] for each. The comment at the
//! head of a file says what the query answers, and lists its [`Parameter`]s and columns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use datafusion::common::ScalarValue;
use include_dir::{Dir, include_dir};

use super::error::MeasureError;
use crate::config::suggestion;

static METRICS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/metrics");
static VIEWS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/views");

/// One metric family: a query that returns a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricQuery {
    /// The stem of its file name, and the name of its table.
    pub name: String,
    /// Its file; `None` for a built-in query.
    pub path: Option<PathBuf>,
    /// What it answers.
    pub description: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// The columns that its header names, each with its description.
    pub columns: Vec<(String, String)>,
    /// The query.
    pub sql: String,
}

impl MetricQuery {
    fn new(path: &Path, sql: String, is_file: bool) -> Result<Self, MeasureError> {
        let name = path.file_stem().and_then(|stem| stem.to_str());
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let name = name
            .filter(|name| !name.is_empty() && name.chars().all(is_allowed))
            .ok_or_else(|| MeasureError::Name { path: path.into() })?;
        let path = is_file.then(|| path.to_owned());
        let header = Self::parse(&sql).map_err(|line| MeasureError::Header {
            name: name.to_owned(),
            origin: origin(path.as_deref()),
            line,
        })?;
        Ok(Self {
            name: name.to_owned(),
            path,
            sql,
            ..header
        })
    }

    /// Returns its file, or `built in`, for messages.
    pub fn origin(&self) -> String {
        origin(self.path.as_deref())
    }
}

fn origin(path: Option<&Path>) -> String {
    path.map_or_else(|| "built in".to_owned(), |path| path.display().to_string())
}

/// Metric families by name.
#[derive(Debug, Clone, Default)]
pub struct MetricQueries(BTreeMap<String, MetricQuery>);

impl MetricQueries {
    /// Returns the built-in families.
    /// Fails if one has a header that is not understood, which would be a defect.
    pub fn embedded() -> Result<Self, MeasureError> {
        Self::of(&METRICS)
    }

    /// Returns the views that the metric queries read.
    /// Fails if one has a header that is not understood, which would be a defect.
    pub fn views() -> Result<Self, MeasureError> {
        Self::of(&VIEWS)
    }

    pub(super) fn of(directory: &Dir<'_>) -> Result<Self, MeasureError> {
        let mut queries = Self::default();
        for file in directory.files() {
            if let Some(sql) = file.contents_utf8().filter(|_| is_sql(file.path())) {
                queries.insert(MetricQuery::new(file.path(), sql.to_owned(), false)?);
            }
        }
        Ok(queries)
    }

    /// Returns the built-in families, and those of `directory` if it is given.
    /// Fails if the folder or a file cannot be read, or a file's name or header is not understood.
    pub fn load(directory: Option<&Path>) -> Result<Self, MeasureError> {
        let queries = Self::embedded()?;
        match directory {
            Some(directory) => queries.with_directory(directory),
            None => Ok(queries),
        }
    }

    /// Adds the `.sql` files of a folder. A file replaces the family of the same name.
    /// Fails if the folder or a file cannot be read, or a file's name or header is not understood.
    pub fn with_directory(mut self, directory: &Path) -> Result<Self, MeasureError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| MeasureError::Directory { path, source }
        };
        for entry in fs::read_dir(directory).map_err(failed(directory))? {
            let path = entry.map_err(failed(directory))?.path();
            if is_sql(&path) {
                let sql = fs::read_to_string(&path).map_err(failed(&path))?;
                self.insert(MetricQuery::new(&path, sql, true)?);
            }
        }
        Ok(self)
    }

    /// Returns the families with these names.
    ///
    /// # Errors
    /// A name has no family.
    pub fn only<S: AsRef<str>>(&self, names: &[S]) -> Result<Self, MeasureError> {
        let mut queries = Self::default();
        for name in names {
            queries.insert(self.get(name.as_ref())?.clone());
        }
        Ok(queries)
    }

    /// Returns the family with this name.
    ///
    /// # Errors
    /// No family has this name.
    pub fn get(&self, name: &str) -> Result<&MetricQuery, MeasureError> {
        let query = self.0.get(name);
        query.ok_or_else(|| MeasureError::Unknown {
            name: name.to_owned(),
            hint: suggestion(name, self.0.keys().map(String::as_str)),
        })
    }

    /// Parses `NAME=VALUE` texts as parameters of these queries and of the views that they read.
    ///
    /// # Errors
    /// No query has such a parameter, or its value has another type than the default.
    pub fn parameters(
        &self,
        texts: &[String],
    ) -> Result<HashMap<String, ScalarValue>, MeasureError> {
        let views = Self::views()?;
        let known: Vec<&Parameter> = self
            .iter()
            .chain(views.iter())
            .flat_map(|query| &query.parameters)
            .collect();
        let mut values = HashMap::new();
        for text in texts {
            let wrong = |why: String| MeasureError::Parameter {
                text: text.clone(),
                why,
            };
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| wrong("write NAME=VALUE".into()))?;
            let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
                let names: BTreeSet<&str> = known
                    .iter()
                    .map(|parameter| parameter.name.as_str())
                    .collect();
                let hint = suggestion(name, names.into_iter());
                return Err(wrong(format!("no such parameter; {hint}")));
            };
            let value = parameter.parse(value).ok_or_else(|| {
                let default = parameter.literal();
                wrong(format!(
                    "give a value of the same type as the default, {default}"
                ))
            })?;
            values.insert(name.to_owned(), value);
        }
        Ok(values)
    }

    /// Returns all families, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &MetricQuery> {
        self.0.values()
    }

    fn insert(&mut self, query: MetricQuery) {
        self.0.insert(query.name.clone(), query);
    }
}

fn is_sql(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sql")
}

/// A setting that a query takes, used in its text as `$name`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name, without the dollar.
    pub name: String,
    /// Its default.
    pub default: ScalarValue,
    /// What it is for.
    pub description: String,
}

impl Parameter {
    /// Returns the default as a SQL literal.
    pub fn literal(&self) -> String {
        match &self.default {
            ScalarValue::Utf8(Some(text)) => format!("'{}'", text.replace('\'', "''")),
            ScalarValue::Float64(Some(value)) => format!("{value:?}"),
            other => other.to_string(),
        }
    }

    /// Parses a value of the default's type; a string needs no quotes.
    fn parse(&self, text: &str) -> Option<ScalarValue> {
        match (&self.default, parse_literal(text)) {
            (ScalarValue::Utf8(_), Some(value @ ScalarValue::Utf8(_))) => Some(value),
            (ScalarValue::Utf8(_), _) => Some(text.into()),
            (ScalarValue::Float64(_), Some(ScalarValue::Int64(Some(value)))) => {
                Some((value as f64).into())
            }
            (default, value) => value.filter(|value| value.data_type() == default.data_type()),
        }
    }
}

/// Reads `true`, `3`, `0.95` or `'text'`.
fn parse_literal(literal: &str) -> Option<ScalarValue> {
    if let Some(text) = literal.strip_prefix('\'') {
        let text = text.strip_suffix('\'')?;
        return Some(text.replace("''", "'").as_str().into());
    }
    let boolean = literal.parse::<bool>().map(ScalarValue::from).ok();
    boolean
        .or_else(|| literal.parse::<i64>().map(ScalarValue::from).ok())
        .or_else(|| literal.parse::<f64>().map(ScalarValue::from).ok())
}

/// A part of the header of a query.
#[derive(Clone, Copy, PartialEq)]
enum Section {
    Description,
    Parameters,
    Columns,
}

impl MetricQuery {
    /// Reads the header: the comment lines before the first line of SQL.
    ///
    /// # Errors
    /// Returns the line that should declare a parameter but does not.
    fn parse(sql: &str) -> Result<Self, String> {
        let mut header = Self::default();
        let mut section = Section::Description;
        let lines = sql.lines().map_while(|line| line.strip_prefix("--"));
        let mut follows_blank = false;
        for line in lines {
            let text = line.trim();
            let is_paragraph = follows_blank && !text.is_empty() && !line.starts_with("  ");
            follows_blank = text.is_empty();
            let title = text
                .split_once(':')
                .map(|(title, rest)| (title, rest.trim()));
            match title {
                Some(("Parameters", "" | "none.")) => section = Section::Parameters,
                Some(("Columns", "")) => section = Section::Columns,
                _ if text.is_empty() && section != Section::Description => {}
                _ if is_paragraph && section != Section::Description => {
                    // A paragraph after the lists belongs to the description.
                    section = Section::Description;
                    let end = header.description.trim_end().len();
                    header.description.truncate(end);
                    header.description.push_str("\n\n");
                    header.take(section, line)?;
                }
                _ => header.take(section, line)?,
            }
        }
        header.description = header.description.trim().to_owned();
        Ok(header)
    }

    fn take(&mut self, section: Section, line: &str) -> Result<(), String> {
        let text = line.trim();
        match section {
            Section::Description => {
                self.description.push_str(text);
                self.description.push('\n');
            }
            // A line that is indented further than an entry continues the entry before it.
            Section::Parameters if is_continued(line) => {
                if let Some(last) = self.parameters.last_mut() {
                    continue_with(&mut last.description, text);
                }
            }
            Section::Parameters => {
                let parameter = parameter(text).ok_or_else(|| text.to_owned())?;
                self.parameters.push(parameter);
            }
            Section::Columns if is_continued(line) => {
                if let Some((_, description)) = self.columns.last_mut() {
                    continue_with(description, text);
                }
            }
            Section::Columns => {
                let (names, description) = text.split_once("  ").unwrap_or((text, ""));
                self.columns
                    .push((names.to_owned(), description.trim().to_owned()));
            }
        }
        Ok(())
    }
}

fn is_continued(line: &str) -> bool {
    line.starts_with("      ")
}

fn continue_with(description: &mut String, text: &str) {
    description.push(' ');
    description.push_str(text);
}

fn parameter(text: &str) -> Option<Parameter> {
    let (name, rest) = text.split_once('=')?;
    let (literal, description) = rest.trim().split_once("  ").unwrap_or((rest.trim(), ""));
    let name = name.trim();
    let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    named.then_some(Parameter {
        name: name.to_owned(),
        default: parse_literal(literal.trim())?,
        description: description.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_query_says_what_it_answers_and_gives() {
        let queries = MetricQueries::embedded().unwrap();
        let views = MetricQueries::views().unwrap();
        assert!(queries.iter().count() >= 2);
        for query in queries.iter().chain(views.iter()) {
            assert!(!query.description.is_empty(), "{}", query.name);
            assert!(!query.columns.is_empty(), "{}", query.name);
        }
        let scores = views.get("scores").unwrap();
        assert_eq!(scores.parameters[0].name, "split_agents");
    }

    #[test]
    fn a_folder_adds_and_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, sql: &str| fs::write(folder.path().join(name), sql).unwrap();
        write("agent_statistics.sql", "SELECT 1 AS one");
        write("mine.sql", "-- Mine.\nSELECT 2 AS two");
        write("README.md", "not a query");
        let before = MetricQueries::embedded().unwrap();
        let after = before.clone().with_directory(folder.path()).unwrap();
        assert_eq!(after.iter().count(), before.iter().count() + 1);
        assert_eq!(
            after.get("agent_statistics").unwrap().sql,
            "SELECT 1 AS one"
        );
        assert_eq!(after.get("mine").unwrap().description, "Mine.");
        assert!(matches!(
            after.get("README"),
            Err(MeasureError::Unknown { .. })
        ));
    }

    #[test]
    fn a_file_that_cannot_name_a_table_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a b.sql"), "SELECT 1").unwrap();
        let error = MetricQueries::default().with_directory(folder.path());
        assert!(matches!(error, Err(MeasureError::Name { .. })));
    }

    #[test]
    fn a_header_says_what_it_answers_its_parameters_and_its_columns() {
        let sql = "-- What it costs.\n-- In dollars.\n--\n-- Parameters:\n--   price = 0.5   of a token,\n\
                   --                 or so\n-- Columns:\n--   agent_name   the agent\n--   cost\nSELECT 1";
        let header = MetricQuery::parse(sql).unwrap();
        assert_eq!(header.description, "What it costs.\nIn dollars.");
        assert_eq!(
            header.parameters,
            [Parameter {
                name: "price".into(),
                default: 0.5.into(),
                description: "of a token, or so".into()
            }]
        );
        let columns = [("agent_name", "the agent"), ("cost", "")];
        assert_eq!(header.columns, columns.map(|(a, b)| (a.into(), b.into())));
    }

    #[test]
    fn a_paragraph_after_the_columns_is_none_of_them() {
        let sql = "-- What it costs.\n--\n-- Columns:\n--   cost   all of it,\n--          or so\n--\n--   count\n\
                   --\n-- It holds little.\n-- Really.\nSELECT 1";
        let header = MetricQuery::parse(sql).unwrap();
        assert_eq!(header.columns[0].1, "all of it, or so");
        assert_eq!(header.columns[1], ("count".into(), String::new()));
        assert_eq!(header.columns.len(), 2);
        assert_eq!(
            header.description,
            "What it costs.\n\nIt holds little.\nReally."
        );
    }

    #[test]
    fn a_query_needs_no_header() {
        assert_eq!(
            MetricQuery::parse("SELECT 1 -- Columns:"),
            Ok(MetricQuery::default())
        );
    }

    #[test]
    fn a_parameter_without_a_value_is_named() {
        let sql = "-- Parameters:\n--   price\nSELECT 1";
        assert_eq!(MetricQuery::parse(sql), Err("price".to_owned()));
    }

    #[test]
    fn a_literal_is_read_as_it_is_written() {
        for literal in ["true", "-3", "0.95", "'it''s'", "''"] {
            let parameter = Parameter {
                name: String::new(),
                default: parse_literal(literal).unwrap(),
                description: String::new(),
            };
            assert_eq!(parameter.literal(), literal);
        }
        for literal in ["yes", "'open", ""] {
            assert_eq!(parse_literal(literal), None, "{literal}");
        }
    }
}
