//! The SQL files that define the metrics: [`MetricQueries`], each a [`MetricQuery`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};

use super::error::MeasureError;
use super::header::Header;
use super::parameter::{Parameter, ParameterValue};

static METRICS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/metrics");
static VIEWS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/queries/views");

/// One metric family: a query that gives a table.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricQuery {
    /// Stem of its file, and name of the table that it gives.
    pub name: String,
    /// Its file; nothing for one that is built in.
    pub path: Option<PathBuf>,
    /// What it answers.
    pub description: String,
    /// What it takes.
    pub parameters: Vec<Parameter>,
    /// The columns that it says it gives, each with what it holds.
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
        let mut query = Self {
            name: name.to_owned(),
            path: is_file.then(|| path.to_owned()),
            description: String::new(),
            parameters: Vec::new(),
            columns: Vec::new(),
            sql,
        };
        let header = Header::parse(&query.sql).map_err(|line| MeasureError::Header {
            name: query.name.clone(),
            origin: query.origin(),
            line,
        })?;
        query.description = header.description;
        query.parameters = header.parameters;
        query.columns = header.columns;
        Ok(query)
    }

    /// Its file, or that it is built in, for messages.
    pub fn origin(&self) -> String {
        match &self.path {
            Some(path) => path.display().to_string(),
            None => "built in".to_owned(),
        }
    }
}

/// Metric families by name.
#[derive(Debug, Clone, Default)]
pub struct MetricQueries(BTreeMap<String, MetricQuery>);

impl MetricQueries {
    /// Those that are part of the program.
    ///
    /// # Errors
    /// One has a header that is not understood, which would be a defect.
    pub fn embedded() -> Result<Self, MeasureError> {
        Self::of(&METRICS)
    }

    /// The views that the metrics are written over.
    ///
    /// # Errors
    /// One has a header that is not understood, which would be a defect.
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

    /// Those that are part of the program, and those of a folder where one is given.
    ///
    /// # Errors
    /// The folder or a file cannot be read, or a file's name or header is not understood.
    pub fn load(directory: Option<&Path>) -> Result<Self, MeasureError> {
        let queries = Self::embedded()?;
        match directory {
            Some(directory) => queries.with_directory(directory),
            None => Ok(queries),
        }
    }

    /// Adds the `.sql` files of a folder; one with the name of a family that is there replaces it.
    ///
    /// # Errors
    /// The folder or a file cannot be read, or a file's name or header is not understood.
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

    /// Those of the given names.
    ///
    /// # Errors
    /// There is no family of one of the names.
    pub fn only<S: AsRef<str>>(&self, names: &[S]) -> Result<Self, MeasureError> {
        let mut queries = Self::default();
        for name in names {
            queries.insert(self.get(name.as_ref())?.clone());
        }
        Ok(queries)
    }

    /// The family of a name.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &str) -> Result<&MetricQuery, MeasureError> {
        let query = self.0.get(name);
        query.ok_or_else(|| MeasureError::Unknown(name.to_owned()))
    }

    /// What `NAME=VALUE` texts say of the parameters of these queries, and of the views that they read.
    ///
    /// # Errors
    /// No query has such a parameter, or the value is of another type than its default.
    pub fn parameters(
        &self,
        texts: &[String],
    ) -> Result<HashMap<String, ParameterValue>, MeasureError> {
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
                let names: Vec<&str> = names.into_iter().collect();
                return Err(wrong(format!("there are {}", names.join(", "))));
            };
            let value = parameter.default.same_type(value).ok_or_else(|| {
                wrong(format!(
                    "give a value like its default, {}",
                    parameter.default
                ))
            })?;
            values.insert(name.to_owned(), value);
        }
        Ok(values)
    }

    /// All, by name.
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
        assert!(matches!(after.get("README"), Err(MeasureError::Unknown(_))));
    }

    #[test]
    fn a_file_that_cannot_name_a_table_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a b.sql"), "SELECT 1").unwrap();
        let error = MetricQueries::default().with_directory(folder.path());
        assert!(matches!(error, Err(MeasureError::Name { .. })));
    }
}
