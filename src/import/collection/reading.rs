use std::path::Path;

use arrow::record_batch::RecordBatch;
use tokio::sync::mpsc::Sender;

use super::super::error::ImportError;
use super::super::keys::TaskKeys;
use super::answers::{Answer, Flagged, answer, flagged};
use super::files::CollectionFiles;
use super::inputs::Inputs;
use super::ledger::Collection;
use super::rows::{Line, Torn, for_each_line};
use crate::gym::GymRules;
use crate::outcome::{Outcome, OutcomeBatchBuilder};
use crate::read::{TaskBatchBuilder, TaskRow};
use crate::store::InputRecord;

/// How a collection is read.
#[derive(Debug, Clone, Copy)]
pub struct CollectionRules {
    /// The version whose files they are.
    pub gym: &'static GymRules,
    /// Failures that another attempt can mend are not terminal, though agents say so.
    pub retry_terminal_timeouts: bool,
    /// Rollouts whose judge gave no valid answer are failed attempts.
    pub retry_invalid_judge_responses: bool,
}

/// Outcomes are passed on at this many rows, or bytes of answers.
const BATCH_ROWS: usize = 1024;
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// A batch of what was read.
#[derive(Debug)]
pub enum Piece {
    /// Rows of [`crate::schema::tasks`].
    Tasks(RecordBatch),
    /// All rows of tasks so far are void, and come again.
    TasksAgain,
    /// Rows of [`crate::schema::outcomes`].
    Outcomes(RecordBatch),
}

/// Reads the files of a collection and sends what they hold as batches. Blocks: call it on a thread of its own. In
/// memory it keeps the keys of the rollouts and a few batches.
///
/// # Errors
/// A file can't be read, or holds what cannot be gone on with. Then what was sent must not be used.
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
        let (file, torn) = for_each_line(path, |line| {
            let before = self.collection.planned.len();
            let (keys, collection) = (&mut self.keys, &mut self.collection);
            let ended = inputs.add(&line, keys, collection, is_second_reading)?;
            copies += u64::from(self.collection.planned.len() == before);
            ended.map_or(Ok(()), |task| self.task(&mut batch, &task))
        })?;
        if let Some(Torn { number, why }) = torn {
            return Err(ImportError::TornInputs {
                path: file.path,
                line: number,
                source: why,
            });
        }
        if let Some(task) = inputs.finish() {
            self.task(&mut batch, &task)?;
        }
        if !batch.is_empty() {
            self.send(Piece::Tasks(batch.finish()?))?;
        }
        if !is_second_reading {
            if copies > 0 {
                self.warn(&file, format_args!(
                    "{copies} rows have the key of an earlier row; like NeMo Gym, `collect --resume` sends them too, \
                     unless the rollout is done, and the run then has several answers for one rollout"
                ));
            }
            self.collection.files.insert(0, file);
        }
        Ok(())
    }

    fn task(&mut self, batch: &mut TaskBatchBuilder, task: &TaskRow) -> Result<(), ImportError> {
        self.collection.num_tasks += 1;
        batch.append(task)?;
        match batch.is_full() {
            true => self.send(Piece::Tasks(batch.finish()?)),
            false => Ok(()),
        }
    }

    fn failures(&mut self, path: &Path) -> Result<InputRecord, ImportError> {
        let (mut nothing, mut foreign): (u64, u64) = (0, 0);
        let (file, torn) = for_each_line(path, |line: Line<'_>| {
            match flagged(&line, &mut self.keys, &mut self.collection, &self.rules)? {
                Flagged::Attempt(outcome) => self.outcome(*outcome)?,
                Flagged::Foreign => foreign += 1,
                Flagged::Nothing => nothing += 1,
            }
            Ok(())
        })?;
        self.torn(&file, torn, "its attempt counts as not made");
        if nothing > 0 {
            let what = "lines are blank or have no key of a rollout; they are left out";
            self.warn(&file, format_args!("{nothing} {what}"));
        }
        if foreign > 0 {
            let what = "rows have a key that no materialized input has; they are left out";
            self.warn(&file, format_args!("{foreign} {what}"));
        }
        Ok(file)
    }

    fn answers(&mut self, path: &Path) -> Result<(), ImportError> {
        let (mut again, mut moved): (u64, u64) = (0, 0);
        let (file, torn) = for_each_line(path, |line: Line<'_>| {
            match answer(&line, &mut self.keys, &mut self.collection, &self.rules)? {
                Answer::First(outcome) => self.outcome(*outcome)?,
                Answer::Again => again += 1,
                Answer::Failed(Flagged::Attempt(outcome)) => {
                    moved += 1;
                    self.outcome(*outcome)?;
                }
                Answer::Failed(_) | Answer::Nothing => {}
            }
            Ok(())
        })?;
        self.torn(&file, torn, "its rollout is pending again");
        if again > 0 {
            let what = "rows have the key of an earlier row; the first of each key is kept";
            self.warn(&file, format_args!("{again} {what}"));
        }
        if moved > 0 {
            let what = "rows have no valid answer of their judge; they are failed attempts, and tried again";
            self.warn(&file, format_args!("{moved} {what}"));
        }
        self.collection.files.push(file);
        Ok(())
    }

    fn torn(&mut self, file: &InputRecord, torn: Option<Torn>, what_follows: &str) {
        if let Some(Torn { number, why }) = torn {
            self.warn(
                file,
                format_args!(
                    "line {number}, the last, is torn ({why}); it is left out, and {what_follows}"
                ),
            );
        }
    }

    fn warn(&mut self, file: &InputRecord, what: std::fmt::Arguments<'_>) {
        let warning = format!("'{}': {what}", file.path);
        self.collection.warnings.push(warning);
    }

    fn outcome(&mut self, outcome: Outcome) -> Result<(), ImportError> {
        self.outcomes.append(outcome)?;
        let is_full = self.outcomes.len() >= BATCH_ROWS || self.outcomes.num_bytes() >= BATCH_BYTES;
        if is_full {
            self.pass_outcomes_on()
        } else {
            Ok(())
        }
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
