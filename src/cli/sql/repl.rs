use datafusion::common::runtime::SpawnedTask;
use rustyline::error::ReadlineError;
use tokio::sync::watch;

use super::completion::Vocabulary;
use super::editor::{LineEditor, Read};
use super::functions;
use super::interpreter::{Flow, Interpreter, tell};
use super::session::SqlSession;
use super::statements::{Item, Statements, is_leaving};
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
    for item in items(text) {
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

fn items(text: &str) -> Vec<Item> {
    let mut statements = Statements::default();
    let mut items: Vec<Item> = text
        .lines()
        .flat_map(|line| statements.push(line))
        .collect();
    items.extend(statements.finish());
    items
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
    for name in functions::names(context) {
        vocabulary.add_function(&name);
    }
    let options = context.state().config().options().catalog.clone();
    let Some(catalog) = context.catalog(&options.default_catalog) else {
        return vocabulary;
    };
    for schema in catalog.schema_names() {
        let Some(tables) = catalog.schema(&schema) else {
            continue;
        };
        let prefix = (schema != options.default_schema).then_some(schema.as_str());
        for name in tables.table_names() {
            // A table that can't be opened can't be completed either; a question to it says why.
            if let Ok(Some(table)) = tables.table(&name).await {
                let columns = table.schema();
                let columns = columns.fields().iter().map(|field| field.name().as_str());
                vocabulary.add_table(prefix, &name, columns);
            }
        }
    }
    vocabulary
}

fn terminal(error: ReadlineError) -> Error {
    Error::usage("cannot use the terminal", error)
}
