//! `rollstream show`: tasks and rollouts to read in the terminal.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use console::Term;

use super::output::{Exit, note, unless_gone, wants_colors};
use super::pager::{Step, ask, page};
use super::runs::{open_recorded, session_of};
use super::signals;
use crate::error::Error;
use crate::session::Rows;
use crate::show::{ShowError, TranscriptStyle, quoted, tasks, terminal_width, transcript};
use crate::transcript::{Key, MAX_SELECTED, Reader, Select, Transcript, Walk};

const EXAMPLES: &str = "\
Examples:
  rollstream show runs/first               the tasks, lowest mean reward first
  rollstream show runs/first 14            the rollouts of task 14, one by one
  rollstream show runs/first 14 2          rollout 2 of task 14
  rollstream show runs/first --worst       the rollouts with the lowest rewards
  rollstream show runs/first --failed --where \"error LIKE '%timeout%'\"
  rollstream show runs/first --where 'reward = 0 AND output_tokens > 4000'
  rollstream show s3://bucket/run 3 --all --json | jq '.items[-1].text'

On a terminal it shows one rollout in a pager ($PAGER, or less -R), and then waits for a key: n for the next, p for the \
previous, f for the same in full, q to leave. Elsewhere it prints one rollout and the commands for the next and the \
previous one.

The columns of --where are those of `rollouts`, with every metric, or with --failed those of `attempts` \
(`rollstream help sql`).";

/// The options of `show`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    /// The run: a directory or an object-store prefix
    pub run: String,
    /// Only this task
    #[arg(allow_negative_numbers = true)]
    pub task: Option<i64>,
    /// The rollout of the task to begin with
    pub rollout: Option<i64>,
    /// Show the rollouts with the lowest rewards first
    #[arg(long, conflicts_with_all = ["rollout", "failed"])]
    pub worst: bool,
    /// Show the rollouts without an answer, whose last attempt failed
    #[arg(long, conflicts_with = "rollout")]
    pub failed: bool,
    /// Show the rollouts for which this is true
    #[arg(
        long = "where",
        value_name = "SQL",
        conflicts_with = "rollout",
        allow_hyphen_values = true
    )]
    pub condition: Option<String>,
    /// Begin with this one of the rollouts, counted from 1
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "rollout"
    )]
    pub at: usize,
    /// Print all of the rollouts, one after another
    #[arg(long)]
    pub all: bool,
    /// Show long texts whole, and all fields of an answer
    #[arg(long)]
    pub full: bool,
    /// Show JSON for programs: one line per rollout, or per task
    #[arg(long)]
    pub json: bool,
    /// Show no colours (the variable NO_COLOR does the same)
    #[arg(long)]
    pub no_color: bool,
}

impl ShowArgs {
    /// Whether rollouts are chosen by what became of them.
    fn selects(&self) -> bool {
        self.worst || self.failed || self.condition.is_some()
    }

    /// The command for another rollout.
    fn command(&self, rest: &str) -> String {
        format!("rollstream show {} {rest}", quoted(&self.run))
    }

    /// The command for another rollout of those that were selected.
    fn selected(&self, at: usize) -> String {
        let mut words: Vec<String> = self.task.iter().map(i64::to_string).collect();
        for (is_given, flag) in [(self.worst, "--worst"), (self.failed, "--failed")] {
            words.extend(is_given.then(|| flag.to_owned()));
        }
        if let Some(condition) = &self.condition {
            words.push(format!("--where {}", quoted(condition)));
        }
        words.push(format!("--at {at}"));
        self.command(&words.join(" "))
    }
}

/// `rollstream show`: lists the tasks of a run, or shows rollouts. Writes nothing to it.
pub(super) async fn show(args: ShowArgs) -> Result<Exit, Error> {
    let (run, _) = open_recorded(&args.run).await?;
    let reader = Reader::open(run).await?;
    let is_terminal = io::stdout().is_terminal() && !args.json;
    let width = terminal_width(io::stdout()).unwrap_or(100);
    let style = TranscriptStyle {
        colors: is_terminal && wants_colors(args.no_color),
        width,
        wraps: is_terminal,
        full: args.full,
    };
    let mut viewer = Viewer {
        is_interactive: is_terminal && io::stdin().is_terminal() && !args.all,
        is_terminal,
        args,
        reader,
        style,
    };
    // The terminal sends an interrupt to the pager and to us, and it is for the pager.
    let _interrupts = is_terminal.then(signals::interrupts).transpose()?;
    if viewer.args.task.is_none() && !viewer.args.selects() && !viewer.args.all {
        return viewer.list().await;
    }
    viewer.rollouts().await
}

/// The rollouts to go through.
struct Shelf {
    keys: Vec<Key>,
    /// The tasks beside it, if it has the rollouts of one task.
    beside: Option<Walk>,
    at: usize,
}

struct Viewer {
    args: ShowArgs,
    reader: Reader,
    style: TranscriptStyle,
    is_terminal: bool,
    is_interactive: bool,
}

impl Viewer {
    /// Lists the tasks, and lets the user choose one at a terminal.
    async fn list(&mut self) -> Result<Exit, Error> {
        let lines = self.reader.tasks().await?;
        if self.args.json {
            for line in &lines {
                if let Some(exit) = unless_gone(write_json(line))? {
                    return Ok(exit);
                }
            }
            return Ok(Exit::Done);
        }
        let written = page(self.is_terminal, |output| tasks(output, &lines, self.style));
        if let Some(exit) = unless_gone(written)? {
            return Ok(exit);
        }
        let Some(worst) = lines.first() else {
            return Ok(Exit::Done);
        };
        if !self.is_interactive {
            let command = self.args.command(&worst.task_index.to_string());
            note(format_args!("`{command}` shows the rollouts of a task"));
            return Ok(Exit::Done);
        }
        let terminal = Term::stderr();
        loop {
            let asked = terminal.write_str("task to read (Enter to leave): ");
            let answer = asked.and_then(|()| terminal.read_line());
            let answer = answer.unwrap_or_default();
            match answer.trim().parse() {
                Ok(task) => {
                    self.args.task = Some(task);
                    match self.rollouts().await {
                        Err(error) if error.exit_code() == 2 => note(error),
                        ended => return ended,
                    }
                }
                Err(_) => return Ok(Exit::Done),
            }
        }
    }

    async fn rollouts(&mut self) -> Result<Exit, Error> {
        let mut shelf = self.shelf().await?;
        if shelf.keys.is_empty() {
            let what = if self.args.failed {
                "failed"
            } else {
                "is like this"
            };
            note(format_args!("no rollout of {} {what}", self.args.run));
            return Ok(Exit::Done);
        }
        let num_keys = shelf.keys.len();
        if shelf.at >= num_keys {
            return Err(Error::Usage(format!(
                "--at {}: there are only {num_keys} such rollouts",
                shelf.at + 1
            )));
        }
        if num_keys == MAX_SELECTED {
            let run = quoted(&self.args.run);
            note(format_args!(
                "only the first {num_keys} rollouts; `rollstream sql {run}` finds all"
            ));
        }
        if self.args.all || (self.args.json && self.args.rollout.is_none()) {
            let keys = shelf.keys.get(shelf.at..).unwrap_or_default();
            return self.print_all(keys).await;
        }
        loop {
            let key = shelf.keys.get(shelf.at).copied();
            let found = match key {
                Some(key) => self.reader.read(key).await?,
                None => None,
            };
            let Some(found) = found else {
                return Err(Error::Usage(format!("{} has no such task", self.args.run)));
            };
            if let Some(exit) = unless_gone(self.show_one(&found, &shelf))? {
                return Ok(exit);
            }
            if !self.is_interactive {
                return Ok(Exit::Done);
            }
            self.style.full = self.args.full;
            match ask(&self.position(&shelf)) {
                Step::Leave => return Ok(Exit::Done),
                Step::Full => self.style.full = true,
                step => {
                    // The run may have grown.
                    self.reader.look().await?;
                    self.go(&mut shelf, &step).await?;
                }
            }
        }
    }

    /// Finds the rollouts to go through.
    async fn shelf(&self) -> Result<Shelf, Error> {
        let args = &self.args;
        let at = args.at.saturating_sub(1);
        let task_index = args.task;
        if let Some(task) = task_index.filter(|_| !args.selects()) {
            let walk = self.walk(task).await?;
            let at = match args.rollout {
                None => at,
                Some(wanted) => {
                    let mut keys = walk.keys.iter();
                    let at = keys.position(|key| key.rollout_index == wanted);
                    at.ok_or_else(|| {
                        let last = walk.keys.last().map_or(0, |key| key.rollout_index);
                        Error::Usage(format!(
                            "task {task} of {} has no rollout {wanted}; the last is {last}",
                            args.run
                        ))
                    })?
                }
            };
            return Ok(Shelf {
                keys: walk.keys.clone(),
                beside: Some(walk),
                at,
            });
        }
        let select = Select {
            task_index,
            failed: args.failed,
            worst: args.worst,
        };
        let keys = match &args.condition {
            None => self.reader.select(&select).await?,
            Some(condition) => where_true(&args.run, &select, condition).await?,
        };
        Ok(Shelf {
            keys,
            beside: None,
            at,
        })
    }

    async fn walk(&self, task: i64) -> Result<Walk, Error> {
        let walk = self.reader.task(task).await?;
        if walk.keys.is_empty() {
            let run = &self.args.run;
            return Err(Error::Usage(format!(
                "{run} has no task {task}; `rollstream show {}` lists the tasks",
                quoted(run)
            )));
        }
        Ok(walk)
    }

    /// Goes to the next or the previous rollout, which may be one of another task.
    async fn go(&self, shelf: &mut Shelf, step: &Step) -> Result<(), Error> {
        let is_next = matches!(step, Step::Next);
        let inside = if is_next {
            Some(shelf.at + 1).filter(|at| *at < shelf.keys.len())
        } else {
            shelf.at.checked_sub(1)
        };
        if let Some(at) = inside {
            shelf.at = at;
            return Ok(());
        }
        let beside = shelf.beside.as_ref();
        let task = beside.and_then(|walk| if is_next { walk.next } else { walk.previous });
        let Some(task) = task else {
            note(if is_next {
                "that was the last one"
            } else {
                "that was the first one"
            });
            return Ok(());
        };
        let walk = self.walk(task).await?;
        shelf.keys.clone_from(&walk.keys);
        shelf.at = if is_next {
            0
        } else {
            walk.keys.len().saturating_sub(1)
        };
        shelf.beside = Some(walk);
        Ok(())
    }

    async fn print_all(&self, keys: &[Key]) -> Result<Exit, Error> {
        for key in keys {
            let Some(found) = self.reader.read(*key).await? else {
                continue;
            };
            let written = if self.args.json {
                write_json(&found)
            } else {
                let mut output = io::stdout().lock();
                transcript(&mut output, &found, self.style)
                    .and_then(|()| Ok(writeln!(output, "\n")?))
            };
            if let Some(exit) = unless_gone(written)? {
                return Ok(exit);
            }
        }
        Ok(Exit::Done)
    }

    fn show_one(&self, found: &Transcript, shelf: &Shelf) -> Result<(), ShowError> {
        if self.args.json {
            return write_json(found);
        }
        page(self.is_terminal, |output| {
            transcript(output, found, self.style)?;
            if !self.is_interactive {
                writeln!(output, "\n{}", self.footer(shelf))?;
            }
            Ok(())
        })
    }

    fn position(&self, shelf: &Shelf) -> String {
        let (at, all) = (shelf.at + 1, shelf.keys.len());
        let key = shelf.keys.get(shelf.at);
        key.map_or_else(String::new, |key| {
            format!(
                "task {}, rollout {} ({at} of {all})",
                key.task_index, key.rollout_index
            )
        })
    }

    /// Says how to see the neighbours.
    fn footer(&self, shelf: &Shelf) -> String {
        let at = |at: usize| shelf.keys.get(at);
        let [next, previous] = match &shelf.beside {
            None => {
                let next = (shelf.at + 1 < shelf.keys.len()).then(|| shelf.at + 2);
                let previous = Some(shelf.at).filter(|at| *at > 0);
                [next, previous].map(|at| at.map(|at| self.args.selected(at)))
            }
            Some(walk) => {
                let key = |key: &Key| format!("{} {}", key.task_index, key.rollout_index);
                let next = at(shelf.at + 1).map(key);
                let previous = shelf.at.checked_sub(1).and_then(at).map(key);
                let next = next.or_else(|| walk.next.map(|task| task.to_string()));
                let previous = previous.or_else(|| walk.previous.map(|task| task.to_string()));
                [next, previous].map(|rest| rest.map(|rest| self.args.command(&rest)))
            }
        };
        let mut lines = vec![self.position(shelf)];
        lines.extend(next.map(|command| format!("next:     {command}")));
        lines.extend(previous.map(|command| format!("previous: {command}")));
        lines.join("\n")
    }
}

fn write_json(value: &impl serde::Serialize) -> Result<(), ShowError> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut output, value).map_err(io::Error::from)?;
    writeln!(output)?;
    Ok(output.flush()?)
}

/// Returns the rollouts for which a condition is true, over the tables that `rollstream sql` has.
async fn where_true(run: &str, select: &Select, condition: &str) -> Result<Vec<Key>, Error> {
    let session = session_of(run).await?;
    let refused = |error: Error| {
        let context = format!("--where {condition}");
        let of_tasks = "fields of a task: task_index IN (SELECT task_index FROM tasks WHERE (request->>'FIELD') = 'VALUE')";
        Error::usage(context, format!("{error}\n  {of_tasks}"))
    };
    let planned = session.plan(&select.query(Some(condition))).await;
    let rows = Rows::start(planned.map_err(refused)?, Key::rows).await;
    let rows = rows.map_err(|error| refused(error.into()))?;
    Ok(rows.collect().await?)
}
