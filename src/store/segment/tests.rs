//! Writers on several machines that die at any step, are stopped and come back, lose their disks, and take over from
//! each other: no rollout counts twice, and nothing that was acknowledged is lost.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Committed, Key, Ledger, Row, SegmentName};
use crate::store::LockScope;
use crate::store::journal::Origin;

const MACHINES: usize = 3;
const KEYS: i64 = 6;

type Rows = BTreeMap<SegmentName, Vec<Row>>;

/// The process died here.
struct Crash;

type Step = Result<(), Crash>;

/// A writer at work on a machine.
#[derive(Debug, Clone)]
struct Writer {
    machine: usize,
    number: u32,
    open: SegmentName,
    done: BTreeSet<Key>,
    next_attempt: BTreeMap<Key, i64>,
}

#[derive(Default)]
struct World {
    clock: i64,
    epoch: u64,
    answers: Rows,
    /// With whether the answer counts.
    attempts: BTreeMap<SegmentName, Vec<(Row, bool)>>,
    copies: Rows,
    journals: [Rows; MACHINES],
    /// The one that holds the lock.
    writer: Option<Writer>,
    /// Those that lost it and do not know it yet.
    stopped: Vec<Writer>,
    /// Steps to the crash.
    fuse: Option<u32>,
}

impl World {
    fn step(&mut self) -> Step {
        match &mut self.fuse {
            Some(0) => Err(Crash),
            Some(steps) => {
                *steps -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn committed(&self) -> Committed {
        Committed::new(self.answers.keys().copied(), self.attempts.keys().copied())
    }

    fn ledger(&self, keys: &HashSet<Key>, oldest: u64) -> Ledger {
        let mut ledger = Ledger::default();
        let is_late = |name: &SegmentName| name.epoch >= oldest;
        let answers = self.answers.iter().filter(|(name, _)| is_late(name));
        let answers = answers.flat_map(|(_, rows)| rows.iter().copied());
        ledger.add_rollouts(answers.filter(|row| keys.contains(&row.key)));
        let attempts = self.attempts.iter().filter(|(name, _)| is_late(name));
        let attempts = attempts.flat_map(|(_, rows)| rows.iter().map(|(row, _)| *row));
        ledger.add_attempts(attempts.filter(|row| keys.contains(&row.key)));
        ledger
    }

    /// Publishes rows with what was decided of them, in the order of the tables.
    fn commit(&mut self, to: SegmentName, rows: &[Row], decisions: &super::Decisions) -> Step {
        let numbered = |row: &Row| Row {
            attempt: decisions.of(row).number,
            ..*row
        };
        let answers: Vec<Row> = rows
            .iter()
            .filter(|row| decisions.of(row).rollout)
            .map(numbered)
            .collect();
        if !answers.is_empty() && !self.answers.contains_key(&to) {
            self.step()?;
            self.answers.insert(to, answers);
        }
        let attempts: Vec<(Row, bool)> = rows
            .iter()
            .filter(|row| decisions.of(row).attempt)
            .map(|row| (numbered(row), row.is_ok && !decisions.of(row).superseded))
            .collect();
        if (!attempts.is_empty() || self.answers.contains_key(&to))
            && !self.attempts.contains_key(&to)
        {
            self.step()?;
            self.attempts.insert(to, attempts);
        }
        Ok(())
    }

    /// The rows of a machine's journal, the newest first, with what is decided of them.
    fn decided(&self, machine: usize) -> Vec<(SegmentName, Vec<Row>, super::Decisions)> {
        let journal = &self.journals[machine];
        let names: Vec<SegmentName> = journal.keys().rev().copied().collect();
        let committed = self.committed();
        let doubtful: Vec<SegmentName> = names
            .iter()
            .copied()
            .filter(|name| committed.is_doubtful(*name, &names))
            .collect();
        let keys: HashSet<Key> = doubtful
            .iter()
            .flat_map(|name| &journal[name])
            .map(|row| row.key)
            .collect();
        let oldest = doubtful.iter().map(|name| name.epoch).min();
        let mut ledger = oldest.map_or_else(Ledger::default, |oldest| self.ledger(&keys, oldest));
        let mut decided = Vec::new();
        for name in names {
            let rows = journal[&name].clone();
            let decisions = if doubtful.is_empty() {
                super::Decisions::default()
            } else {
                ledger.decide(rows.iter().copied())
            };
            decided.push((name, rows, decisions));
        }
        decided
    }

    /// Takes the lock and recovers what earlier writers left.
    fn start(&mut self, machine: usize) -> Step {
        self.stopped.extend(self.writer.take());
        // Whoever starts on a machine waits until an earlier writer there has stopped.
        self.stopped.retain(|writer| writer.machine != machine);
        self.step()?;
        self.epoch += 1;
        let epoch = self.epoch;
        let mut number = 0;
        let mut name = || {
            number += 1;
            SegmentName {
                epoch,
                scope: LockScope::Run,
                origin: Origin::Partition(0),
                number,
            }
        };
        let committed = self.committed();
        for (copied, rows) in self.copies.clone() {
            let own = self.journals[machine].get(&copied).map_or(0, Vec::len);
            if !committed.is_whole(copied) && own < rows.len() {
                self.step()?;
                self.journals[machine].insert(copied, rows);
            }
        }
        let partial: Vec<SegmentName> = self.committed().partial().collect();
        for (segment, rows, decisions) in self.decided(machine) {
            if !self.committed().is_whole(segment) {
                self.commit(name(), &rows, &decisions)?;
            }
            self.step()?;
            self.journals[machine].remove(&segment);
        }
        for segment in partial {
            if self.committed().is_whole(segment) {
                continue;
            }
            let rows = self.answers[&segment].clone();
            let keys = rows.iter().map(|row| row.key).collect();
            let decisions = self
                .ledger(&keys, segment.epoch)
                .decide(rows.iter().copied());
            self.commit(name(), &rows, &decisions)?;
        }
        for copied in self.copies.keys().copied().collect::<Vec<_>>() {
            if !self.journals[machine].contains_key(&copied) {
                self.step()?;
                self.copies.remove(&copied);
            }
        }
        let done = self.answers.values().flatten().map(|row| row.key).collect();
        let mut next_attempt = BTreeMap::new();
        for (row, _) in self.attempts.values().flatten() {
            let next = next_attempt.entry(row.key).or_insert(0);
            *next = (*next).max(row.attempt + 1);
        }
        self.writer = Some(Writer {
            machine,
            open: name(),
            number,
            done,
            next_attempt,
        });
        Ok(())
    }

    /// An attempt ends and is acknowledged: its row is in the journal.
    fn answer(&mut self, writer: &mut Writer, key: Key, is_ok: bool) {
        if writer.done.contains(&key) {
            return;
        }
        self.clock += 1;
        let attempt = writer.next_attempt.entry(key).or_insert(0);
        let row = Row {
            key,
            at: self.clock,
            attempt: *attempt,
            is_ok,
        };
        *attempt += 1;
        if is_ok {
            writer.done.insert(key);
        }
        self.journals[writer.machine]
            .entry(writer.open)
            .or_default()
            .push(row);
    }

    fn checkpoint(&mut self, writer: &Writer) {
        if let Some(rows) = self.journals[writer.machine].get(&writer.open) {
            self.copies.insert(writer.open, rows.clone());
        }
    }

    /// The writer's own segment becomes parts.
    fn land(&mut self, writer: &mut Writer) -> Step {
        let Some(rows) = self.journals[writer.machine].get(&writer.open).cloned() else {
            return Ok(());
        };
        self.commit(writer.open, &rows, &super::Decisions::default())?;
        self.step()?;
        self.journals[writer.machine].remove(&writer.open);
        self.step()?;
        self.copies.remove(&writer.open);
        writer.number += 1;
        writer.open.number = writer.number;
        Ok(())
    }

    fn check(&self) {
        let mut keys = HashSet::new();
        for row in self.answers.values().flatten() {
            assert!(keys.insert(row.key), "{:?} counts twice", row.key);
        }
        let (mut dispatches, mut numbers) = (HashSet::new(), HashSet::new());
        for (row, _) in self.attempts.values().flatten() {
            assert!(
                dispatches.insert((row.key, row.at)),
                "{row:?} is on record twice"
            );
            assert!(
                numbers.insert((row.key, row.attempt)),
                "two attempts are {row:?}"
            );
        }
        for machine in 0..MACHINES {
            self.check_reader(machine);
        }
    }

    /// What somebody sees who looks at the parts and the journal of a machine.
    fn check_reader(&self, machine: usize) {
        let committed = self.committed();
        let mut answers: Vec<Row> = self.answers.values().flatten().copied().collect();
        let mut attempts: Vec<Row> = self
            .attempts
            .values()
            .flatten()
            .map(|(row, _)| *row)
            .collect();
        for (name, rows, decisions) in self.decided(machine) {
            if committed.is_whole(name) {
                continue;
            }
            let rows = || rows.iter().map(|row| (row, decisions.of(row)));
            if !self.answers.contains_key(&name) {
                answers.extend(rows().filter(|(_, of)| of.rollout).map(|(row, _)| *row));
            }
            attempts.extend(rows().filter(|(_, of)| of.attempt).map(|(row, _)| *row));
        }
        let mut keys = HashSet::new();
        assert!(
            answers.iter().all(|row| keys.insert(row.key)),
            "a reader of {machine} counts twice"
        );
        let mut dispatches = HashSet::new();
        assert!(
            attempts
                .iter()
                .all(|row| dispatches.insert((row.key, row.at))),
            "a reader of {machine} sees twice"
        );
    }
}

#[derive(Debug, Clone)]
enum Event {
    /// A writer starts on a machine, and dies after so many steps, if it does.
    Start(usize, Option<u32>),
    Answer(i64, bool),
    /// One that was stopped goes on for a moment.
    LateAnswer(i64),
    LateCheckpoint,
    Checkpoint,
    Land(Option<u32>),
    Kill,
    LoseDisk(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let fuse = || prop::option::weighted(0.5, 0_u32..12);
    prop_oneof![
        3 => (0..MACHINES, fuse()).prop_map(|(machine, fuse)| Event::Start(machine, fuse)),
        8 => (0..KEYS, prop::bool::weighted(0.7)).prop_map(|(key, is_ok)| Event::Answer(key, is_ok)),
        2 => (0..KEYS).prop_map(Event::LateAnswer),
        1 => Just(Event::LateCheckpoint),
        2 => Just(Event::Checkpoint),
        2 => fuse().prop_map(Event::Land),
        1 => Just(Event::Kill),
        1 => (0..MACHINES).prop_map(Event::LoseDisk),
    ]
}

fn play(events: Vec<Event>) {
    let mut world = World::default();
    for event in events {
        match event {
            Event::Start(machine, fuse) => {
                world.fuse = fuse;
                if world.start(machine).is_err() {
                    world.writer = None;
                }
            }
            Event::Answer(task, is_ok) => {
                if let Some(mut writer) = world.writer.take() {
                    world.answer(&mut writer, (task, 0), is_ok);
                    world.writer = Some(writer);
                }
            }
            Event::LateAnswer(task) => {
                if let Some(mut writer) = world.stopped.pop() {
                    world.answer(&mut writer, (task, 0), true);
                    world.stopped.push(writer);
                }
            }
            Event::LateCheckpoint => {
                if let Some(writer) = world.stopped.last().cloned() {
                    world.checkpoint(&writer);
                }
            }
            Event::Checkpoint => {
                if let Some(writer) = world.writer.clone() {
                    world.checkpoint(&writer);
                }
            }
            Event::Land(fuse) => {
                world.fuse = fuse;
                if let Some(mut writer) = world.writer.take()
                    && world.land(&mut writer).is_ok()
                {
                    world.writer = Some(writer);
                }
            }
            Event::Kill => world.writer = None,
            Event::LoseDisk(machine) => {
                world.journals[machine].clear();
                world.stopped.retain(|writer| writer.machine != machine);
                if world
                    .writer
                    .as_ref()
                    .is_some_and(|writer| writer.machine == machine)
                {
                    world.writer = None;
                }
            }
        }
        world.fuse = None;
        world.check();
    }
    let acknowledged: Vec<Row> = world
        .journals
        .iter()
        .flat_map(|journal| journal.values().flatten())
        .copied()
        .collect();
    for machine in 0..MACHINES {
        assert!(world.start(machine).is_ok());
        world.check();
    }
    let answered: HashSet<Key> = world
        .answers
        .values()
        .flatten()
        .map(|row| row.key)
        .collect();
    let attempted: HashSet<(Key, i64)> = world
        .attempts
        .values()
        .flatten()
        .map(|(row, _)| (row.key, row.at))
        .collect();
    for row in acknowledged {
        assert!(
            !row.is_ok || answered.contains(&row.key),
            "the answer of {row:?} is lost"
        );
        assert!(attempted.contains(&(row.key, row.at)), "{row:?} is lost");
    }
    // Each answer that counts has its one attempt that says so.
    let counts = world
        .attempts
        .values()
        .flatten()
        .filter(|(_, counts)| *counts);
    let counts: BTreeSet<(Key, i64, i64)> = counts
        .map(|(row, _)| (row.key, row.at, row.attempt))
        .collect();
    let answers = world.answers.values().flatten();
    let answers: BTreeSet<(Key, i64, i64)> =
        answers.map(|row| (row.key, row.at, row.attempt)).collect();
    assert_eq!(counts, answers);
    assert!(world.journals.iter().all(BTreeMap::is_empty) && world.copies.is_empty());
}

/// Schedules to play; `ROLLSTREAM_TEST_FULL` asks for many.
fn cases() -> u32 {
    match std::env::var_os("ROLLSTREAM_TEST_FULL") {
        Some(_) => 40_000,
        None => 4_000,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_rollout_counts_twice_and_nothing_acknowledged_is_lost(events in vec(event(), 1..60)) {
        play(events);
    }
}
