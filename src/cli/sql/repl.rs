//! A conversation at a terminal: statements are typed, completed, remembered and answered.

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
use super::session::SqlSession;
use super::statements::{Statements, is_leaving};
use crate::cli::runs::state_dir;
use crate::cli::signals;
use crate::error::Error;
use crate::show::RowLimit;
use crate::store::state_directory;

/// Rows of a table that fit into a terminal's memory of what it showed.
const LIMIT: RowLimit = RowLimit {
    rows: 200,
    hint: "\\limit ROWS shows others, \\limit 0 all",
};

/// Name of the file that keeps what was typed.
const HISTORY: &str = "sql_history";

/// Asks for statements and answers them until the user leaves.
///
/// # Errors
/// The runs can't be read to begin with, or the terminal is gone. What fails later is told.
pub(super) async fn converse(mut interpreter: Interpreter) -> Result<(), Error> {
    interpreter.limit(LIMIT);
    interpreter.run_apart()?;
    interpreter.session_mut().look().await?;
    let history = state_directory(state_dir().as_deref())?.join(HISTORY);
    let mut interrupts = signals::interrupts()?;
    let mut editor = LineEditor::open(history).map_err(terminal)?;
    greet(interpreter.session());
    loop {
        editor.know(vocabulary(interpreter.session()).await);
        // The terminal is waited for on a thread that may wait.
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

/// Does what was typed, up to what fails or is cancelled.
async fn answer(
    interpreter: &mut Interpreter,
    text: &str,
    interrupts: &mut watch::Receiver<u64>,
) -> Result<Flow, Error> {
    // What came while typing was not for this.
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
    for table in catalog::all_tables(context).await {
        // A table that can't be opened can't be completed either; a question to it says why.
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

/// Things typed that are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// The terminal, where statements are typed.
struct LineEditor {
    editor: Editor<Assistant, DefaultHistory>,
    history: PathBuf,
    /// Whether what is typed still goes to the file.
    remembers: bool,
}

/// What came from the terminal.
enum Read {
    /// Statements, or a command.
    Text(String),
    /// Ctrl-C: something that is not to be.
    Dropped,
    /// Ctrl-D.
    End,
}

impl LineEditor {
    /// Takes the terminal, and from the file what was typed before.
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
        // There need not be such a file, and one that can't be read is none.
        let _ = editor.load_history(&history);
        Ok(Self {
            editor,
            history,
            remembers: true,
        })
    }

    /// What can be completed from here on.
    fn know(&mut self, vocabulary: Vocabulary) {
        if let Some(assistant) = self.editor.helper_mut() {
            assistant.vocabulary = vocabulary;
        }
    }

    /// Waits for what is typed next.
    fn read(&mut self) -> Result<Read, ReadlineError> {
        match self.editor.readline(PROMPT) {
            Ok(text) => Ok(Read::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Read::Dropped),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(error) => Err(error),
        }
    }

    /// Keeps what was typed, on the disk as well. Says once if that can't be.
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
