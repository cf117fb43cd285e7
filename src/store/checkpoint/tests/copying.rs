use std::fs;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use tokio::sync::mpsc;

use super::faulty_store::{Fate, FaultyStore};
use super::machine::{Files, Machine, files};
use crate::call::RolloutKey;
use crate::outcome::{Outcome, OutcomeBatchBuilder, Verdict};
use crate::retry::{Failure, FailureClass};
use crate::store::checkpoint::{CheckpointedFile, Checkpointer, fetch, list};
use crate::store::{JournalFile, RunStore, SegmentWriter, StoreError};

const SEGMENT: &str = "0000000001-run-p00-00000.rows";
const LOG: &str = "0000000001-run-p00-00000.dispatches";

/// An attempt whose end nobody saw.
fn interrupted() -> RecordBatch {
    let mut builder = OutcomeBatchBuilder::new();
    let key = RolloutKey::new(1, 2, 3);
    let verdict = Verdict::Failed {
        failure: Failure::new(FailureClass::Interrupted, "nobody saw its end"),
        terminal: false,
    };
    let at = std::time::SystemTime::UNIX_EPOCH;
    builder.append(Outcome::new(key, "a", at, verdict)).unwrap();
    builder.finish().unwrap()
}

async fn sizes(run: &RunStore) -> Vec<(String, u64)> {
    let size = |file: CheckpointedFile| (file.file.clone(), file.num_bytes());
    list(run).await.unwrap().into_iter().map(size).collect()
}

#[tokio::test]
async fn what_a_journal_grows_by_is_copied_and_can_be_fetched() {
    let machine = Machine::new();
    let mut checkpointer = machine.checkpointer();
    assert_eq!(checkpointer.checkpoint().await.unwrap(), 0);
    machine.append(SEGMENT, b"abcdefghij");
    machine.append(LOG, b"123");
    machine.append("0000000001-run-p00-00000.tmp", b"not of the journal");
    machine.append("0000000002-s2of8-p00-00000.rows", b"of another process");
    assert_eq!(checkpointer.checkpoint().await.unwrap(), 13);
    assert_eq!(checkpointer.checkpoint().await.unwrap(), 0);
    machine.append(SEGMENT, b"kl");
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(SEGMENT, b"abcdefghij"), (LOG, b"123")])
    );
    assert_eq!(checkpointer.checkpoint().await.unwrap(), 2);
    let chunks = ["0", "4", "8", "10"].map(|offset| format!("{SEGMENT}/{offset:0>20}"));
    let log = format!("{LOG}/{:020}", 0);
    assert_eq!(machine.chunks().await, [&[log], &chunks[..]].concat());
    let expected = [(LOG.to_owned(), 3), (SEGMENT.to_owned(), 12)];
    assert_eq!(sizes(&machine.run).await, expected);
}

#[tokio::test]
async fn only_what_is_missing_or_shorter_is_fetched() {
    let machine = Machine::new();
    machine.append(SEGMENT, b"abcdef");
    machine.append(LOG, b"123");
    machine.checkpointer().checkpoint().await.unwrap();
    let other = machine.another();
    other.append(SEGMENT, b"abc");
    other.append(LOG, b"1234");
    let into = other.run.journal_dir();
    let wanted = fetch(&other.run, into, |_| false);
    assert!(wanted.await.unwrap().is_empty());
    let fetched = fetch(&other.run, into, |_| true).await.unwrap();
    assert_eq!(fetched, [into.join(SEGMENT)]);
    assert_eq!(other.files(), files([(SEGMENT, b"abcdef"), (LOG, b"1234")]));
    assert!(fetch(&other.run, into, |_| true).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_process_that_is_started_again_goes_on_where_the_copy_ends() {
    let machine = Machine::new();
    machine.append(SEGMENT, b"abcdef");
    machine.checkpointer().checkpoint().await.unwrap();
    machine.append(SEGMENT, b"gh");
    let mut again = machine.checkpointer();
    assert_eq!(again.checkpoint().await.unwrap(), 2);
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(SEGMENT, b"abcdefgh")])
    );
}

#[tokio::test]
async fn a_chunk_that_is_missing_ends_the_file_until_it_is_copied_again() {
    let machine = Machine::new();
    machine.append(SEGMENT, b"abcdefghijklmnop");
    machine.checkpointer().checkpoint().await.unwrap();
    let run = &machine.run;
    let gone = run.path(&format!("journal/{SEGMENT}/{:020}", 4));
    run.delete(&gone).await.unwrap();
    assert_eq!(
        machine.fetched_elsewhere().await,
        files([(SEGMENT, b"abcd")])
    );
    assert_eq!(sizes(run).await, [(SEGMENT.to_owned(), 4)]);
    // Also by chunks that are not as large as what is missing.
    let mut again = machine.checkpointer().with_chunk_bytes(6);
    again.checkpoint().await.unwrap();
    assert_eq!(machine.fetched_elsewhere().await, machine.files());
}

#[tokio::test]
async fn of_a_torn_copy_the_whole_batches_are_read() {
    let machine = Machine::new();
    let batch = interrupted();
    let directory = machine.run.journal_dir();
    let name = "0000000001-run-p00-00000".parse().unwrap();
    let mut writer = SegmentWriter::create(directory, name).unwrap();
    writer.append(&batch).unwrap();
    let mut checkpointer = machine.checkpointer().with_chunk_bytes(512);
    checkpointer.checkpoint().await.unwrap();
    writer.append(&batch).unwrap();
    checkpointer.checkpoint().await.unwrap();
    let chunks = machine.chunks().await;
    let last = machine
        .run
        .path(&format!("journal/{}", chunks.last().unwrap()));
    machine.run.delete(&last).await.unwrap();

    let other = machine.another();
    let into = other.run.journal_dir();
    fetch(&other.run, into, |_| true).await.unwrap();
    let segment = JournalFile::segments(into).unwrap().remove(0);
    let read: Vec<_> = segment.open().unwrap().read().map(Result::unwrap).collect();
    assert_eq!(read, [batch]);
}

#[tokio::test]
async fn an_answer_that_was_lost_neither_repeats_nor_cuts_off_what_was_put() {
    let store = Arc::new(FaultyStore::default());
    let machine = Machine::on(Arc::clone(&store) as _);
    let mut checkpointer = machine.checkpointer();
    checkpointer.checkpoint().await.unwrap();
    machine.append(SEGMENT, b"ab");
    store.meet(&[Fate::AnswerLost, Fate::Refused]);
    assert!(checkpointer.checkpoint().await.is_err());
    store.meet(&[]);
    machine.append(SEGMENT, b"cdefg");
    checkpointer.checkpoint().await.unwrap();
    let offsets = [0, 2, 6].map(|offset| format!("{SEGMENT}/{offset:020}"));
    assert_eq!(machine.chunks().await, offsets);
    assert_eq!(machine.fetched_elsewhere().await, machine.files());
}

#[tokio::test]
async fn a_store_that_fails_every_second_request_loses_nothing() {
    let store = Arc::new(FaultyStore::default());
    let machine = Machine::on(Arc::clone(&store) as _);
    store.meet(&[Fate::Refused, Fate::Done, Fate::AnswerLost, Fate::Done]);
    let mut checkpointer = machine.checkpointer();
    for content in [b"abcdefghi", b"jklmnopqr", b"stuvwxyz!"] {
        machine.append(SEGMENT, content);
        machine.append(LOG, content);
        checkpointer.checkpoint().await.unwrap();
        assert_eq!(machine.fetched_elsewhere().await, machine.files());
    }
    machine.remove(LOG);
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(machine.fetched_elsewhere().await, machine.files());
}

#[tokio::test]
async fn a_file_that_fails_does_not_hold_up_the_others() {
    let machine = Machine::new();
    machine.append(SEGMENT, b"abc");
    machine.append(LOG, b"123");
    // No chunk of ours is empty: where this one came from is not known.
    let foreign = format!("journal/{SEGMENT}/{:020}", 0);
    machine.run.put(&foreign, "").await.unwrap();
    let failed = machine.checkpointer().checkpoint().await;
    assert!(failed.unwrap_err().to_string().contains(&foreign));
    assert_eq!(machine.fetched_elsewhere().await, files([(LOG, b"123")]));
}

#[tokio::test]
async fn copies_are_kept_up_to_date_and_failures_told() {
    let store = Arc::new(FaultyStore::default());
    let machine = Machine::on(Arc::clone(&store) as _);
    machine.append(SEGMENT, b"abc");
    store.meet(&[Fate::Refused]);
    let mut checkpointer = machine.checkpointer();
    let (failed, mut failures) = mpsc::unbounded_channel();
    let keeping = SpawnedTask::spawn(async move {
        let on_failure = |error| _ = failed.send(error);
        let often = Duration::from_millis(1);
        checkpointer.keep(often, on_failure).await
    });
    for _ in 0..2 {
        let failure = failures.recv().await.unwrap();
        assert!(matches!(failure, StoreError::NotCheckpointed { .. }));
        let text = failure.to_string();
        assert!(text.contains("copied to memory:///sweeps/a for "), "{text}");
        assert!(text.contains("slow down"), "{text}");
    }
    store.meet(&[]);
    let healthy = Machine::on(store.inner());
    while healthy.fetched_elsewhere().await != machine.files() {
        tokio::task::yield_now().await;
    }
    drop(keeping);
}

#[tokio::test]
async fn a_local_run_is_not_copied() {
    let directory = tempfile::tempdir().unwrap();
    let run = RunStore::open(directory.path().to_str().unwrap(), None).unwrap();
    fs::create_dir(run.journal_dir()).unwrap();
    fs::write(run.journal_dir().join(SEGMENT), "abc").unwrap();
    let mut checkpointer = Checkpointer::new(run.clone(), 1).unwrap();
    assert_eq!(checkpointer.checkpoint().await.unwrap(), 0);
    assert!(list(&run).await.unwrap().is_empty());
    let into = directory.path().join("elsewhere");
    assert!(fetch(&run, &into, |_| true).await.unwrap().is_empty());
    assert!(!into.exists());
    crate::store::checkpoint::forget(&run, SEGMENT)
        .await
        .unwrap();
    assert!(run.journal_dir().join(SEGMENT).exists());
    assert_eq!(fs::read_dir(run.journal_dir()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_segment_that_lands_while_it_is_fetched_is_left_out() {
    let store = Arc::new(FaultyStore::default());
    let machine = Machine::on(Arc::clone(&store) as _);
    machine.append(SEGMENT, b"abcdefghi");
    machine.checkpointer().checkpoint().await.unwrap();
    let part = machine
        .run
        .path("attempts/0000000001-run-p00-00000.parquet");
    *store.before_read.lock().unwrap() = Some(part);
    assert_eq!(machine.fetched_elsewhere().await, Files::new());
    assert!(store.before_read.lock().unwrap().is_none());
}
