//! Completes the word at the cursor.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

use super::command::{NAMES, formats};
use super::statements::{is_open, tokens};
use crate::cli::runs::is_identifier;
use crate::show::Format;

/// SQL keywords that are often typed.
const KEYWORDS: &str = "ALL AND AS ASC BETWEEN BY CASE CAST CROSS DESC DESCRIBE DISTINCT ELSE END EXCEPT EXISTS EXPLAIN \
    FALSE FILTER FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LEFT LIKE LIMIT NOT \
    NULL NULLS OFFSET ON OR ORDER OUTER OVER PARTITION RIGHT ROWS SELECT SET SHOW TABLES THEN TRUE UNION \
    USING VALUES WHEN WHERE WITH";

/// The names that can be completed, spelled as in SQL.
#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    /// Columns by table; tables of a schema are `schema.table`.
    tables: BTreeMap<String, Vec<String>>,
    functions: BTreeSet<String>,
}

impl Vocabulary {
    pub(super) fn add_table<'a>(
        &mut self,
        schema: Option<&str>,
        table: &str,
        columns: impl Iterator<Item = &'a str>,
    ) {
        let name = match schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(table)),
            None => quoted(table),
        };
        self.tables.insert(name, columns.map(quoted).collect());
    }

    pub(super) fn add_function(&mut self, name: &str) {
        self.functions.insert(name.to_owned());
    }

    /// Returns where the word at the cursor begins, and its completions.
    pub(super) fn complete(&self, line: &str, cursor: usize) -> (usize, Vec<String>) {
        let before = line.get(..cursor).unwrap_or(line);
        let is_outside = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
        let word = before.rsplit(is_outside).next().unwrap_or_default();
        let start = before.len() - word.len();
        if let Some(command) = before.trim_start().strip_prefix(['\\', '.'])
            && !command.contains('\n')
        {
            return self.command(before, command);
        }
        let (read, failed) = tokens(before);
        let is_text = failed.is_some_and(|error| is_open(&error)) || is_in_comment(&read, before);
        if is_text {
            return (cursor, Vec::new());
        }
        let mentioned = Mentioned::find(&tokens(line).0, &self.tables);
        let candidates = match word.rsplit_once('.') {
            Some((table, _)) => self.qualified(table, &mentioned),
            None if wants_table(&read, word) => self.tables.keys().cloned().collect(),
            None => self.unqualified(word, &mentioned),
        };
        let fits = |candidate: &String| {
            let beginning = candidate.get(..word.len());
            beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(word))
                || candidate
                    .strip_prefix('"')
                    .is_some_and(|name| !word.is_empty() && name.starts_with(word))
        };
        let mut fitting: Vec<String> = candidates.into_iter().filter(fits).collect();
        fitting.sort();
        fitting.dedup();
        (start, fitting)
    }

    fn command(&self, before: &str, command: &str) -> (usize, Vec<String>) {
        let begun = command.rsplit(char::is_whitespace).next();
        let begun = begun.unwrap_or_default();
        let start = before.len() - begun.len();
        let mut words = command.split_whitespace();
        let name = words.next().unwrap_or_default();
        let candidates: Vec<String> = if begun.len() == command.len() {
            NAMES.iter().map(|&name| name.to_owned()).collect()
        } else {
            match name {
                "d" => self.tables.keys().cloned().collect(),
                "df" => self.functions.iter().cloned().collect(),
                "format" => formats().map(Format::name).collect(),
                "timing" | "x" => vec!["off".to_owned(), "on".to_owned()],
                _ => Vec::new(),
            }
        };
        let fitting = candidates
            .into_iter()
            .filter(|name| name.starts_with(begun));
        (start, fitting.collect())
    }

    /// Returns the tables of a schema, and the columns of a table or its alias.
    fn qualified(&self, qualifier: &str, mentioned: &Mentioned) -> Vec<String> {
        let of_table = |(name, columns): (&String, &Vec<String>)| {
            let last = name.rsplit('.').next();
            let is_meant = name.eq_ignore_ascii_case(qualifier)
                || mentioned.tables.contains(name) && last == Some(qualifier)
                || mentioned.aliases.get(qualifier) == Some(name);
            let columns = columns.iter().map(|column| format!("{qualifier}.{column}"));
            is_meant.then(|| columns.collect::<Vec<_>>())
        };
        let columns = self.tables.iter().filter_map(of_table).flatten();
        let prefix = format!("{}.", qualifier.to_ascii_lowercase());
        let tables = self.tables.keys().filter(|name| name.starts_with(&prefix));
        columns.chain(tables.cloned()).collect()
    }

    /// Returns the columns of the tables that the statement mentions and, once a word is begun, tables,
    /// aliases, functions and keywords.
    fn unqualified(&self, word: &str, mentioned: &Mentioned) -> Vec<String> {
        let is_near = |name: &String| {
            let any = mentioned.tables.is_empty() && !word.is_empty();
            any || mentioned.tables.contains(name)
        };
        let near = self.tables.iter().filter(|(name, _)| is_near(name));
        let mut all: Vec<String> = near.flat_map(|(_, columns)| columns.clone()).collect();
        if !word.is_empty() {
            all.extend(self.tables.keys().cloned());
            all.extend(mentioned.aliases.keys().cloned());
            all.extend(self.functions.iter().map(|name| format!("{name}(")));
            let is_small = word.starts_with(|c: char| c.is_ascii_lowercase());
            let cased = |keyword: &str| {
                if is_small {
                    keyword.to_ascii_lowercase()
                } else {
                    keyword.to_owned()
                }
            };
            all.extend(KEYWORDS.split_whitespace().map(cased));
        }
        all
    }
}

/// The tables that a statement mentions, and their aliases.
#[derive(Debug, Default)]
struct Mentioned {
    tables: BTreeSet<String>,
    aliases: BTreeMap<String, String>,
}

impl Mentioned {
    fn find(tokens: &[TokenWithSpan], known: &BTreeMap<String, Vec<String>>) -> Self {
        let mut found = Self::default();
        let tokens: Vec<&Token> = tokens
            .iter()
            .map(|token| &token.token)
            .filter(|token| !matches!(token, Token::Whitespace(_)))
            .collect();
        let word = |at: usize| match tokens.get(at) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        };
        let mut at = 0;
        while at < tokens.len() {
            let Some(first) = word(at) else {
                at += 1;
                continue;
            };
            let mut name = first.value.to_ascii_lowercase();
            at += 1;
            while let (Some(Token::Period), Some(next)) = (tokens.get(at), word(at + 1)) {
                name = format!("{name}.{}", next.value.to_ascii_lowercase());
                at += 2;
            }
            if !known.contains_key(&name) {
                continue;
            }
            let alias = match word(at) {
                Some(next) if next.keyword == Keyword::AS => word(at + 1),
                Some(next) if next.keyword == Keyword::NoKeyword => Some(next),
                _ => None,
            };
            if let Some(alias) = alias {
                found.aliases.insert(alias.value.clone(), name.clone());
            }
            found.tables.insert(name);
        }
        found
    }
}

/// Whether a table's name comes next.
fn wants_table(before: &[TokenWithSpan], word: &str) -> bool {
    let mut words = before
        .iter()
        .rev()
        .filter(|token| !matches!(token.token, Token::Whitespace(_)));
    if !word.is_empty() {
        words.next();
    }
    let last = words.next().map(|token| &token.token);
    matches!(last, Some(Token::Word(word))
        if [Keyword::FROM, Keyword::JOIN, Keyword::DESCRIBE].contains(&word.keyword))
}

/// Whether the text ends within a single-line comment.
fn is_in_comment(read: &[TokenWithSpan], text: &str) -> bool {
    let last = read.last().map(|token| &token.token);
    let is_line = matches!(
        last,
        Some(Token::Whitespace(Whitespace::SingleLineComment { .. }))
    );
    is_line && !text.ends_with('\n')
}

/// Spells a name for SQL: quoted unless it is a plain lower-case word.
fn quoted(name: &str) -> String {
    if is_identifier(name) && !name.contains(|c: char| c.is_ascii_uppercase()) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let mut vocabulary = Vocabulary::default();
        let rollouts = ["task_index", "reward", "Accuracy", "a/b"];
        vocabulary.add_table(None, "rollouts", rollouts.into_iter());
        vocabulary.add_table(None, "tasks", ["task_index", "request"].into_iter());
        vocabulary.add_table(Some("base"), "rollouts", ["turns"].into_iter());
        for function in ["avg", "regexp_match", "row_number"] {
            vocabulary.add_function(function);
        }
        vocabulary
    }

    /// Completes the word at `|`: each result is the text to replace, `>`, and its replacement.
    fn complete(text: &str) -> Vec<String> {
        let cursor = text.find('|').unwrap();
        let line = text.replace('|', "");
        let (start, candidates) = vocabulary().complete(&line, cursor);
        let replaced = &line[start..cursor];
        let shown = |word: String| format!("{replaced}>{word}");
        candidates.into_iter().map(shown).collect()
    }

    #[test]
    fn tables_come_after_from() {
        let all = [">base.rollouts", ">rollouts", ">tasks"];
        assert_eq!(complete("select * from |"), all);
        assert_eq!(complete("select * from ro|"), ["ro>rollouts"]);
        assert_eq!(
            complete("select 1\nFROM tasks join base.|"),
            ["base.>base.rollouts"]
        );
    }

    #[test]
    fn columns_are_those_of_the_tables_that_are_mentioned() {
        assert_eq!(
            complete("select re| from tasks"),
            ["re>regexp_match(", "re>request"]
        );
        assert_eq!(
            complete("select re| from rollouts join tasks"),
            ["re>regexp_match(", "re>request", "re>reward"]
        );
        assert_eq!(complete("select | from tasks"), [">request", ">task_index"]);
        assert_eq!(
            complete("select t| from base.rollouts"),
            ["t>tables", "t>tasks", "t>then", "t>true", "t>turns"]
        );
    }

    #[test]
    fn a_qualifier_is_a_schema_a_table_or_an_alias() {
        assert_eq!(
            complete("select rollouts.r|"),
            ["rollouts.r>rollouts.reward"]
        );
        assert_eq!(
            complete("select b.| from base.rollouts as b"),
            ["b.>b.turns"]
        );
        assert_eq!(
            complete("select t.req| from rollouts r, tasks t"),
            ["t.req>t.request"]
        );
        assert_eq!(complete("select x.| from tasks t"), [""; 0]);
    }

    #[test]
    fn names_that_are_no_small_words_are_quoted() {
        assert_eq!(complete("select Acc| from rollouts"), ["Acc>\"Accuracy\""]);
        assert_eq!(complete("select a/| from rollouts").len(), 4);
    }

    #[test]
    fn keywords_are_as_large_as_what_was_typed() {
        assert_eq!(complete("sel|"), ["sel>select"]);
        assert_eq!(complete("SEL|"), ["SEL>SELECT"]);
    }

    #[test]
    fn nothing_is_completed_in_strings_and_comments() {
        for text in ["select 'sel|", "-- sel|", "/* sel|", "select \"sel|"] {
            assert_eq!(complete(text), [""; 0], "{text}");
        }
        assert_eq!(complete("-- a comment\nsel|"), ["sel>select"]);
    }

    #[test]
    fn commands_and_what_they_take_are_completed() {
        assert_eq!(complete("\\f|"), ["f>format"]);
        assert_eq!(complete(".t|"), ["t>timing"]);
        assert_eq!(complete("\\d ba|"), ["ba>base.rollouts"]);
        assert_eq!(complete("\\df av|"), ["av>avg"]);
        assert_eq!(complete(".format c|"), ["c>csv"]);
    }
}
