//! The comment at the head of a metric query: what it answers, its parameters, its columns.

use super::parameter::{Parameter, ParameterValue};

/// What the header of a query says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Header {
    pub(super) description: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) columns: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Section {
    Description,
    Parameters,
    Columns,
}

impl Header {
    /// Reads the comment lines before the first line of SQL.
    ///
    /// # Errors
    /// The line that should be a parameter and is none.
    pub(super) fn parse(sql: &str) -> Result<Self, String> {
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
                    // What is said after the lists is no entry of them.
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
            // What is further in than an entry goes on with the one before.
            Section::Parameters if is_continued(line) => {
                if let Some(last) = self.parameters.last_mut() {
                    go_on(&mut last.description, text);
                }
            }
            Section::Parameters => {
                let parameter = parameter(text).ok_or_else(|| text.to_owned())?;
                self.parameters.push(parameter);
            }
            Section::Columns if is_continued(line) => {
                if let Some((_, description)) = self.columns.last_mut() {
                    go_on(description, text);
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

fn go_on(description: &mut String, text: &str) {
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
        default: ParameterValue::parse(literal.trim())?,
        description: description.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_what_it_answers_its_parameters_and_its_columns() {
        let sql = "-- What it costs.\n-- In dollars.\n--\n-- Parameters:\n--   price = 0.5   of a token,\n\
                   --                 or so\n-- Columns:\n--   agent_name   the agent\n--   cost\nSELECT 1";
        let header = Header::parse(sql).unwrap();
        assert_eq!(header.description, "What it costs.\nIn dollars.");
        assert_eq!(
            header.parameters,
            [Parameter {
                name: "price".into(),
                default: ParameterValue::Float(0.5),
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
        let header = Header::parse(sql).unwrap();
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
        assert_eq!(Header::parse("SELECT 1 -- Columns:"), Ok(Header::default()));
    }

    #[test]
    fn a_parameter_without_a_value_is_named() {
        let sql = "-- Parameters:\n--   price\nSELECT 1";
        assert_eq!(Header::parse(sql), Err("price".to_owned()));
    }
}
