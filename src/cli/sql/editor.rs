use std::fs;
use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, CompletionType, Config, Context, Editor, Helper};

use super::completion::Vocabulary;
use super::statements::{Statements, is_leaving};

const PROMPT: &str = "sql> ";

/// Things typed that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// The terminal, where statements are typed.
pub(super) struct LineEditor {
    editor: Editor<Assistant, DefaultHistory>,
    history: PathBuf,
    /// Whether what is typed still goes to the file.
    remembers: bool,
}

/// What came from the terminal.
pub(super) enum Read {
    /// Statements, or a command.
    Text(String),
    /// Ctrl-C: something that is not to be.
    Dropped,
    /// Ctrl-D.
    End,
}

impl LineEditor {
    /// Takes the terminal, and from the file what was typed before.
    pub(super) fn open(history: PathBuf) -> Result<Self, ReadlineError> {
        let config = Config::builder()
            .max_history_size(MAX_REMEMBERED)?
            .history_ignore_dups(true)?
            .completion_type(CompletionType::List)
            // Prompts go to the terminal, also where answers go to a file.
            .behavior(Behavior::PreferTerm)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant::default()));
        // There need not be such a file, and one that can't be read is none.
        let _ = editor.load_history(&history);
        Ok(Self {
            editor,
            history,
            remembers: true,
        })
    }

    /// What can be completed from here on.
    pub(super) fn know(&mut self, vocabulary: Vocabulary) {
        if let Some(assistant) = self.editor.helper_mut() {
            assistant.vocabulary = vocabulary;
        }
    }

    /// Waits for what is typed next.
    pub(super) fn read(&mut self) -> Result<Read, ReadlineError> {
        match self.editor.readline(PROMPT) {
            Ok(text) => Ok(Read::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Read::Dropped),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(error) => Err(error),
        }
    }

    /// Keeps what was typed, on the disk as well. Says once if that can't be.
    pub(super) fn remember(&mut self, text: &str) -> Option<String> {
        let is_new = self.editor.add_history_entry(text.trim()).unwrap_or(false);
        if !is_new || !self.remembers {
            return None;
        }
        let kept = self
            .history
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(ReadlineError::from)
            .and_then(|()| self.editor.append_history(&self.history));
        let error = kept.err()?;
        self.remembers = false;
        let path = self.history.display();
        Some(format!("the history cannot be kept in {path}: {error}"))
    }
}

/// What helps while typing.
#[derive(Default)]
struct Assistant {
    vocabulary: Vocabulary,
}

impl Completer for Assistant {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.vocabulary.complete(line, pos))
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        Ok(match Statements::is_complete(text) || is_leaving(text) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}
