//! What is under way when the process ends: a new run, one that is resumed, one that is extended, one that is replaced.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::preload::{CrashPoint, Side};
use super::sweep::{Sweep, TASKS};
use crate::faults::load::is_full;

/// Points of each scenario where the environment asks for no more.
const POINTS: usize = 16;

/// How often a point is looked for that a sweep did not reach.
const ATTEMPTS: usize = 3;

struct Scenario {
    name: &'static str,
    /// What there is before.
    prepare: fn() -> Sweep,
    /// Options of the sweep that is ended.
    options: &'static str,
    /// Options that go on with what it left.
    resumed: &'static str,
}

#[test]
fn a_new_run() {
    every_point_of(&Scenario {
        name: "a new run",
        prepare: || Sweep::new(TASKS),
        options: "",
        resumed: "--resume",
    });
}

#[test]
fn a_run_that_is_resumed() {
    every_point_of(&Scenario {
        name: "a run that is resumed",
        prepare: || {
            let sweep = Sweep::new(TASKS);
            // A part of `rollouts` is there and none of `attempts`, the journal holds more, and calls are in flight.
            let point = CrashPoint::first(Side::Before, "/attempts");
            let (ended, changes) = sweep.collect_to(point, "");
            assert_eq!(ended.code, None, "never killed: {ended:#?} {changes:#?}");
            sweep
        },
        options: "--resume",
        resumed: "--resume",
    });
}

#[test]
fn a_run_that_is_extended() {
    every_point_of(&Scenario {
        name: "a run that is extended",
        prepare: || {
            let sweep = Sweep::new(TASKS - 4);
            sweep.collect("").run().succeeded();
            sweep.with_tasks(TASKS)
        },
        options: "--resume --extend",
        resumed: "--resume --extend",
    });
}

#[test]
fn a_run_that_is_replaced_by_one_with_other_tasks() {
    every_point_of(&Scenario {
        name: "a run that is replaced",
        prepare: || {
            let sweep = Sweep::new(TASKS);
            sweep.collect("").run().succeeded();
            sweep.replaced()
        },
        options: "--overwrite",
        resumed: "--resume",
    });
}

/// Ends the sweep at points spread over all of its changes, each time anew, and goes on with what it left.
#[track_caller]
fn every_point_of(scenario: &Scenario) {
    let counted = (scenario.prepare)();
    let (ended, changes) = counted.collect_to(CrashPoint::NEVER, scenario.options);
    ended.succeeded();
    counted.is_whole();
    let all = points(changes.len());
    assert!(changes.len() > 10, "too few changes: {changes:#?}");
    let mut kills = 0;
    let mut failures = Vec::new();
    for (which, point) in all.iter().enumerate() {
        let result = catch_unwind(AssertUnwindSafe(|| end_at(*point, which, scenario)));
        match result {
            Ok(is_killed) => kills += usize::from(is_killed),
            Err(_) => failures.push(point),
        }
    }
    let of = all.len();
    println!(
        "{}: {} changes, {kills} kills at {of} points",
        scenario.name,
        changes.len()
    );
    assert!(
        failures.is_empty(),
        "{} of {of}: {failures:#?}",
        failures.len()
    );
    assert!(kills * 2 > of, "{kills} kills at {of} points");
}

/// Whether the process was killed. A sweep that makes fewer changes than the one that was counted, because other
/// threads were faster this time, is begun again with a point among those that it makes.
#[track_caller]
fn end_at(point: CrashPoint, which: usize, scenario: &Scenario) -> bool {
    let Some(sweep) = ended_at(point, scenario) else {
        return false;
    };
    sweep.is_readable();
    if which.is_multiple_of(2) {
        sweep.status_adds_up();
    }
    let mut ended = sweep.collect(scenario.resumed).run();
    if ended.code == Some(2) && scenario.options == "--overwrite" {
        // It was not replaced yet: nothing of the new run had begun.
        ended = sweep.collect(scenario.options).run();
    }
    ended.succeeded();
    sweep.is_whole();
    true
}

/// What the sweep left that was killed; none where it was faster than the kill, and is whole.
#[track_caller]
fn ended_at(mut point: CrashPoint, scenario: &Scenario) -> Option<Sweep> {
    for _ in 0..ATTEMPTS {
        let sweep = (scenario.prepare)();
        let (ended, changes) = sweep.collect_to(point, scenario.options);
        // Only shown where something is wrong.
        let change = changes.get(point.number - 1);
        println!("--- {}, {point:?}: {change:?}", scenario.name);
        if ended.code.is_none() {
            return Some(sweep);
        }
        ended.succeeded();
        sweep.is_whole();
        point = point.nth(1 + point.number % changes.len());
    }
    None
}

/// Before and after each change, or as many of these as are tried where the environment asks for no more, evenly spread.
fn points(changes: usize) -> Vec<CrashPoint> {
    let all = (1..=changes).flat_map(|number| {
        [Side::Before, Side::After].map(|side| CrashPoint::first(side, "").nth(number))
    });
    let all: Vec<CrashPoint> = all.collect();
    if is_full() {
        return all;
    }
    // Shifted by one each time, so that both sides are tried.
    let some = (0..POINTS).map(|n| (n * all.len() / POINTS + n % 2).min(all.len() - 1));
    let some: BTreeSet<usize> = some.collect();
    some.into_iter().map(|n| all[n]).collect()
}
