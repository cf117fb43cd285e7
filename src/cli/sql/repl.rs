//! The interactive session at a terminal: statements are typed, completed, remembered and answered.

use std::fs;
use std::path::PathBuf;

use datafusion::common::runtime::SpawnedTask;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, CompletionType, Config, Context, Editor, Helper};
use tokio::sync::watch;

use super::catalog;
use super::completion::Vocabulary;
use super::interpreter::{Flow, Interpreter, tell};
use super::statements::{Statements, is_leaving};
use crate::cli::runs::state_dir;
use crate::cli::signals;
use crate::error::Error;
use crate::query::{SqlSession, all_tables};
use crate::store::state_directory;

/// How to see more at the prompt.
const HINT: &str = "\\limit 0 shows all rows, \\x whole ones";

/// Name of the history file.
const HISTORY: &str = "sql_history";

/// Asks for statements and answers them until the user leaves.
///
/// # Errors
/// The runs can't be read at the start, or the terminal is gone. Later errors are printed.
pub(super) async fn converse(mut interpreter: Interpreter) -> Result<(), Error> {
    interpreter.hint(HINT);
    interpreter.run_apart()?;
    interpreter.session_mut().look().await?;
    let history = state_directory(state_dir().as_deref())?.join(HISTORY);
    let mut interrupts = signals::interrupts()?;
    let mut editor = LineEditor::open(history).map_err(terminal)?;
    greet(interpreter.session());
    loop {
        editor.know(vocabulary(interpreter.session()).await);
        // Waiting for the terminal blocks, so it needs a thread of its own.
        let reading = SpawnedTask::spawn_blocking(move || {
            let read = editor.read();
            (editor, read)
        });
        let (returned, read) = reading.join().await.map_err(Error::defect)?;
        editor = returned;
        match read.map_err(terminal)? {
            Read::Text(text) if is_leaving(&text) => return Ok(()),
            Read::Text(text) => {
                if let Some(problem) = editor.remember(&text) {
                    tell(&problem);
                }
                if answer(&mut interpreter, &text, &mut interrupts).await? == Flow::Break(()) {
                    return Ok(());
                }
            }
            Read::Dropped => {}
            Read::End => return Ok(()),
        }
    }
}

/// Executes what was typed, up to the first error or interrupt.
async fn answer(
    interpreter: &mut Interpreter,
    text: &str,
    interrupts: &mut watch::Receiver<u64>,
) -> Result<Flow, Error> {
    // Ignores interrupts that came while typing.
    interrupts.mark_unchanged();
    for item in Statements::all(text) {
        let done = tokio::select! {
            done = interpreter.execute(&item) => done,
            Ok(()) = interrupts.changed() => {
                tell("cancelled");
                interpreter.run_apart()?;
                break;
            }
        };
        match done {
            Ok(Flow::Continue(())) => {}
            Ok(Flow::Break(())) => return Ok(Flow::Break(())),
            Err(error) => {
                tell(&format!("error: {error}"));
                break;
            }
        }
    }
    Ok(Flow::Continue(()))
}

fn greet(session: &SqlSession) {
    let runs = session.runs().iter();
    let names: Vec<&str> = runs.map(|run| run.label.as_str()).collect();
    tell(&format!(
        "rollstream {}: {}. \\d lists the tables, \\help the commands; statements end with `;`.",
        env!("CARGO_PKG_VERSION"),
        names.join(", ")
    ));
}

async fn vocabulary(session: &SqlSession) -> Vocabulary {
    let context = session.context();
    let mut vocabulary = Vocabulary::default();
    for name in catalog::names(context) {
        vocabulary.add_function(&name);
    }
    for table in all_tables(context).await {
        // A table that can't be opened can't be completed either; a query of it says why.
        if let Some(columns) = &table.columns {
            let columns = columns.iter().map(String::as_str);
            vocabulary.add_table(table.schema.as_deref(), &table.name, columns);
        }
    }
    vocabulary
}

fn terminal(error: ReadlineError) -> Error {
    Error::usage("cannot use the terminal", error)
}

const PROMPT: &str = "sql> ";

/// The number of entries in the history.
const MAX_REMEMBERED: usize = 10_000;

/// The terminal, where statements are typed.
struct LineEditor {
    editor: Editor<Assistant, DefaultHistory>,
    history: PathBuf,
    /// Whether entries are still written to the history file.
    remembers: bool,
}

/// What was read from the terminal.
enum Read {
    /// Statements, or a command.
    Text(String),
    /// Ctrl-C: the input is dropped.
    Dropped,
    /// Ctrl-D.
    End,
}

impl LineEditor {
    /// Opens the terminal, and loads the history.
    fn open(history: PathBuf) -> Result<Self, ReadlineError> {
        let config = Config::builder()
            .max_history_size(MAX_REMEMBERED)?
            .history_ignore_dups(true)?
            .completion_type(CompletionType::List)
            // Prompts go to the terminal, also where answers go to a file.
            .behavior(Behavior::PreferTerm)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant::default()));
        // A missing or unreadable history counts as empty.
        let _ = editor.load_history(&history);
        Ok(Self {
            editor,
            history,
            remembers: true,
        })
    }

    /// Sets the names that can be completed.
    fn know(&mut self, vocabulary: Vocabulary) {
        if let Some(assistant) = self.editor.helper_mut() {
            assistant.vocabulary = vocabulary;
        }
    }

    /// Waits for the next input.
    fn read(&mut self) -> Result<Read, ReadlineError> {
        match self.editor.readline(PROMPT) {
            Ok(text) => Ok(Read::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Read::Dropped),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(error) => Err(error),
        }
    }

    /// Adds to the history and its file. If the file cannot be written, returns a warning, but only once.
    fn remember(&mut self, text: &str) -> Option<String> {
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

/// Completes and validates what is typed.
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
        let is_complete = Statements::is_complete(text) || is_leaving(text);
        Ok(if is_complete {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}
