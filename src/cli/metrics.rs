//! `rollstream metrics`.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use datafusion::common::ScalarValue;
use serde_json::{Value, json};

use super::sql::first_sentence;
use crate::error::Error;
use crate::measure::{MetricQueries, MetricQuery, Parameter};

const EXAMPLES: &str = "\
Examples:
  rollstream metrics
  rollstream metrics task_statistics --sql
  rollstream metrics --queries my_metrics --json | jq -r '.[].name'";

/// The options of `metrics`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MetricsArgs {
    /// The family to show [default: list all families]
    pub name: Option<String>,
    /// Directory of .sql files that replace or add metrics
    #[arg(long, value_name = "DIR")]
    pub queries: Option<PathBuf>,
    /// Show the SQL as well
    #[arg(long)]
    pub sql: bool,
    /// Show JSON for programs: an array of all families, or an object for one
    #[arg(long)]
    pub json: bool,
}

/// `rollstream metrics`: describes the metric families.
pub(super) fn render(args: &MetricsArgs) -> Result<String, Error> {
    let queries = MetricQueries::load(args.queries.as_deref())?;
    match &args.name {
        Some(name) => {
            let query = queries.get(name)?;
            if args.json {
                text(&as_json(query, args.sql))
            } else {
                Ok(whole(query, args.sql))
            }
        }
        None if args.json => {
            let all = queries.iter().map(|query| as_json(query, args.sql));
            text(&all.collect())
        }
        None => {
            let all: Vec<String> = queries.iter().map(|query| brief(query, args.sql)).collect();
            Ok(all.join("\n"))
        }
    }
}

fn text(value: &Value) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(value).map_err(Error::defect)?;
    Ok(text + "\n")
}

/// Formats a family in a few lines, one for each part of its header.
fn brief(query: &MetricQuery, sql: bool) -> String {
    let mut lines = vec![title(query)];
    let answer = first_sentence(&query.description);
    let parameters: Vec<String> = query.parameters.iter().map(setting).collect();
    let columns = query.columns.iter().map(|(name, _)| name.as_str());
    let columns: Vec<&str> = columns.collect();
    for (label, value) in [
        ("", answer),
        ("parameters: ", parameters.join(", ")),
        ("columns: ", columns.join(", ")),
    ] {
        if !value.is_empty() {
            lines.push(format!("  {label}{value}"));
        }
    }
    let mut text = lines.join("\n") + "\n";
    if sql {
        let _ = write!(text, "\n{}\n", query.sql.trim_end());
    }
    text
}

/// Formats the whole header of a family.
fn whole(query: &MetricQuery, sql: bool) -> String {
    let mut text = title(query) + "\n";
    if !query.description.is_empty() {
        let _ = write!(text, "\n{}\n", query.description);
    }
    let mut section = |head: &str, rows: Vec<(String, &str)>| {
        let width = rows.iter().map(|(name, _)| name.chars().count()).max();
        let Some(width) = width else { return };
        // Writing to a string can't fail.
        let _ = writeln!(text, "\n{head}:");
        for (name, description) in rows {
            let line = format!("  {name:width$}   {description}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
    };
    let parameters = query.parameters.iter();
    let parameters = parameters.map(|parameter| (setting(parameter), &*parameter.description));
    let columns = query.columns.iter();
    let columns = columns.map(|(name, description)| (name.clone(), &**description));
    section("Parameters", parameters.collect());
    section("Columns", columns.collect());
    if sql {
        let _ = write!(text, "\n{}\n", query.sql.trim_end());
    }
    text
}

fn title(query: &MetricQuery) -> String {
    match &query.path {
        Some(path) => format!("{} ({})", query.name, path.display()),
        None => query.name.clone(),
    }
}

fn setting(parameter: &Parameter) -> String {
    format!("{} = {}", parameter.name, parameter.literal())
}

fn as_json(query: &MetricQuery, sql: bool) -> Value {
    let parameters = query.parameters.iter().map(|parameter| {
        json!({
            "name": parameter.name,
            "default": as_value(&parameter.default),
            "description": parameter.description,
        })
    });
    let columns = query
        .columns
        .iter()
        .map(|(name, description)| json!({"name": name, "description": description}));
    let mut value = json!({
        "name": query.name,
        "path": query.path.as_ref().map(|path| path.display().to_string()),
        "description": query.description,
        "parameters": parameters.collect::<Vec<Value>>(),
        "columns": columns.collect::<Vec<Value>>(),
    });
    if sql && let Some(fields) = value.as_object_mut() {
        fields.insert("sql".to_owned(), query.sql.clone().into());
    }
    value
}

fn as_value(value: &ScalarValue) -> Value {
    match value {
        ScalarValue::Boolean(value) => json!(value),
        ScalarValue::Int64(value) => json!(value),
        ScalarValue::Float64(value) => json!(value),
        other => json!(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(sql: &str) -> MetricQuery {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cost.sql"), sql).unwrap();
        let queries = MetricQueries::default().with_directory(folder.path());
        MetricQuery {
            path: None,
            ..queries.unwrap().get("cost").unwrap().clone()
        }
    }

    const COST: &str = "-- What it costs. In dollars.\n--\n-- Parameters:\n--   price = 0.5   of a token\n\
                        -- Columns:\n--   agent_name   the agent\n--   cost\nSELECT 1\n";

    #[test]
    fn a_family_is_shown_in_brief_and_whole() {
        assert_eq!(
            brief(&query(COST), false),
            "cost\n  What it costs.\n  parameters: price = 0.5\n  columns: agent_name, cost\n"
        );
        let shown = whole(&query(COST), false);
        assert_eq!(
            shown,
            "cost\n\nWhat it costs. In dollars.\n\nParameters:\n  price = 0.5   of a token\n\n\
             Columns:\n  agent_name   the agent\n  cost\n"
        );
        assert_eq!(whole(&query(COST), true), format!("{shown}\n{COST}"));
    }

    #[test]
    fn a_family_that_says_nothing_of_itself_is_shown_as_well() {
        let silent = query("SELECT 1");
        assert_eq!(brief(&silent, false), "cost\n");
        assert_eq!(whole(&silent, true), "cost\n\nSELECT 1\n");
        assert_eq!(as_json(&silent, false)["columns"], json!([]));
    }
}
