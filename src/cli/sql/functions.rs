//! The functions of a session, and what their documentation says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::record_batch::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::Documentation;
use datafusion::prelude::SessionContext;

use crate::error::Error;

/// A function by one of its names.
#[derive(Debug, Clone)]
struct Function {
    /// The name that its aliases stand for.
    name: String,
    kind: &'static str,
    documentation: Option<Documentation>,
}

/// What is known of a function.
pub(super) enum Found {
    /// Those whose names hold what was asked for, as a table.
    Listed(DataFrame),
    /// One, in words.
    Explained(String),
}

/// Names of all functions, aliases as well.
pub(super) fn names(context: &SessionContext) -> Vec<String> {
    all(context).into_keys().collect()
}

/// Lists the functions, or explains the one that is meant.
///
/// # Errors
/// There is none.
pub(super) fn find(context: &SessionContext, name: Option<&str>) -> Result<Found, Error> {
    let all = all(context);
    let Some(name) = name else {
        return listed(context, &all, "");
    };
    let wanted = name.trim_end_matches(['(', ')']).to_lowercase();
    if let Some(function) = all.get(&wanted) {
        return Ok(Found::Explained(explained(&wanted, function)));
    }
    if all.keys().any(|known| known.contains(&wanted)) {
        return listed(context, &all, &wanted);
    }
    Err(Error::Usage(format!(
        "there is no function '{name}'; \\df lists them"
    )))
}

fn all(context: &SessionContext) -> BTreeMap<String, Function> {
    let state = context.state();
    let mut all = BTreeMap::new();
    let mut add = |key: &String, name: &str, kind, documentation: Option<&Documentation>| {
        // The same name can be that of an aggregate and of a window function, which are then the same.
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

fn listed(
    context: &SessionContext,
    all: &BTreeMap<String, Function>,
    part: &str,
) -> Result<Found, Error> {
    // An alias is shown only where the name that it stands for is not what was asked for.
    let shown: Vec<(&String, &Function)> = all
        .iter()
        .filter(|(key, function)| {
            key.contains(part) && (**key == function.name || !function.name.contains(part))
        })
        .collect();
    let names: StringArray = shown.iter().map(|(key, _)| Some(key.as_str())).collect();
    let kinds: StringArray = shown
        .iter()
        .map(|(_, function)| Some(function.kind))
        .collect();
    let answers: StringArray = shown
        .iter()
        .map(|(_, function)| {
            let documentation = function.documentation.as_ref()?;
            Some(first_sentence(&documentation.description))
        })
        .collect();
    let columns: [(&str, ArrayRef); 3] = [
        ("function", Arc::new(names)),
        ("kind", Arc::new(kinds)),
        ("description", Arc::new(answers)),
    ];
    let batch = RecordBatch::try_from_iter(columns).map_err(Error::defect)?;
    Ok(Found::Listed(context.read_batch(batch)?))
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

/// The beginning of a text, up to the end of its first sentence, on one line.
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
