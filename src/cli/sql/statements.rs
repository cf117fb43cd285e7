//! Splits input into statements and commands: [`Statements`] takes lines and returns [`Item`]s.

use std::collections::HashSet;

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{
    Location, Token, TokenWithSpan, Tokenizer, TokenizerError,
};

/// A statement or a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Item {
    /// SQL.
    Statement(Statement),
    /// A line such as `\d rollouts`, without its first character.
    Command(String),
}

/// SQL, and its position in the input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::cli) struct Statement {
    /// The SQL, without the `;` at its end.
    pub text: String,
    /// A line end for each line before it, and a space for each character before it on its first line.
    margin: String,
}

impl Statement {
    /// Returns the number of lines before it.
    pub(in crate::cli) fn line(&self) -> usize {
        self.margin.matches('\n').count()
    }

    /// Returns the text at its position, so that an error names lines and columns of the whole input.
    pub(in crate::cli) fn in_place(&self) -> String {
        let Self { text, margin } = self;
        format!("{margin}{text}")
    }
}

/// Gathers lines until a statement is complete.
#[derive(Debug, Default)]
pub(in crate::cli) struct Statements {
    buffer: String,
    /// The margin of the buffer.
    margin: String,
}

impl Statements {
    /// Splits a whole text.
    pub(in crate::cli) fn all(text: &str) -> Vec<Item> {
        let mut statements = Self::default();
        let lines = text.lines();
        let mut items: Vec<Item> = lines.flat_map(|line| statements.push(line)).collect();
        items.extend(statements.finish());
        items
    }

    /// Whether the text needs no more lines.
    pub(super) fn is_complete(text: &str) -> bool {
        let mut statements = Self::default();
        for line in text.lines() {
            statements.push(line);
        }
        statements.is_blank() || {
            // A text that no line can mend is complete too, so that its error is shown.
            let failed = tokens(&statements.buffer).1;
            failed.is_some_and(|error| !is_open(&error)) || is_leaving(&statements.buffer)
        }
    }

    /// Adds a line, without its end, and returns the items that it completes.
    pub(in crate::cli) fn push(&mut self, line: &str) -> Vec<Item> {
        if self.starts_with_comment() && self.is_blank() {
            self.drop_to(self.buffer.len());
        }
        self.buffer.push_str(line);
        self.buffer.push('\n');
        let mut items = Vec::new();
        let is_command_line = command(line).is_some() && self.buffer.len() == line.len() + 1;
        if is_command_line || line.contains(';') {
            self.take_complete(&mut items);
        } else if self.buffer.trim().is_empty() {
            self.drop_to(self.buffer.len());
        }
        items
    }

    /// Returns what is left at the end of the input: the last statement needs no `;`.
    pub(in crate::cli) fn finish(mut self) -> Option<Item> {
        if self.is_blank() {
            return None;
        }
        self.drop_to(self.buffer.len() - self.buffer.trim_start().len());
        let end = self.buffer.trim_end().len();
        Some(Item::Statement(self.statement(0, end)))
    }

    fn take_complete(&mut self, items: &mut Vec<Item>) {
        let mut taken = 0;
        for end in ends(&self.buffer) {
            let rest = self.buffer.get(taken..).unwrap_or_default();
            if command(rest.trim_start()).is_some() {
                break;
            }
            let is_blank = self.buffer.get(taken..end).is_none_or(tokens_are_blank);
            if !is_blank {
                let space = rest.len() - rest.trim_start().len();
                items.push(Item::Statement(self.statement(taken + space, end)));
            }
            taken = end + 1;
        }
        self.drop_to(taken);
        if let Some(text) = command(self.buffer.trim_start()) {
            items.push(Item::Command(text.trim().to_owned()));
            self.drop_to(self.buffer.len());
        } else if self.buffer.trim().is_empty() {
            self.drop_to(self.buffer.len());
        }
    }

    fn statement(&self, start: usize, end: usize) -> Statement {
        let before = self.buffer.get(..start).unwrap_or_default();
        Statement {
            text: self.buffer.get(start..end).unwrap_or_default().to_owned(),
            margin: after(self.margin.clone(), before),
        }
    }

    fn drop_to(&mut self, end: usize) {
        let dropped: String = self.buffer.drain(..end).collect();
        self.margin = after(std::mem::take(&mut self.margin), &dropped);
    }

    fn starts_with_comment(&self) -> bool {
        let text = self.buffer.trim_start();
        text.starts_with("--") || text.starts_with("/*")
    }

    fn is_blank(&self) -> bool {
        tokens_are_blank(&self.buffer)
    }
}

/// Returns the command on a line, without its first character: `\` as in psql, or `.` as in sqlite
/// and DuckDB.
fn command(line: &str) -> Option<&str> {
    line.strip_prefix(['\\', '.'])
}

/// Whether a text is `exit` or `quit`, which other shells accept without a `\` or a `;`.
pub(super) fn is_leaving(text: &str) -> bool {
    ["exit", "quit"].contains(&text.trim())
}

/// Returns the tokens of a text up to the first error, and that error.
pub(super) fn tokens(text: &str) -> (Vec<TokenWithSpan>, Option<TokenizerError>) {
    let mut tokens = Vec::new();
    let dialect = GenericDialect {};
    let read = Tokenizer::new(&dialect, text).tokenize_with_location_into_buf(&mut tokens);
    (tokens, read.err())
}

/// Whether a text ends within something that a later line can close: a string, a name or a comment.
pub(super) fn is_open(error: &TokenizerError) -> bool {
    ["Unterminated", "before EOF", "Unexpected EOF"]
        .iter()
        .any(|sign| error.message.contains(sign))
}

fn tokens_are_blank(text: &str) -> bool {
    let (tokens, failed) = tokens(text);
    let is_space = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    failed.is_none() && tokens.iter().all(is_space)
}

/// Returns the byte offset of each `;` between statements.
fn ends(text: &str) -> Vec<usize> {
    let ends = tokens(text).0.into_iter();
    let ends = ends.filter(|token| token.token == Token::SemiColon);
    let ends: HashSet<Location> = ends.map(|token| token.span.start).collect();
    let mut place = Location { line: 1, column: 0 };
    let is_end = |(_, character): &(usize, char)| {
        place.column += 1;
        let is_end = ends.contains(&place);
        if *character == '\n' {
            place = Location {
                line: place.line + 1,
                column: 0,
            };
        }
        is_end
    };
    let characters = text.char_indices().filter(is_end);
    characters.map(|(offset, _)| offset).collect()
}

/// Returns the margin after a text, given the margin before it.
fn after(mut margin: String, text: &str) -> String {
    for character in text.chars() {
        if character == '\n' {
            margin.truncate(margin.trim_end_matches(' ').len());
            margin.push('\n');
        } else {
            margin.push(' ');
        }
    }
    margin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        let shown = |item: Item| match item {
            Item::Statement(statement) => statement.text,
            Item::Command(text) => format!("\\{text}"),
        };
        Statements::all(text).into_iter().map(shown).collect()
    }

    #[test]
    fn a_semicolon_ends_a_statement_but_not_in_quotes_and_comments() {
        assert_eq!(split("select 1; select 2"), ["select 1", "select 2"]);
        for text in [
            "select 'a;b', \"c;d\", 'it''s;'",
            "select 1 -- no; end\n+ 1",
            "select /* ; /* ; */ ; */ 1",
            "select $$a;b$$",
            "select 'ä;\n;' as \"ö\"",
        ] {
            assert_eq!(split(&format!("{text};\nselect 2;")), [text, "select 2"]);
        }
        assert_eq!(split(";; ; -- nothing\n;\n/* ; */\n"), [""; 0]);
    }

    #[test]
    fn commands_take_a_line_where_a_statement_could_begin() {
        let text = "-- a look\n\\d rollouts\n.timing\nselect 1; \\format csv\nselect\n.5;\n\\q";
        assert_eq!(
            split(text),
            [
                "\\d rollouts",
                "\\timing",
                "select 1",
                "\\format csv",
                "select\n.5",
                "\\q"
            ]
        );
        assert_eq!(split("\\d it's;\nselect 1"), ["\\d it's;", "select 1"]);
    }

    #[test]
    fn lines_are_asked_for_until_nothing_is_open() {
        for text in [
            "",
            "-- only a comment",
            "select 1;",
            "select 1; -- done",
            "select ';\n';",
            "\\d",
            ".timing",
            "quit",
            "select 1; \\d",
        ] {
            assert!(Statements::is_complete(text), "{text}");
        }
        for text in [
            "select",
            "select 1 -- ;",
            "select ';",
            "select \"a;",
            "select $$;",
            "/* ;",
            "select 1; select 2",
        ] {
            assert!(!Statements::is_complete(text), "{text}");
        }
    }

    #[test]
    fn a_statement_keeps_its_place() {
        let mut statements = Statements::default();
        let mut items = Vec::new();
        for line in ["-- one", "select 1; select", "  2;", "", " select 3"] {
            items.extend(statements.push(line));
        }
        items.extend(statements.finish());
        let places: Vec<String> = items
            .into_iter()
            .map(|item| match item {
                Item::Statement(statement) => statement.in_place(),
                Item::Command(text) => text,
            })
            .collect();
        assert_eq!(
            places,
            ["\nselect 1", "\n          select\n  2", "\n\n\n\n select 3"]
        );
    }
}
