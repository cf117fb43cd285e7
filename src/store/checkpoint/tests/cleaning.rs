use std::fs;

use futures::FutureExt;

use super::machine::{Files, Machine, files};
use crate::schema::ROLLOUTS;
use crate::store::checkpoint::{forget, list};
use crate::store::part_name;

const NAME: &str = "0000000001-run-p00-00000";
const SEGMENT: &str = "0000000001-run-p00-00000.rows";
const LOG: &str = "0000000001-run-p00-00000.dispatches";

#[tokio::test]
async fn a_segment_that_has_landed_is_not_fetched_and_its_copy_goes_with_it() {
    let machine = Machine::new();
    let mut checkpointer = machine.checkpointer();
    machine.append(SEGMENT, b"abcdef");
    checkpointer.checkpoint().await.unwrap();
    let rollouts = part_name(ROLLOUTS, NAME);
    machine.run.put(&rollouts, "rows").await.unwrap();
    assert_eq!(machine.fetched_elsewhere().await, machine.files());
    machine.land(NAME).await;
    assert_eq!(machine.fetched_elsewhere().await, Files::new());

    // The segment is still there.
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(machine.chunks().await.len(), 2);
    machine.remove(SEGMENT);
    checkpointer.checkpoint().await.unwrap();
    assert!(machine.chunks().await.is_empty());
}

#[tokio::test]
async fn what_landed_before_a_crash_is_cleaned_up_by_the_next_process() {
    let machine = Machine::new();
    machine.append(SEGMENT, b"abcdef");
    machine.checkpointer().checkpoint().await.unwrap();
    machine.land(NAME).await;
    let other = machine.another();
    other.checkpointer().checkpoint().await.unwrap();
    assert!(machine.chunks().await.is_empty());
}

#[tokio::test]
async fn the_copy_of_a_segment_that_is_lost_stays() {
    let machine = Machine::new();
    let mut checkpointer = machine.checkpointer();
    machine.append(SEGMENT, b"abcdef");
    machine.append(LOG, b"123");
    checkpointer.checkpoint().await.unwrap();
    let copied = machine.files();
    fs::remove_dir_all(machine.run.journal_dir()).unwrap();
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(machine.fetched_elsewhere().await, copied);
    fs::create_dir(machine.run.journal_dir()).unwrap();
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(SEGMENT, b"abcdef")])
    );
}

#[tokio::test]
async fn the_copy_of_a_log_is_deleted_by_who_saw_it_go() {
    let machine = Machine::new();
    machine.append(LOG, b"123");
    machine.checkpointer().checkpoint().await.unwrap();

    let other = machine.another();
    other.append(SEGMENT, b"abc");
    other.checkpointer().checkpoint().await.unwrap();
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(LOG, b"123"), (SEGMENT, b"abc")])
    );

    let mut again = machine.checkpointer();
    machine.remove(LOG);
    again.checkpoint().await.unwrap();
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(SEGMENT, b"abc")])
    );
}

#[tokio::test]
async fn copies_of_other_processes_are_left_alone() {
    let machine = Machine::new();
    let theirs = "journal/0000000002-s2of8-p00-00000.rows/00000000000000000000";
    machine.run.put(theirs, "abc").await.unwrap();
    machine.land("0000000002-s2of8-p00-00000").await;
    machine.checkpointer().checkpoint().await.unwrap();
    assert_eq!(machine.chunks().await.len(), 1);
}

#[tokio::test]
async fn a_copy_is_forgotten_and_all_are_when_the_run_is_cleared() {
    let machine = Machine::new();
    for name in [SEGMENT, LOG, "0000000001-run-p00-00001.rows"] {
        machine.append(name, b"abcdef");
    }
    machine.checkpointer().checkpoint().await.unwrap();
    for stranger in [
        "",
        "..",
        "0000000001-run-p00-00000",
        "x/0000000001-run-p00-00000.rows",
    ] {
        forget(&machine.run, stranger).await.unwrap();
    }
    forget(&machine.run, SEGMENT).boxed().await.unwrap();
    let listed = list(&machine.run).boxed().await.unwrap();
    let names: Vec<_> = listed.iter().map(|file| &*file.file).collect();
    assert_eq!(names, [LOG, "0000000001-run-p00-00001.rows"]);
    assert!(machine.files().contains_key(SEGMENT));

    machine.run.clear().await.unwrap();
    assert!(machine.chunks().await.is_empty());
}
