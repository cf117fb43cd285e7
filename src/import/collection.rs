//! The files of a NeMo Gym collection, finished or not, as batches for the tables of a run: [`CollectionFiles`] finds them,
//! [`read_collection`] reads them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use tokio::sync::mpsc::Sender;

use super::error::{ImportError, RowProblem};
use super::keys::{ROLLOUT, TaskKeys, agent_name};
use super::ledger::{Collection, Found, answer, flagged};
use super::lines::{Line, Torn, for_each_whole_line};
use crate::gym::GymRules;
use crate::json::unquote;
use crate::outcome::{Outcome, OutcomeBatchBuilder};
use crate::read::{TaskBatchBuilder, TaskRow, task_digest};
use crate::request::ENVIRONMENT_SERVER;
use crate::store::InputRecord;

/// The suffixes of the files beside the rollouts.
pub(super) const FAILURES: &str = "_failures.jsonl";
pub(super) const INPUTS: &str = "_materialized_inputs.jsonl";

/// The files that NeMo Gym keeps of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectionFiles {
    /// The planned rollouts, one row each.
    pub materialized_inputs: PathBuf,
    /// The answers.
    pub rollouts: PathBuf,
    /// Answers that agents flagged as failures; none if there is no such file.
    pub failures: Option<PathBuf>,
}

impl CollectionFiles {
    /// Finds the files of a collection. `name` is the file of rollouts, perhaps without `.jsonl`; the other files are
    /// beside it, unless they are named.
    ///
    /// # Errors
    /// A file without which NeMo Gym would start over is missing.
    pub fn find(
        name: &Path,
        materialized_inputs: Option<PathBuf>,
        failures: Option<PathBuf>,
    ) -> Result<Self, ImportError> {
        let is_whole = name.is_file() || name.extension() == Some(OsStr::new("jsonl"));
        let rollouts = if is_whole {
            name.to_owned()
        } else {
            with_suffix(name, ".jsonl")
        };
        let stem = rollouts.with_extension("");
        let beside = with_suffix(&stem, FAILURES);
        let files = Self {
            materialized_inputs: materialized_inputs.unwrap_or_else(|| with_suffix(&stem, INPUTS)),
            failures: failures.or_else(|| beside.exists().then_some(beside)),
            rollouts,
        };
        for (path, option) in [
            (&files.rollouts, "the argument NAME.jsonl"),
            (&files.materialized_inputs, "--materialized-inputs"),
        ] {
            if !path.is_file() {
                return Err(ImportError::NoFile {
                    path: path.display().to_string(),
                    option,
                });
            }
        }
        Ok(files)
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// How a collection is read.
#[derive(Debug, Clone, Copy)]
pub struct CollectionRules {
    /// The rules of the NeMo Gym version that wrote the files.
    pub gym: &'static GymRules,
    /// Whether failures that another attempt may fix are retried even if agents call them terminal.
    pub retry_terminal_timeouts: bool,
    /// Whether rollouts whose judge gave no valid answer count as failed attempts.
    pub retry_invalid_judge_responses: bool,
}

/// Outcomes are passed on at this many rows, or bytes of answers.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A piece of what was read.
#[derive(Debug)]
pub enum Piece {
    /// Rows of [`crate::schema::tasks`].
    Tasks(RecordBatch),
    /// All rows of tasks so far are void; the reader sends them again.
    TasksAgain,
    /// Rows of [`crate::schema::outcomes`].
    Outcomes(RecordBatch),
}

/// Reads the files of a collection and sends their contents as batches. It blocks: call it on a thread of its own. In
/// memory it keeps the keys of the rollouts and a few batches.
///
/// # Errors
/// A file can't be read, or cannot be resumed from. Then what was sent must not be used.
pub fn read_collection(
    files: &CollectionFiles,
    rules: CollectionRules,
    output: &Sender<Piece>,
) -> Result<Collection, ImportError> {
    let mut reading = Reading {
        collection: Collection::default(),
        keys: TaskKeys::default(),
        rules,
        output,
        outcomes: OutcomeBatchBuilder::new(),
    };
    reading.inputs(&files.materialized_inputs, false)?;
    // Failures first: they say how many attempts an answer took.
    let failures = match &files.failures {
        Some(path) => Some(reading.failures(path)?),
        None => None,
    };
    reading.answers(&files.rollouts)?;
    reading.pass_outcomes_on()?;
    if reading.collection.settled_copies() > 0 {
        reading.send(Piece::TasksAgain)?;
        reading.inputs(&files.materialized_inputs, true)?;
    }
    let mut collection = reading.collection;
    collection.files.extend(failures);
    Ok(collection)
}

struct Reading<'a> {
    collection: Collection,
    keys: TaskKeys,
    rules: CollectionRules,
    output: &'a Sender<Piece>,
    outcomes: OutcomeBatchBuilder,
}

impl Reading<'_> {
    fn inputs(&mut self, path: &Path, is_second_reading: bool) -> Result<(), ImportError> {
        let mut inputs = Inputs::new(&path.display().to_string());
        let mut batch = TaskBatchBuilder::default();
        let mut copies: u64 = 0;
        self.collection.num_tasks = 0;
        if is_second_reading {
            self.collection.begin_second_reading();
        }
        let (file, torn) = for_each_whole_line(path, |line| {
            let before = self.collection.planned.len();
            let (keys, collection) = (&mut self.keys, &mut self.collection);
            let ended = inputs.add(&line, keys, collection, is_second_reading)?;
            copies += u64::from(self.collection.planned.len() == before);
            ended.map_or(Ok(()), |task| self.task(&mut batch, &task))
        })?;
        if let Some(Torn { number, why }) = torn {
            return Err(ImportError::Row {
                path: file.path,
                line: number,
                problem: RowProblem::Torn(why),
            });
        }
        if let Some(task) = inputs.finish() {
            self.task(&mut batch, &task)?;
        }
        if !batch.is_empty() {
            self.send(Piece::Tasks(batch.finish()?))?;
        }
        if !is_second_reading {
            let what = "rows have the key of an earlier row; like NeMo Gym, `collect --resume` sends them too, \
                        unless the rollout is done, and the run then has several answers for one rollout";
            self.warn(&file, copies, what);
            self.collection.files.insert(0, file);
        }
        Ok(())
    }

    fn task(&mut self, batch: &mut TaskBatchBuilder, task: &TaskRow) -> Result<(), ImportError> {
        self.collection.num_tasks += 1;
        batch.append(task)?;
        if batch.is_full() {
            self.send(Piece::Tasks(batch.finish()?))?;
        }
        Ok(())
    }

    fn failures(&mut self, path: &Path) -> Result<InputRecord, ImportError> {
        let (mut nothing, mut foreign): (u64, u64) = (0, 0);
        let (file, torn) = for_each_whole_line(path, |line: Line<'_>| {
            match flagged(&line, &mut self.keys, &mut self.collection, &self.rules)? {
                Found::Answer(outcome) | Found::Failure(outcome) => self.outcome(*outcome)?,
                Found::Foreign => foreign += 1,
                Found::Again | Found::Nothing => nothing += 1,
            }
            Ok(())
        })?;
        self.torn(&file, torn, "its attempt does not count");
        let what = "lines are blank or have no key of a rollout; they are left out";
        self.warn(&file, nothing, what);
        let what = "rows have a key that no materialized input has; they are left out";
        self.warn(&file, foreign, what);
        Ok(file)
    }

    fn answers(&mut self, path: &Path) -> Result<(), ImportError> {
        let (mut again, mut moved): (u64, u64) = (0, 0);
        let (file, torn) = for_each_whole_line(path, |line: Line<'_>| {
            match answer(&line, &mut self.keys, &mut self.collection, &self.rules)? {
                Found::Answer(outcome) => self.outcome(*outcome)?,
                Found::Failure(outcome) => {
                    moved += 1;
                    self.outcome(*outcome)?;
                }
                Found::Again => again += 1,
                Found::Foreign | Found::Nothing => {}
            }
            Ok(())
        })?;
        self.torn(&file, torn, "its rollout is pending again");
        let what = "rows have the key of an earlier row; the first of each key is kept";
        self.warn(&file, again, what);
        let what = "rows got no valid answer from their judge; they count as failed attempts, and are retried";
        self.warn(&file, moved, what);
        self.collection.files.push(file);
        Ok(())
    }

    fn torn(&mut self, file: &InputRecord, torn: Option<Torn>, what_follows: &str) {
        let torn = torn.map(|Torn { number, why }| {
            let path = &file.path;
            format!("'{path}': line {number}, the last, is torn ({why}); it is left out, and {what_follows}")
        });
        self.collection.warnings.extend(torn);
    }

    fn warn(&mut self, file: &InputRecord, count: u64, what: &str) {
        if count > 0 {
            let warning = format!("'{}': {count} {what}", file.path);
            self.collection.warnings.push(warning);
        }
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<(), ImportError> {
        self.outcomes.append(outcome)?;
        let is_full = self.outcomes.len() >= BATCH_ROWS || self.outcomes.num_bytes() >= BATCH_BYTES;
        if is_full {
            self.pass_outcomes_on()?;
        }
        Ok(())
    }

    fn pass_outcomes_on(&mut self) -> Result<(), ImportError> {
        if self.outcomes.is_empty() {
            return Ok(());
        }
        let batch = self.outcomes.finish()?;
        self.send(Piece::Outcomes(batch))
    }

    fn send(&self, piece: Piece) -> Result<(), ImportError> {
        let sent = self.output.blocking_send(piece);
        sent.map_err(|_| ImportError::Abandoned)
    }
}

/// Joins consecutive inputs of a task that differ only in the rollout's index.
struct Inputs {
    file: Arc<str>,
    open: Option<Open>,
}

struct Open {
    task: TaskRow,
    /// Its row with rollout index 0, to compare with the next line.
    shape: String,
}

impl Inputs {
    fn new(file: &str) -> Self {
        Self {
            file: Arc::from(file),
            open: None,
        }
    }

    /// Takes a line; returns the task that ended before it. A second reading leaves out the repeated inputs of a
    /// settled rollout.
    fn add(
        &mut self,
        line: &Line<'_>,
        keys: &mut TaskKeys,
        collection: &mut Collection,
        is_second_reading: bool,
    ) -> Result<Option<TaskRow>, ImportError> {
        let mut row = line.row()?;
        let key = keys.key(&row).map_err(|problem| line.problem(problem))?;
        // Rows of tasksets name the environment server that they go to, and no agent.
        let server = || row.get(ENVIRONMENT_SERVER).and_then(unquote);
        let name = agent_name(&row).or_else(|| server().map(Cow::into_owned));
        let name = name.ok_or_else(|| line.problem(RowProblem::NoAgent))?;
        if is_second_reading {
            if !collection.keeps(key) {
                return Ok(None);
            }
        } else {
            collection.plan(key, &name);
        }
        let request = row.to_string();
        let task_digest = task_digest(&row);
        row.set(ROLLOUT, "0");
        let shape = row.to_string();
        if let Some(Open { task, shape: open }) = &mut self.open
            && task.task_index == key.task_index
            && task
                .first_rollout_index
                .checked_add(task.num_repeats.into())
                == Some(key.rollout_index)
            && task.num_repeats < u32::MAX
            && *open == shape
        {
            task.num_repeats += 1;
            return Ok(None);
        }
        let task = TaskRow {
            task_index: key.task_index,
            first_rollout_index: key.rollout_index,
            num_repeats: 1,
            agent_name: Arc::from(name),
            source_file: Arc::clone(&self.file),
            source_line: line.number,
            task_digest,
            request,
        };
        Ok(self
            .open
            .replace(Open { task, shape })
            .map(|open| open.task))
    }

    /// Returns the last task.
    fn finish(self) -> Option<TaskRow> {
        self.open.map(|open| open.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_stand_side_by_side_unless_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["x.jsonl", "x_materialized_inputs.jsonl", "other.jsonl"] {
            std::fs::write(path(name), "").unwrap();
        }
        let found = CollectionFiles::find(&path("x"), None, None).unwrap();
        assert_eq!(found.rollouts, path("x.jsonl"));
        assert_eq!(found.failures, None);
        std::fs::write(path("x_failures.jsonl"), "").unwrap();
        let found = CollectionFiles::find(&path("x.jsonl"), None, None).unwrap();
        assert_eq!(found.failures, Some(path("x_failures.jsonl")));
        let other = Some(path("other.jsonl"));
        let found = CollectionFiles::find(&path("x"), other.clone(), other).unwrap();
        assert_eq!(found.materialized_inputs, path("other.jsonl"));
        assert_eq!(found.failures, Some(path("other.jsonl")));
    }

    #[test]
    fn a_missing_file_is_named_with_the_way_to_start_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("x.jsonl"), "").unwrap();
        let error = CollectionFiles::find(&folder.path().join("x"), None, None).unwrap_err();
        let text = error.to_string();
        for part in [
            "x_materialized_inputs.jsonl",
            "collect again",
            "collect --input",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
