//! Which rows of a segment count where another writer may have written the same rollouts again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use arrow::error::ArrowError;

use super::SegmentName;
use crate::outcome::{OK, SUPERSEDED, attempts_of, calls_of, column, rollouts_of};
use crate::schema;

/// Task and rollout.
pub type Key = (i64, i64);

/// An attempt, identified by its rollout and the time of its dispatch: writers that know nothing of each other may give two
/// attempts the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    /// Task and rollout.
    pub key: Key,
    /// When it was dispatched, in microseconds since the epoch.
    pub at: i64,
    /// Its number.
    pub attempt: i64,
    /// It gave the rollout.
    pub is_ok: bool,
}

impl Row {
    /// Reads the rows of a batch of outcomes, or of `rollouts`, whose rows are all `ok`.
    ///
    /// # Errors
    /// The batch lacks a column.
    pub fn of(batch: &RecordBatch) -> Result<Vec<Self>, ArrowError> {
        let (tasks, rollouts) = (
            integers(batch, schema::TASK_INDEX)?,
            integers(batch, schema::ROLLOUT_INDEX)?,
        );
        let attempts = integers(batch, schema::ATTEMPT)?;
        let outcomes = batch.column_by_name(schema::OUTCOME);
        let outcomes = outcomes.and_then(|column| column.as_string_view_opt());
        let times = match outcomes {
            Some(_) => schema::DISPATCHED_AT,
            None => schema::STARTED_AT,
        };
        let times = column(batch, times)?.as_primitive_opt::<TimestampMicrosecondType>();
        let times = times
            .map(|times| times.values().as_ref())
            .unwrap_or_default();
        let rows = tasks.iter().zip(rollouts).zip(attempts).zip(times);
        let rows = rows
            .enumerate()
            .map(|(row, (((task, rollout), attempt), at))| Self {
                key: (*task, *rollout),
                at: *at,
                attempt: *attempt,
                is_ok: outcomes.is_none_or(|outcomes| outcomes.value(row) == OK),
            });
        Ok(rows.collect())
    }
}

/// The answers and attempts of some rollouts that are known to count.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Dispatch and number of the attempt whose answer counts.
    rollouts: HashMap<Key, (i64, i64)>,
    /// Dispatch and number of every attempt on record.
    attempts: HashMap<Key, Vec<(i64, i64)>>,
}

/// The decision on a row of a segment that is not simply kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decision {
    /// Its answer counts.
    pub(super) rollout: bool,
    /// It is not on record yet.
    pub(super) attempt: bool,
    /// The number that it has on record: another attempt may have its own.
    pub(super) number: i64,
    /// Another attempt's answer counts instead of its own.
    pub(super) superseded: bool,
}

impl Decision {
    fn plain(row: &Row) -> Self {
        Self {
            rollout: row.is_ok,
            attempt: true,
            number: row.attempt,
            superseded: false,
        }
    }
}

impl Ledger {
    /// Adds rows of `rollouts`.
    pub fn add_rollouts(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.rollouts
                .entry(row.key)
                .or_insert((row.at, row.attempt));
        }
    }

    /// Adds rows of `attempts`.
    pub fn add_attempts(&mut self, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            let of_key = self.attempts.entry(row.key).or_default();
            of_key.push((row.at, row.attempt));
        }
    }

    /// The least number that no attempt at the rollout has.
    pub fn next_attempt(&self, key: Key) -> i64 {
        let numbers = self.numbers(key).map(|number| number + 1);
        numbers.max().unwrap_or_default()
    }

    /// The numbers that attempts at a rollout have. The number of an answer whose attempt is not on record yet counts too.
    fn numbers(&self, key: Key) -> impl Iterator<Item = i64> + '_ {
        let attempts = self.attempts.get(&key).into_iter().flatten();
        attempts
            .chain(self.rollouts.get(&key))
            .map(|(_, number)| *number)
    }

    /// Decides which rows of a segment count beside what is known, and adds these to what is known.
    ///
    /// An answer counts unless the rollout has one. An attempt goes on record unless it is there. So a segment that
    /// was committed in part, or by another writer from a copy that was shorter, is completed and not repeated.
    pub fn decide(&mut self, rows: impl IntoIterator<Item = Row>) -> Decisions {
        let mut decisions = Decisions::default();
        for row in rows {
            let decision = self.decide_one(row);
            if decision != Decision::plain(&row) {
                decisions.0.insert((row.key, row.at), decision);
            }
        }
        decisions
    }

    fn decide_one(&mut self, row: Row) -> Decision {
        let answered = self.rollouts.get(&row.key).copied();
        let on_record = self.attempts.get(&row.key).into_iter().flatten();
        let on_record = on_record.clone().find(|(at, _)| *at == row.at).copied();
        let own_answer = answered.filter(|(at, _)| *at == row.at);
        let is_taken = || self.numbers(row.key).any(|number| number == row.attempt);
        let number = match on_record.or(own_answer) {
            Some((_, number)) => number,
            None if is_taken() => self.next_attempt(row.key),
            None => row.attempt,
        };
        let decision = Decision {
            rollout: row.is_ok && answered.is_none(),
            attempt: on_record.is_none(),
            number,
            superseded: row.is_ok && answered.is_some() && own_answer.is_none(),
        };
        if decision.rollout {
            self.rollouts.insert(row.key, (row.at, number));
        }
        if decision.attempt {
            let of_key = self.attempts.entry(row.key).or_default();
            of_key.push((row.at, number));
        }
        decision
    }
}

/// The decisions on the rows of a segment that are not simply kept.
#[derive(Debug, Clone, Default)]
pub struct Decisions(HashMap<(Key, i64), Decision>);

impl Decisions {
    pub(super) fn of(&self, row: &Row) -> Decision {
        let decision = self.0.get(&(row.key, row.at)).copied();
        decision.unwrap_or_else(|| Decision::plain(row))
    }

    /// Rows of the segment that are on record already.
    pub fn num_repeated(&self) -> usize {
        self.0.values().filter(|of| !of.attempt).count()
    }

    /// Answers that do not count since the rollout has another.
    pub fn num_superseded(&self) -> usize {
        let superseded = |of: &&Decision| of.attempt && of.superseded;
        self.0.values().filter(superseded).count()
    }

    /// The rows of `rollouts`, `calls` or `attempts` that outcomes become.
    ///
    /// # Errors
    /// The batch lacks a column.
    pub fn rows_of(&self, table: &str, outcomes: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        match table {
            schema::ROLLOUTS => rollouts_of(&self.apply(outcomes, |of| of.rollout)?),
            schema::CALLS => calls_of(&self.apply(outcomes, |of| of.attempt)?),
            _ => attempts_of(&self.apply(outcomes, |of| of.attempt)?),
        }
    }

    fn apply(
        &self,
        outcomes: &RecordBatch,
        keep: impl Fn(&Decision) -> bool,
    ) -> Result<RecordBatch, ArrowError> {
        if self.0.is_empty() {
            return Ok(outcomes.clone());
        }
        let rows = Row::of(outcomes)?;
        let decisions: Vec<Decision> = rows.iter().map(|row| self.of(row)).collect();
        let numbers = decisions.iter().map(|decision| decision.number);
        let numbers = Int64Array::from_iter_values(numbers);
        let names = column(outcomes, schema::OUTCOME)?.as_string_view().iter();
        let names: StringViewArray = names
            .zip(&decisions)
            .map(|(name, decision)| {
                let superseded = decision.superseded.then_some(SUPERSEDED);
                superseded.or(name)
            })
            .collect();
        let schema = outcomes.schema();
        let fields = schema.fields().iter().zip(outcomes.columns());
        let columns = fields.map(|(field, column)| -> ArrayRef {
            match field.name().as_str() {
                schema::ATTEMPT => Arc::new(numbers.clone()),
                schema::OUTCOME => Arc::new(names.clone()),
                _ => Arc::clone(column),
            }
        });
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect())?;
        let kept = decisions.iter().map(|decision| Some(keep(decision)));
        filter_record_batch(&batch, &kept.collect::<BooleanArray>())
    }
}

fn integers<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a [i64], ArrowError> {
    let integers = column(batch, name)?.as_primitive_opt::<Int64Type>();
    Ok(integers
        .map(|integers| integers.values().as_ref())
        .unwrap_or_default())
}

/// The segments that the parts of a run were made of.
#[derive(Debug, Default, Clone)]
pub struct Committed {
    answers: BTreeSet<SegmentName>,
    attempts: BTreeSet<SegmentName>,
}

impl Committed {
    /// Those of the parts of `rollouts` and `calls`, and of `attempts`, which come last.
    pub fn new(
        answers: impl IntoIterator<Item = SegmentName>,
        attempts: impl IntoIterator<Item = SegmentName>,
    ) -> Self {
        Self {
            answers: answers.into_iter().collect(),
            attempts: attempts.into_iter().collect(),
        }
    }

    /// Segments of which something is published and something not: their writer died in between.
    pub fn partial(&self) -> impl Iterator<Item = SegmentName> + '_ {
        self.answers.difference(&self.attempts).copied()
    }

    /// Whether all of a segment is published.
    pub fn is_whole(&self, segment: SegmentName) -> bool {
        self.attempts.contains(&segment)
    }

    /// Whether rows of a segment of `journal` may count already: in part, or because another writer took its writer's
    /// place since. What was there before its writer began, that one knew.
    pub fn is_doubtful(&self, segment: SegmentName, journal: &[SegmentName]) -> bool {
        let mut others = self.answers.iter().chain(&self.attempts).chain(journal);
        let is_partial = self.answers.contains(&segment) && !self.is_whole(segment);
        is_partial || others.any(|other| segment.may_be_superseded_by(other))
    }
}
