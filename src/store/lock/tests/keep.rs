use std::sync::atomic::Ordering;
use std::time::Duration;

use super::forged::{breaking, elsewhere, leave, memory, objects};
use super::scripted_store::ScriptedStore;
use crate::store::lock::{LockScope, directory};
use crate::store::{LockOptions, RunLock, StoreError};

const OFTEN: Duration = Duration::from_millis(1);

/// Why the lock was lost.
fn why(error: StoreError) -> String {
    match error {
        StoreError::LockLost { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_lock_is_renewed_until_it_is_released() {
    let (store, run) = ScriptedStore::run();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    let before = RunLock::holders(&run).await.unwrap().remove(0).record;
    tokio::select! {
        lost = lock.keep_every(OFTEN) => panic!("{lost}"),
        () = async {
            store.overwritten.notified().await;
            store.overwritten.notified().await;
        } => {}
    }
    let after = RunLock::holders(&run).await.unwrap().remove(0).record;
    assert!(after.heartbeat_at > before.heartbeat_at);
    assert_eq!(after.owner, before.owner);
    assert_eq!(after.acquired_at, before.acquired_at);
}

#[tokio::test]
async fn a_takeover_is_noticed() {
    let run = memory();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    let losing = async {
        let lost = lock.keep_every(OFTEN).await;
        lock.release().await;
        lost
    };
    let (taker, lost) = tokio::join!(RunLock::acquire(&run, breaking()), losing);
    let taker = taker.unwrap();
    let holder = RunLock::holders(&run).await.unwrap().remove(0);
    assert!(why(lost).contains(&holder.record.owner));
    assert!(taker.renew().await.unwrap().is_none());
}

/// The deletion of the displaced lock and its renewal have crossed.
#[tokio::test]
async fn a_takeover_is_noticed_though_the_lock_came_back() {
    let run = memory();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    let renewed = run.get("lock/run/0000000001.json").await.unwrap().unwrap();
    let stopping = async {
        while objects(&run).await.len() < 2 {
            tokio::task::yield_now().await;
        }
        run.delete(&run.path("lock/run/0000000001.json"))
            .await
            .unwrap();
    };
    let (taker, ()) = tokio::join!(RunLock::acquire(&run, breaking()), stopping);
    let taker = taker.unwrap();
    run.put("lock/run/0000000001.json", renewed).await.unwrap();

    assert!(taker.renew().await.unwrap().is_none());
    assert!(why(lock.keep_every(OFTEN).await).contains("taken over"));
    lock.release().await;
    assert_eq!(objects(&run).await, ["lock/run/0000000002.json"]);
}

#[tokio::test]
async fn a_lock_that_was_deleted_or_replaced_is_lost() {
    let run = memory();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    run.delete(&run.path("lock/run/0000000001.json"))
        .await
        .unwrap();
    let lost = lock.keep_every(OFTEN).await;
    assert_eq!(crate::Error::from(lost).exit_code(), 1);
    assert!(objects(&run).await.is_empty());

    leave(&run, 1, &elsewhere(Duration::ZERO, OFTEN)).await;
    assert!(why(lock.keep_every(OFTEN).await).contains("gone"));
}

/// One that is going to give way when it sees ours.
#[tokio::test]
async fn a_contender_is_no_takeover() {
    let run = memory();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    let other = elsewhere(Duration::ZERO, Duration::from_secs(60));
    let object = directory::object(LockScope::Shard { index: 1, count: 2 }, 1);
    directory::create(&run, &object, &other).await.unwrap();
    assert!(lock.renew().await.unwrap().is_none());
}

/// A process that was stopped in the middle of a renewal, while its lock was taken over and given
/// back, and taken by one who never saw it.
#[tokio::test]
async fn of_two_settled_locks_the_later_stays() {
    for (is_later, stays) in [(true, false), (false, true)] {
        let run = memory();
        let lock = RunLock::acquire(&run, LockOptions::default())
            .await
            .unwrap();
        let ago = Duration::from_secs(if is_later { 0 } else { 60 });
        let mut other = elsewhere(ago, Duration::from_secs(60));
        other.heartbeat_at += Duration::from_secs(1);
        leave(&run, 2, &other).await;
        assert_eq!(lock.renew().await.unwrap().is_none(), stays);
    }
}

#[tokio::test]
async fn a_store_that_fails_for_a_moment_costs_nothing() {
    let (store, run) = ScriptedStore::run();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    store.is_read_only.store(true, Ordering::SeqCst);
    tokio::select! {
        lost = lock.keep_every(OFTEN) => panic!("{lost}"),
        () = async {
            store.refused.notified().await;
            store.refused.notified().await;
            store.is_read_only.store(false, Ordering::SeqCst);
            store.overwritten.notified().await;
        } => {}
    }
}

#[tokio::test]
async fn a_store_that_fails_for_the_whole_lease_costs_the_lock() {
    let (store, run) = ScriptedStore::run();
    let options = LockOptions {
        lease: Duration::from_millis(20),
        ..LockOptions::default()
    };
    let lock = RunLock::acquire(&run, options).await.unwrap();
    store.is_read_only.store(true, Ordering::SeqCst);
    let why = why(lock.keep().await);
    assert!(why.contains("the disk is full"), "{why}");
}
