//! Whether what a sweep left behind is what happened: its Parquet parts, read by other code than the program's own,
//! against every request that the agent recorded and all that it had planned to answer.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int32Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollstream::sim::{FaultKind, Key, Planned, Profile, RowDifficulty};
use serde::Deserialize;
use serde_json::Value;

use super::ledger::{column, integers, keys, parts};

/// What was to be done.
#[derive(Debug)]
pub struct Plan {
    pub num_tasks: u64,
    pub num_repeats: u64,
    /// The agent's.
    pub profile: Profile,
}

/// What was found of a sweep whose accounts are exact.
#[derive(Debug, Default, Clone, Copy)]
pub struct Account {
    pub planned: u64,
    pub done: u64,
    pub failed: u64,
    /// Zero, unless the sweep was stopped.
    pub pending: u64,
    pub attempts: u64,
    pub requests: u64,
    pub interrupted: u64,
    /// Attempts that no server knows of: cut off before they arrived, or without a connection.
    pub unseen: u64,
    /// Attempts that met with no fault and took too long all the same.
    pub late: u64,
}

/// A request, as the agent tells of it.
#[derive(Debug, Deserialize)]
pub struct Request {
    number: u64,
    task_index: u64,
    rollout_index: u64,
    attempt: u64,
}

/// A row of `attempts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Attempt {
    /// Number of the rollout: that of the task times the rollouts of each, and the rollout.
    rollout: u64,
    attempt: u64,
    end: End,
    has_status: bool,
    is_terminal: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Ok,
    Infra,
    Data,
    Timeout,
    Flagged,
    NotPersisted,
    Interrupted,
}

impl Plan {
    pub fn num_rollouts(&self) -> u64 {
        self.num_tasks * self.num_repeats
    }

    fn number(&self, task: i64, rollout: i64) -> anyhow::Result<u64> {
        let (task, rollout) = (u64::try_from(task)?, u64::try_from(rollout)?);
        let is_planned = task < self.num_tasks && rollout < self.num_repeats;
        ensure!(
            is_planned,
            "rollout {rollout} of task {task} is not planned"
        );
        Ok(task * self.num_repeats + rollout)
    }

    fn planned(&self, number: u64, attempt: u64) -> Planned {
        let key = Key {
            task: number / self.num_repeats,
            rollout: number % self.num_repeats,
            attempt,
        };
        self.profile.plan(key, RowDifficulty::Medium)
    }

    fn name(&self, number: u64, attempt: u64) -> String {
        let (task, rollout) = (number / self.num_repeats, number % self.num_repeats);
        format!("task {task}, rollout {rollout}, attempt {attempt}")
    }

    /// Compares a run with the requests, which are in the order in which they came.
    ///
    /// # Errors
    /// The first difference.
    pub fn account(&self, run: &Path, requests: Vec<Request>) -> anyhow::Result<Account> {
        let attempts = self.attempts(run)?;
        let answered = self.every_rollout_is_settled(&attempts)?;
        let mut account = self.counts(&answered, &attempts);
        self.rollouts_are_what_was_answered(run, &answered)?;
        let requests = self.requests(requests)?;
        account.requests = requests.len() as u64;
        account.unseen = self.requests_have_rows(&requests, &attempts)?;
        account.late = self.attempts_ended_as_planned(&attempts)?;
        let counts = &counts(run)?;
        let expected = [
            ("planned", account.planned),
            ("done", account.done),
            ("failed", account.failed),
            ("pending", account.pending),
        ];
        for (name, count) in expected {
            let said = &counts[name];
            ensure!(*said == count, "run.json says {name}: {said}, not {count}");
        }
        Ok(account)
    }

    fn counts(&self, settled: &[Settled], attempts: &[Attempt]) -> Account {
        let count =
            |which: fn(&Settled) -> bool| settled.iter().filter(|s| which(s)).count() as u64;
        let interrupted = attempts.iter();
        let interrupted = interrupted.filter(|row| row.end == End::Interrupted);
        Account {
            planned: self.num_rollouts(),
            done: count(|settled| matches!(settled, Settled::Done { .. })),
            failed: count(|settled| *settled == Settled::Failed),
            pending: count(|settled| *settled == Settled::Pending),
            attempts: attempts.len() as u64,
            interrupted: interrupted.count() as u64,
            ..Account::default()
        }
    }

    /// All attempts, sorted; none is there twice.
    fn attempts(&self, run: &Path) -> anyhow::Result<Vec<Attempt>> {
        let mut attempts = Vec::new();
        let columns = [
            "task_index",
            "rollout_index",
            "attempt",
            "outcome",
            "http_status",
            "terminal",
        ];
        read(run, "attempts", &columns, |batch| {
            let numbers = integers(batch, "attempt");
            let outcomes = column(batch, "outcome").as_string::<i32>();
            let statuses = column(batch, "http_status").as_primitive::<Int32Type>();
            let terminal = column(batch, "terminal").as_boolean();
            for (row, ((task, rollout), attempt)) in
                keys(batch).into_iter().zip(numbers).enumerate()
            {
                attempts.push(Attempt {
                    rollout: self.number(task, rollout)?,
                    attempt: u64::try_from(attempt)?,
                    end: end(outcomes.value(row))?,
                    has_status: statuses.is_valid(row),
                    is_terminal: terminal.value(row),
                });
            }
            Ok(())
        })?;
        attempts.sort_unstable();
        Ok(attempts)
    }

    /// Attempts at each rollout are numbered without gaps, and none follows one that settled it.
    fn every_rollout_is_settled(&self, attempts: &[Attempt]) -> anyhow::Result<Vec<Settled>> {
        let mut settled = vec![Settled::Pending; usize::try_from(self.num_rollouts())?];
        for of_rollout in attempts.chunk_by(|one, next| one.rollout == next.rollout) {
            let mut end = Settled::Pending;
            for (number, row) in of_rollout.iter().enumerate() {
                let name = || self.name(row.rollout, row.attempt);
                ensure!(row.attempt == number as u64, "{}: not in sequence", name());
                ensure!(end == Settled::Pending, "{}: after the last", name());
                let attempt = row.attempt;
                end = match row {
                    row if row.end == End::Ok => Settled::Done { attempt },
                    row if row.is_terminal => Settled::Failed,
                    _ => Settled::Pending,
                };
            }
            let rollout = of_rollout.first().map_or(0, |row| row.rollout);
            let place = usize::try_from(rollout)?;
            *settled.get_mut(place).context("not planned")? = end;
        }
        Ok(settled)
    }

    /// Each rollout that is done is there once, with the answer that the agent gave to that attempt.
    fn rollouts_are_what_was_answered(
        &self,
        run: &Path,
        settled: &[Settled],
    ) -> anyhow::Result<()> {
        #[derive(Deserialize)]
        struct Answer {
            response: Response,
        }
        #[derive(Deserialize)]
        struct Response {
            id: String,
        }
        let mut pending = settled.to_vec();
        let columns = ["task_index", "rollout_index", "attempt", "reward", "result"];
        read(run, "rollouts", &columns, |batch| {
            let numbers = integers(batch, "attempt");
            let rewards = column(batch, "reward").as_primitive::<Float64Type>();
            let results = column(batch, "result").as_string::<i32>();
            for (row, ((task, rollout), attempt)) in
                keys(batch).into_iter().zip(numbers).enumerate()
            {
                let (number, attempt) = (self.number(task, rollout)?, u64::try_from(attempt)?);
                let name = || self.name(number, attempt);
                let pending = pending.get_mut(usize::try_from(number)?);
                let pending = pending.context("not planned")?;
                ensure!(
                    *pending == Settled::Done { attempt },
                    "{}: landed, but it was {pending:?}",
                    name()
                );
                *pending = Settled::Pending;
                let planned = self.planned(number, attempt);
                let answer: Answer = serde_json::from_str(results.value(row))?;
                let id = format!("resp_{:016x}", planned.answer_id);
                let is_right = planned.gives_rollout()
                    && answer.response.id == id
                    && rewards.is_valid(row)
                    && rewards.value(row) == planned.reward;
                ensure!(is_right, "{}: not what was answered", name());
            }
            Ok(())
        })?;
        let lost = pending
            .iter()
            .position(|pending| matches!(pending, Settled::Done { .. }));
        match lost {
            Some(number) => bail!("{}: lost", self.name(number as u64, 0)),
            None => Ok(()),
        }
    }

    /// Rollouts and attempts that were asked for, sorted; the agent has forgotten none.
    fn requests(&self, requests: Vec<Request>) -> anyhow::Result<Vec<(u64, u64)>> {
        let mut asked = Vec::with_capacity(requests.len());
        for (number, request) in requests.into_iter().enumerate() {
            ensure!(
                request.number == number as u64,
                "the agent has forgotten requests: make the sweep smaller"
            );
            let (task, rollout) = (request.task_index, request.rollout_index);
            let rollout = self.number(i64::try_from(task)?, i64::try_from(rollout)?)?;
            asked.push((rollout, request.attempt));
        }
        asked.sort_unstable();
        for pair in asked.windows(2) {
            if let [one, next] = pair {
                ensure!(one != next, "{}: sent twice", self.name(one.0, one.1));
            }
        }
        Ok(asked)
    }

    /// Each request has its row; a row without one was cut off, or had no connection. Gives the number of these.
    fn requests_have_rows(
        &self,
        requests: &[(u64, u64)],
        attempts: &[Attempt],
    ) -> anyhow::Result<u64> {
        let mut requests = requests.iter().peekable();
        let mut unseen = 0;
        for row in attempts {
            let key = (row.rollout, row.attempt);
            if requests.next_if(|request| **request == key).is_some() {
                continue;
            }
            if let Some(request) = requests.next_if(|request| **request < key) {
                bail!("{}: no row", self.name(request.0, request.1));
            }
            let was_not_sent = match row.end {
                End::Interrupted => true,
                End::Infra | End::Timeout => !row.has_status,
                _ => false,
            };
            let name = || self.name(row.rollout, row.attempt);
            ensure!(was_not_sent, "{}: {row:?}, but nobody was asked", name());
            unseen += 1;
        }
        match requests.next() {
            Some(request) => bail!("{}: no row", self.name(request.0, request.1)),
            None => Ok(unseen),
        }
    }

    /// What is on record of an attempt is what the agent did to it, unless it was cut off. Gives the number of those that
    /// took too long without a fault.
    fn attempts_ended_as_planned(&self, attempts: &[Attempt]) -> anyhow::Result<u64> {
        let mut late = 0;
        for row in attempts {
            let planned = self.planned(row.rollout, row.attempt);
            let expected = match planned.fault {
                _ if planned.gives_rollout() => End::Ok,
                Some(FaultKind::Hang) => End::Timeout,
                Some(FaultKind::FailureClass | FaultKind::FailureTerminal) => End::Flagged,
                Some(FaultKind::NoPersist) => End::NotPersisted,
                Some(
                    FaultKind::Error500
                    | FaultKind::Error503
                    | FaultKind::RateLimited429
                    | FaultKind::RateLimitedDate
                    | FaultKind::RateLimitedReset
                    | FaultKind::Reset
                    | FaultKind::Fin
                    | FaultKind::TruncatedBody,
                ) => End::Infra,
                _ => End::Data,
            };
            match row.end {
                End::Interrupted => {}
                end if end == expected => {}
                // A machine that is busy can be too slow for any call.
                End::Timeout => late += 1,
                end => bail!(
                    "{}: {end:?} after {:?}",
                    self.name(row.rollout, row.attempt),
                    planned.fault
                ),
            }
        }
        Ok(late)
    }
}

/// What became of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settled {
    Done { attempt: u64 },
    Failed,
    Pending,
}

fn end(outcome: &str) -> anyhow::Result<End> {
    Ok(match outcome {
        "ok" => End::Ok,
        "infra" => End::Infra,
        "data" => End::Data,
        "timeout" => End::Timeout,
        "agent_flagged" => End::Flagged,
        "not_persisted" => End::NotPersisted,
        "interrupted" => End::Interrupted,
        other => bail!("there is no outcome '{other}'"),
    })
}

/// The counts of `run.json`.
pub fn counts(run: &Path) -> anyhow::Result<Value> {
    let path = run.join("run.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let run: Value = serde_json::from_slice(&text)?;
    Ok(run["rollouts"].clone())
}

/// Hands over a table of a run, a batch at a time.
fn read(
    run: &Path,
    table: &str,
    columns: &[&str],
    mut take: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for part in parts(run, table) {
        let mut read = || {
            let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&part)?)?;
            let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
            for batch in builder.with_projection(mask).build()? {
                take(&batch?)?;
            }
            anyhow::Ok(())
        };
        read().with_context(|| part.display().to_string())?;
    }
    Ok(())
}
