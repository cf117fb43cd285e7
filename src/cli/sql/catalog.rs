//! Lists the tables and the functions of a session as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, StringArray, UInt64Array};
use arrow::datatypes::DataType;
use datafusion::common::TableReference;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::Documentation;
use datafusion::prelude::SessionContext;

use crate::config::similar;
use crate::error::Error;
use crate::query::{NamedTable, SqlSession, all_tables, table_hint};

/// Lists every table: its name, its kind and the number of its columns. `SHOW TABLES` lacks the last two, and
/// DataFusion's table of all columns fails if a single metric family does.
pub(super) async fn tables(session: &SqlSession) -> Result<DataFrame, Error> {
    let mut tables = all_tables(session.context()).await;
    tables.retain(NamedTable::is_of_runs);
    let kind = |table: &NamedTable| {
        if session.metrics().has(&table.name) {
            "metric"
        } else {
            "view"
        }
    };
    let names: StringArray = tables.iter().map(|table| Some(table.full_name())).collect();
    let kinds: StringArray = tables.iter().map(|table| Some(kind(table))).collect();
    let columns = tables.iter().map(|table| table.columns.as_ref());
    let columns = columns.map(|columns| columns.map(|columns| columns.len() as u64));
    let columns: UInt64Array = columns.collect();
    table([
        ("name", Arc::new(names)),
        ("kind", Arc::new(kinds)),
        ("columns", Arc::new(columns)),
    ])
}

/// Lists the columns of a table. `name` is spelled as in SQL.
pub(super) async fn columns(session: &SqlSession, name: &str) -> Result<DataFrame, Error> {
    let context = session.context();
    let reference = TableReference::parse_str(name);
    if !context.table_exist(reference.clone())? {
        let hint = table_hint(context, name).await;
        return Err(Error::Usage(format!("there is no table '{name}'{hint}")));
    }
    let schema = context.table_provider(reference).await?.schema();
    let fields = || schema.fields().iter();
    let names: StringArray = fields().map(|field| Some(field.name())).collect();
    let types: StringArray = fields()
        .map(|field| Some(type_name(field.data_type())))
        .collect();
    let nullable: BooleanArray = fields().map(|field| Some(field.is_nullable())).collect();
    table([
        ("column", Arc::new(names)),
        ("type", Arc::new(types)),
        ("nullable", Arc::new(nullable)),
    ])
}

fn table(columns: [(&str, ArrayRef); 3]) -> Result<DataFrame, Error> {
    Ok(DataFrame::from_columns(columns.into())?)
}

/// Describes a type briefly: of a map, only the types of keys and values.
fn type_name(of: &DataType) -> String {
    if let DataType::Map(entries, _) = of
        && let DataType::Struct(fields) = entries.data_type()
    {
        let types = fields.iter().map(|field| type_name(field.data_type()));
        return format!("Map({})", types.collect::<Vec<_>>().join(", "));
    }
    of.to_string()
}

/// A function by one of its names.
#[derive(Debug, Clone)]
struct Function {
    /// The name that its aliases stand for.
    name: String,
    kind: &'static str,
    documentation: Option<Documentation>,
}

/// The result of [`find`].
pub(super) enum Found {
    /// A table of the functions whose names contain what was asked for.
    Listed(DataFrame),
    /// The documentation of one function.
    Explained(String),
}

/// Lists the names of all functions, aliases as well.
pub(super) fn names(context: &SessionContext) -> Vec<String> {
    all(context).into_keys().collect()
}

/// Explains the function `name`, or lists those whose names contain it; without a name, lists all.
pub(super) fn find(context: &SessionContext, name: Option<&str>) -> Result<Found, Error> {
    let all = all(context);
    let Some(name) = name else {
        return listed(&all, "");
    };
    let wanted = name.trim_end_matches(['(', ')']).to_lowercase();
    if let Some(function) = all.get(&wanted) {
        return Ok(Found::Explained(explained(&wanted, function)));
    }
    if all.keys().any(|known| known.contains(&wanted)) {
        return listed(&all, &wanted);
    }
    let hint = match similar(&wanted, all.keys().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "\\df lists them".to_owned(),
    };
    Err(Error::Usage(format!(
        "there is no function '{name}'; {hint}"
    )))
}

fn all(context: &SessionContext) -> BTreeMap<String, Function> {
    let state = context.state();
    let mut all = BTreeMap::new();
    let mut add = |key: &String, name: &str, kind, documentation: Option<&Documentation>| {
        // An aggregate function and a window function of the same name are the same function.
        all.entry(key.clone()).or_insert_with(|| Function {
            name: name.to_owned(),
            kind,
            documentation: documentation.cloned(),
        });
    };
    for (key, function) in state.scalar_functions() {
        add(key, function.name(), "scalar", function.documentation());
    }
    for (key, function) in state.aggregate_functions() {
        add(key, function.name(), "aggregate", function.documentation());
    }
    for (key, function) in state.window_functions() {
        add(key, function.name(), "window", function.documentation());
    }
    for (key, function) in state.table_functions() {
        add(key, function.name(), "table", None);
    }
    all
}

fn listed(all: &BTreeMap<String, Function>, part: &str) -> Result<Found, Error> {
    // Shows an alias only if the function's own name does not contain what was asked for.
    let is_shown = |(key, function): &(&String, &Function)| {
        key.contains(part) && (**key == function.name || !function.name.contains(part))
    };
    let shown = || all.iter().filter(is_shown);
    let answer = |function: &Function| {
        let documentation = function.documentation.as_ref()?;
        Some(first_sentence(&documentation.description))
    };
    let names: StringArray = shown().map(|(key, _)| Some(key)).collect();
    let kinds: StringArray = shown().map(|(_, function)| Some(function.kind)).collect();
    let answers: StringArray = shown().map(|(_, function)| answer(function)).collect();
    Ok(Found::Listed(table([
        ("function", Arc::new(names)),
        ("kind", Arc::new(kinds)),
        ("description", Arc::new(answers)),
    ])?))
}

fn explained(key: &str, function: &Function) -> String {
    let mut text = String::new();
    let kind = function.kind;
    // Writing to a string can't fail.
    let _ = match &function.documentation {
        None => writeln!(text, "{key}: {kind} function without documentation"),
        Some(documentation) => write_documentation(&mut text, kind, documentation),
    };
    if key != function.name {
        let _ = writeln!(text, "\n{key} is another name of {}.", function.name);
    }
    text
}

fn write_documentation(
    text: &mut String,
    kind: &str,
    documentation: &Documentation,
) -> std::fmt::Result {
    writeln!(text, "{}: {kind} function", documentation.syntax_example)?;
    for syntax in documentation.alternative_syntax.iter().flatten() {
        writeln!(text, "{syntax}")?;
    }
    writeln!(text, "\n{}", documentation.description.trim())?;
    if let Some(arguments) = &documentation.arguments {
        writeln!(text, "\nArguments:")?;
        for (name, description) in arguments {
            writeln!(text, "  {name}: {}", description.trim())?;
        }
    }
    if let Some(example) = &documentation.sql_example {
        writeln!(text, "\nExample:")?;
        for line in example.lines().filter(|line| !line.starts_with("```")) {
            writeln!(text, "  {line}")?;
        }
    }
    if let Some(related) = &documentation.related_udfs {
        writeln!(text, "\nSee also: {}", related.join(", "))?;
    }
    Ok(())
}

/// Returns the first sentence of a text, on one line.
pub(in crate::cli) fn first_sentence(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    match text.find(". ") {
        Some(end) => text.get(..=end).unwrap_or(&text).to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> SessionContext {
        SessionContext::new()
    }

    #[test]
    fn a_function_is_explained_by_any_of_its_names() {
        for name in ["avg", "AVG", "mean", "avg()"] {
            let Ok(Found::Explained(text)) = find(&context(), Some(name)) else {
                panic!("{name}");
            };
            assert!(text.starts_with("avg(expression): aggregate"), "{text}");
            assert!(text.contains("\nArguments:\n  expression: "), "{text}");
            assert!(text.contains("\nExample:\n  > SELECT avg("), "{text}");
            assert_eq!(text.contains("mean is another name of avg"), name == "mean");
        }
    }

    #[tokio::test]
    async fn functions_are_listed_by_a_part_of_their_names() {
        let listed = async |part| {
            let Ok(Found::Listed(frame)) = find(&context(), part) else {
                panic!("{part:?}");
            };
            let batches = frame.collect().await.unwrap();
            arrow::util::pretty::pretty_format_batches(&batches)
                .unwrap()
                .to_string()
        };
        let some = listed(Some("regexp_")).await;
        assert!(some.contains("| regexp_match ") && !some.contains("| avg "));
        let all = listed(None).await;
        assert!(all.contains("| avg ") && !all.contains("| mean "));
        assert!(find(&context(), Some("no_such")).is_err());
    }

    #[test]
    fn a_sentence_ends_with_a_full_stop() {
        assert_eq!(first_sentence("One\n two. Three."), "One two.");
        assert_eq!(first_sentence("1.5 of it"), "1.5 of it");
    }
}
