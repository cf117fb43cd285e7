//! The errors of the query engine in plain words: without its layers, and without the names that only it uses.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;

use crate::config::{similar, suggestion};

/// Returns what an error of the engine means for whoever wrote the query.
pub(crate) fn plain(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => plain(inner),
        DataFusionError::Shared(inner) => plain(inner),
        DataFusionError::Collection(errors) => {
            let errors: Vec<String> = errors.iter().map(plain).collect();
            errors.join("\n")
        }
        DataFusionError::External(inner) => inner.to_string(),
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::TokenizerError(text) | ParserError::ParserError(text) => syntax(text),
            ParserError::RecursionLimitExceeded => "the SQL is nested too deeply".to_owned(),
        },
        DataFusionError::SchemaError(error, _) => of_schema(error),
        DataFusionError::Plan(text) => planned(text),
        DataFusionError::Execution(text)
        | DataFusionError::NotImplemented(text)
        | DataFusionError::Configuration(text) => text.clone(),
        DataFusionError::ArrowError(error, _) => without_kind(&error.to_string()).to_owned(),
        other => other.strip_backtrace(),
    }
}

/// Returns the table that a query names and that does not exist, as it is spelled there.
pub(crate) fn missing_table(error: &DataFusionError) -> Option<&str> {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            missing_table(inner)
        }
        DataFusionError::Plan(text) => table_of(text),
        _ => None,
    }
}

fn table_of(text: &str) -> Option<&str> {
    let name = text.strip_prefix("table '")?.strip_suffix("' not found")?;
    let name = name.strip_prefix("datafusion.").unwrap_or(name);
    Some(name.strip_prefix("public.").unwrap_or(name))
}

/// `Expected: an expression, found: EOF at Line: 1, Column: 9`
fn syntax(text: &str) -> String {
    let text = text
        .replace(" at Line: ", " (line ")
        .replace(", Column: ", ", column ");
    let text = text
        .replace("Expected: ", "expected ")
        .replace("found: ", "found ");
    let text = text.replace("found EOF", "found its end");
    let end = if text.contains(" (line ") { ")" } else { "" };
    format!("the SQL cannot be read: {text}{end}")
}

fn of_schema(error: &SchemaError) -> String {
    match error {
        SchemaError::FieldNotFound {
            field,
            valid_fields,
        } => {
            let has_qualifier = field.relation.is_some();
            let known = valid_fields.iter().map(|field| {
                if has_qualifier {
                    field.flat_name()
                } else {
                    field.name.clone()
                }
            });
            let known: Vec<String> = known.collect();
            let name = match &field.relation {
                Some(table) => format!("{table}.{}", field.name),
                None => field.name.clone(),
            };
            if known.is_empty() {
                return format!("there is no column '{name}': the query reads no table");
            }
            let hint = suggestion(&name, known.iter().map(String::as_str));
            format!("there is no column '{name}'; {hint}")
        }
        SchemaError::AmbiguousReference { field } => {
            let name = &field.name;
            format!(
                "the column '{name}' is in several tables; write TABLE.{name}, such as rollouts.{name}"
            )
        }
        other => other.to_string(),
    }
}

fn planned(text: &str) -> String {
    if let Some(name) = table_of(text) {
        return format!("there is no table '{name}'");
    }
    let function = text.strip_prefix("table function '");
    if let Some(name) = function.and_then(|text| text.strip_suffix("' not found")) {
        return format!("there is no table function '{name}'");
    }
    if text.starts_with("No SQL statements") {
        return "there is no SQL statement".to_owned();
    }
    if text.starts_with("DDL not supported") || text.starts_with("DML not supported") {
        return "the tables of a run cannot be changed: only queries are supported".to_owned();
    }
    if let Some(rest) = text.strip_prefix("Invalid function '") {
        let (name, rest) = rest.split_once('\'').unwrap_or((rest, ""));
        let near = rest.split('\'').nth(1);
        let hint = match similar(name, near) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "\\df lists them at the prompt".to_owned(),
        };
        return format!("there is no function '{name}'; {hint}");
    }
    if let Some((_, rest)) =
        text.split_once("No function matches the given name and argument types '")
    {
        let (call, rest) = rest.split_once('\'').unwrap_or((rest, ""));
        let forms = rest.split_once("Candidate functions:");
        let forms = forms.map(|(_, forms)| forms.split('\n').map(str::trim));
        let forms: Vec<&str> = forms
            .into_iter()
            .flatten()
            .filter(|form| !form.is_empty())
            .collect();
        return format!(
            "there is no function {call}; there are {}",
            forms.join(", ")
        );
    }
    if let Some((_, rest)) = text.split_once("While expanding wildcard, ") {
        return rest.to_owned();
    }
    if text.contains("'json_as_text' at position 2") && text.contains("got Boolean") {
        return "`->>` binds weaker than a comparison: put it into brackets, as in (request->>'field') = 'value'"
            .to_owned();
    }
    text.replace("datafusion.public.", "")
}

/// Removes what kind of error it is: `Cast error: Cannot cast ...`.
fn without_kind(text: &str) -> &str {
    match text.split_once(": ") {
        Some((kind, rest)) if kind.ends_with(" error") => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::SessionContext;

    #[tokio::test]
    async fn errors_say_what_is_wrong_and_nothing_of_the_engine() {
        let session = SessionContext::new();
        let table = session
            .sql("select 1 as task_index, 2.0 as reward")
            .await
            .unwrap();
        for name in ["rollouts", "tasks"] {
            let table = table.clone().into_view();
            session.register_table(name, table).unwrap();
        }
        for (sql, words) in [
            (
                "selec 1",
                "the SQL cannot be read: expected an SQL statement, found selec (line 1, column 1)",
            ),
            (
                "select * from rollouts where",
                "the SQL cannot be read: expected an expression, found its end",
            ),
            (
                "select 'abc",
                "the SQL cannot be read: Unterminated string literal (line 1, column 8)",
            ),
            (
                "select rewrd from rollouts",
                "there is no column 'rewrd'; did you mean `reward`?",
            ),
            (
                "select r.rewrd from rollouts r",
                "there is no column 'r.rewrd'; did you mean `r.reward`?",
            ),
            (
                "select 'x' = y",
                "there is no column 'y': the query reads no table",
            ),
            (
                "select colour from rollouts",
                "there is no column 'colour'; there are task_index, reward",
            ),
            (
                "select task_index from rollouts join tasks on true",
                "the column 'task_index' is in several tables; write TABLE.task_index, such as rollouts.task_index",
            ),
            ("select * from rolouts", "there is no table 'rolouts'"),
            ("select * from a.rolouts", "there is no table 'a.rolouts'"),
            (
                "select avgg(reward) from rollouts",
                "there is no function 'avgg'; did you mean `avg`?",
            ),
            (
                "select qqqqqq(reward) from rollouts",
                "there is no function 'qqqqqq'; \\df lists them at the prompt",
            ),
            (
                "select avg(reward, 2) from rollouts",
                "there is no function avg(Float64, Int64); there are avg(Decimal), avg(Duration), avg(Float64)",
            ),
            ("", "there is no SQL statement"),
        ] {
            let error = session.sql(sql).await.unwrap_err();
            assert_eq!(plain(&error), words, "{sql}");
        }
        let error = session.sql("select 1/0").await.unwrap().collect().await;
        assert_eq!(plain(&error.unwrap_err()), "Divide by zero error");
    }
}
