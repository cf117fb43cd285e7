//! [`Interpreter`]: executes the statements and commands of a script or an interactive session, one by one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use datafusion::dataframe::DataFrame;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::{StreamExt, TryStreamExt};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::runtime::{Handle, Runtime};

use super::catalog::{self, Found};
use super::command::{Command, HELP};
use super::statements::{Item, Statement, Statements};
use crate::cli::output::unless_gone;
use crate::error::Error;
use crate::query::SqlSession;
use crate::show::{Format, RowLimit, ShowError, open_sink, terminal_width};
use crate::store::StoreError;

/// The number of rows to write before other tasks, such as an interrupt, get a turn.
const WRITTEN_AT_ONCE: usize = 512;

/// Executes statements and commands one after another.
pub(super) struct Interpreter {
    session: SqlSession,
    engine: Engine,
    format: Format,
    /// The most rows of a table; `None` until it is set, for what fits the output.
    max_rows: Option<usize>,
    /// How to see more, if not by options.
    hint: Option<&'static str>,
    times: bool,
    output_file: Option<PathBuf>,
    /// Whether an answer was written: some outputs hold only one.
    has_answered: bool,
}

/// Whether to continue: not after `\quit`, nor when nobody reads the output any more.
pub(super) type Flow = ControlFlow<()>;

impl Interpreter {
    pub(super) fn new(session: SqlSession, format: Format, output_file: Option<PathBuf>) -> Self {
        Self {
            session,
            engine: Engine::default(),
            format,
            max_rows: None,
            hint: None,
            times: false,
            output_file,
            has_answered: false,
        }
    }

    /// Sets how the user is told to see more.
    pub(super) fn hint(&mut self, hint: &'static str) {
        self.hint = Some(hint);
    }

    /// Returns how much is shown of an answer. A terminal may have changed its width since the last one.
    fn limit(&self) -> RowLimit {
        let width = match self.output_file {
            Some(_) => None,
            None => terminal_width(io::stdout()),
        };
        let usual = width.map_or_else(RowLimit::default, RowLimit::of_terminal);
        RowLimit {
            rows: self.max_rows.unwrap_or(usual.rows),
            hint: self.hint.unwrap_or(usual.hint),
            ..usual
        }
    }

    /// Runs queries on new threads from here on, since earlier queries may still block theirs.
    pub(super) fn run_apart(&mut self) -> Result<(), Error> {
        self.engine = Engine::start()?;
        Ok(())
    }

    pub(super) fn session(&self) -> &SqlSession {
        &self.session
    }

    pub(super) fn session_mut(&mut self) -> &mut SqlSession {
        &mut self.session
    }

    /// Executes the next statement or command.
    pub(super) async fn execute(&mut self, item: &Item) -> Result<Flow, Error> {
        match item {
            Item::Statement(statement) => self.statement(statement).await,
            Item::Command(line) => self.command(Command::parse(line)?).await,
        }
    }

    async fn statement(&mut self, statement: &Statement) -> Result<Flow, Error> {
        let started = Instant::now();
        self.session.look().await?;
        let frame = self.session.plan(&statement.in_place()).await?;
        let (flow, rows) = self.answer(frame).await?;
        if self.times {
            let rows = match rows {
                1 => "1 row".to_owned(),
                rows => format!("{rows} rows"),
            };
            let time = started.elapsed().as_secs_f64() * 1000.0;
            tell(&format!("{rows}, {time:.1} ms"));
        }
        Ok(flow)
    }

    async fn command(&mut self, command: Command) -> Result<Flow, Error> {
        match command {
            Command::Describe(table) => {
                self.session.look().await?;
                let frame = match table {
                    None => catalog::tables(&self.session).await?,
                    Some(table) => catalog::columns(&self.session, &table).await?,
                };
                Ok(self.answer(frame).await?.0)
            }
            Command::Functions(name) => {
                match catalog::find(self.session.context(), name.as_deref())? {
                    Found::Listed(frame) => Ok(self.answer(frame).await?.0),
                    Found::Explained(text) => self.print(&text),
                }
            }
            Command::Timing(times) => {
                self.times = times.unwrap_or(!self.times);
                tell(if self.times {
                    "timing is on"
                } else {
                    "timing is off"
                });
                Ok(Flow::Continue(()))
            }
            Command::Record(wanted) => {
                let is_on = wanted.unwrap_or(self.format != Format::Record);
                self.format = if is_on { Format::Record } else { Format::Table };
                tell(if is_on {
                    "answers are shown one row at a time"
                } else {
                    "answers are shown as tables"
                });
                Ok(Flow::Continue(()))
            }
            Command::Format(Some(format)) => {
                self.format = format;
                Ok(Flow::Continue(()))
            }
            Command::Format(None) => {
                tell(&self.format.name());
                Ok(Flow::Continue(()))
            }
            Command::Limit(Some(rows)) => {
                self.max_rows = Some(rows);
                Ok(Flow::Continue(()))
            }
            Command::Limit(None) => {
                tell(&match self.limit().rows {
                    0 => "all rows of a table are shown".to_owned(),
                    rows => format!("at most {rows} rows of a table are shown"),
                });
                Ok(Flow::Continue(()))
            }
            Command::Help => self.print(HELP),
            Command::Quit => Ok(Flow::Break(())),
        }
    }

    /// Writes the rows of a query, and returns how many were shown.
    async fn answer(&mut self, frame: DataFrame) -> Result<(Flow, usize), Error> {
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let output = self.output()?;
        let limit = self.limit();
        let mut sink = match open_sink(self.format, &schema, output, limit) {
            Ok(sink) => sink,
            Err(error) => {
                unless_gone(Err(error))?;
                return Ok((Flow::Break(()), 0));
            }
        };
        let mut stream = self.engine.run(frame);
        let mut num_rows = 0;
        while !sink.is_full()
            && let Some(batch) = stream.try_next().await?
        {
            let mut written = 0;
            while written < batch.num_rows() && !sink.is_full() {
                let rows = batch.slice(written, WRITTEN_AT_ONCE.min(batch.num_rows() - written));
                written += rows.num_rows();
                if unless_gone(sink.write(&rows))?.is_some() {
                    return Ok((Flow::Break(()), num_rows));
                }
                tokio::task::yield_now().await;
            }
            num_rows += batch.num_rows();
        }
        if sink.is_full() {
            num_rows = limit.rows;
        }
        // Ends a query whose remaining rows are not wanted.
        drop(stream);
        Ok((flow(sink.finish())?, num_rows))
    }

    fn output(&mut self) -> Result<Box<dyn Write + Send>, Error> {
        let holds_one = self.output_file.is_some() || !self.format.holds_several();
        if holds_one && self.has_answered {
            return Err(Error::Usage(
                "an output file and Parquet hold only one answer: run one query at a time"
                    .to_owned(),
            ));
        }
        self.has_answered = true;
        let Some(path) = &self.output_file else {
            return Ok(Box::new(BufWriter::new(io::stdout())));
        };
        let file = File::create(path).map_err(StoreError::file("create", path));
        Ok(Box::new(BufWriter::new(file?)))
    }

    fn print(&self, text: &str) -> Result<Flow, Error> {
        let written = io::stdout().lock().write_all(text.as_bytes());
        flow(written.map_err(Into::into))
    }
}

fn flow(written: Result<(), ShowError>) -> Result<Flow, Error> {
    Ok(match unless_gone(written)? {
        Some(_) => Flow::Break(()),
        None => Flow::Continue(()),
    })
}

/// Prints a message to stderr.
pub(super) fn tell(text: &str) {
    // The error is ignored: the terminal may be gone.
    let _ = writeln!(io::stderr(), "{text}");
}

/// The threads that run queries.
///
/// Some queries compute for minutes before they yield a thread, even if nobody wants their answer any more. An
/// interactive session leaves such threads alone, and starts others.
#[derive(Default)]
struct Engine {
    /// `None` if queries run on the threads of the main runtime.
    own: Option<Runtime>,
}

impl Engine {
    /// Starts threads that only run queries.
    fn start() -> Result<Self, Error> {
        let own = Runtime::new().map_err(|error| Error::failed("cannot start", error));
        Ok(Self { own: Some(own?) })
    }

    /// Runs a query. When the stream is dropped, the query ends as soon as it yields its thread.
    fn run(&self, query: DataFrame) -> SendableRecordBatchStream {
        let schema = Arc::clone(query.schema().inner());
        let mut builder = RecordBatchReceiverStream::builder(schema, 2);
        let output = builder.tx();
        let task = async move {
            let mut rows = query.execute_stream().await?;
            while let Some(batch) = rows.next().await {
                // The receiver is gone: nobody wants the rest.
                if output.send(batch).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let own = self.own.as_ref().map(|own| own.handle().clone());
        builder.spawn_on(task, &own.unwrap_or_else(Handle::current));
        builder.build()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            own.shutdown_background();
        }
    }
}

/// Executes the statements and commands of a text.
pub(super) async fn run_text(interpreter: &mut Interpreter, text: &str) -> Result<(), Error> {
    let mut items = Statements::all(text);
    if items.is_empty() {
        // An empty statement fails with an error, so that an empty text does too.
        items.push(Item::Statement(Statement::default()));
    }
    for item in items {
        if interpreter.execute(&item).await? == Flow::Break(()) {
            break;
        }
    }
    Ok(())
}

/// Executes the statements and commands of stdin, each as soon as it is complete.
pub(super) async fn run_input(interpreter: &mut Interpreter) -> Result<(), Error> {
    let failed = |error: io::Error| Error::usage("cannot read the standard input", error);
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let input = tokio::fs::File::from_std(input.into());
    let mut lines = BufReader::new(input).lines();
    let mut statements = Statements::default();
    while let Some(line) = lines.next_line().await.map_err(failed)? {
        for item in statements.push(&line) {
            if interpreter.execute(&item).await? == Flow::Break(()) {
                return Ok(());
            }
        }
    }
    if let Some(item) = statements.finish() {
        interpreter.execute(&item).await.map(drop)?;
    }
    Ok(())
}
