use std::path::Path;

use crate::cli::sql::{Item, Statement, Statements};
use crate::error::Error;

/// A query whose rows are violations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gate {
    /// What people know it by.
    pub name: String,
    /// The file that it is in, and the query at its place there.
    pub sql: String,
}

/// Reads what `--gate` was given: a file that is there, or else SQL.
///
/// # Errors
/// The file can't be read, or there is no query in it.
pub(super) fn gates(given: &str) -> Result<Vec<Gate>, Error> {
    let path = Path::new(given);
    let text = match path.is_file() {
        true => std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("--gate {given}: cannot be read"), error))?,
        false if is_file_name(given) => {
            return Err(Error::Usage(format!(
                "--gate {given}: there is no such file"
            )));
        }
        false => given.to_owned(),
    };
    let gates = of_text(&text).map_err(|error| Error::usage(format!("--gate {given}"), error))?;
    match gates.is_empty() {
        true => Err(Error::Usage(format!("--gate {given}: there is no query"))),
        false => Ok(gates),
    }
}

/// Whether a text can hardly be meant as SQL, which has spaces.
fn is_file_name(text: &str) -> bool {
    !text.contains(char::is_whitespace)
}

fn of_text(text: &str) -> Result<Vec<Gate>, String> {
    let mut statements = Statements::default();
    let mut items: Vec<Item> = text
        .lines()
        .flat_map(|line| statements.push(line))
        .collect();
    items.extend(statements.finish());
    let lines: Vec<&str> = text.lines().collect();
    let gate = |item| match item {
        Item::Statement(statement) => Ok(Gate {
            name: name(&statement, &lines),
            sql: statement.in_place(),
        }),
        Item::Command(command) => Err(format!(
            "'\\{command}' is a command of `rollstream sql`, a gate is a query"
        )),
    };
    items.into_iter().map(gate).collect()
}

/// The first line of the comment before a query, or else of the query.
fn name(statement: &Statement, lines: &[&str]) -> String {
    let before = lines.get(..statement.line()).unwrap_or_default();
    let is_alone = lines
        .get(statement.line())
        .and_then(|line| line.split(&first_line(&statement.text)).next())
        .is_some_and(|space| space.trim().is_empty());
    let comment = before
        .iter()
        .rev()
        .map(|line| line.trim())
        .skip_while(|line| line.is_empty())
        .map_while(|line| line.strip_prefix("--"))
        .map(|line| line.trim_matches('-').trim())
        .filter(|line| !line.is_empty());
    match comment.last() {
        Some(comment) if is_alone => comment.to_owned(),
        _ => first_line(&statement.text),
    }
}

fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let gates = of_text(text).unwrap();
        gates.into_iter().map(|gate| gate.name).collect()
    }

    #[test]
    fn a_gate_is_called_by_the_comment_before_it_or_its_first_line() {
        let text = "\
-- All of it is there;
-- it was planned so.
SELECT *
FROM coverage
WHERE pending > 0;

------ No zeros ------

SELECT 1; SELECT 2 -- why
  FROM t;
SELECT 3
";
        assert_eq!(
            names(text),
            [
                "All of it is there;",
                "No zeros",
                "SELECT 2 -- why",
                "SELECT 3"
            ]
        );
        assert_eq!(names("SELECT 1;; -- nothing"), ["SELECT 1"]);
        assert_eq!(names("SELECT ';--'"), ["SELECT ';--'"]);
    }

    #[test]
    fn a_gate_keeps_its_place_for_messages() {
        let gates = of_text("SELECT 1;\n SELEC 2").unwrap();
        assert_eq!(gates[1].sql, "\n SELEC 2");
    }

    #[test]
    fn what_is_no_gate_is_refused() {
        for (given, complaint) in [
            ("nowhere/gates.sql", "no such file"),
            ("-- a comment", "there is no query"),
            ("\\d rollouts", "a gate is a query"),
            ("", "no such file"),
        ] {
            let error = gates(given).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
