use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::{Error, PutPayload};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};

use super::forged::{elsewhere, leave, memory, objects, places, refused_for, scope, shard};
use super::scripted_store::ScriptedStore;
use crate::store::lock::{LockScope, directory};
use crate::store::{LockOptions, RunLock, RunStore, StoreError};

/// What becomes of many who take the lock at once.
pub(super) async fn race(run: &RunStore, takers: usize) -> Vec<Result<RunLock, StoreError>> {
    let start = Arc::new(Barrier::new(takers));
    let mut tasks = JoinSet::new();
    for _ in 0..takers {
        let (run, start) = (run.clone(), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            RunLock::acquire(&run, LockOptions::default()).await
        });
    }
    tasks.join_all().await
}

pub(super) fn one_winner(taken: Vec<Result<RunLock, StoreError>>) -> RunLock {
    let (winners, losers): (Vec<_>, Vec<_>) = taken.into_iter().partition(Result::is_ok);
    assert_eq!(winners.len(), 1);
    for loser in losers {
        assert!(matches!(loser, Err(StoreError::Locked { .. })), "{loser:?}");
    }
    winners.into_iter().next().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_wins() {
    let (_directory, places) = places();
    for run in places {
        let _lock = one_winner(race(&run, 32).await);
        assert_eq!(objects(&run).await, ["lock/run/0000000001.json"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_hold_it_while_many_take_it_and_give_it_back() {
    let (_directory, places) = places();
    for run in places {
        let held = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            let (run, held) = (run.clone(), Arc::clone(&held));
            tasks.spawn(async move {
                let mut turns = 0;
                while turns < 5 {
                    match RunLock::acquire(&run, LockOptions::default()).await {
                        Ok(lock) => {
                            assert!(!held.swap(true, Ordering::SeqCst));
                            yield_now().await;
                            held.store(false, Ordering::SeqCst);
                            lock.release().await;
                            turns += 1;
                        }
                        Err(StoreError::Locked { .. }) => yield_now().await,
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        tasks.join_all().await;
        assert!(objects(&run).await.is_empty());
    }
}

#[tokio::test]
async fn a_second_is_told_who_the_first_is() {
    let (_directory, places) = places();
    for run in places {
        let _first = RunLock::acquire(&run, LockOptions::default())
            .await
            .unwrap();
        let holders = RunLock::holders(&run).await.unwrap();
        let [holder] = holders.as_slice() else {
            panic!("{holders:?}")
        };
        assert!(holder.alive && holder.record.process.pid == std::process::id());

        let refused = RunLock::acquire(&run, shard(1, 2)).await.unwrap_err();
        let text = refused.to_string();
        for part in [
            holder.record.owner.as_str(),
            &holder.record.process.host,
            "--break-lock",
            "whole run",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(crate::Error::from(refused).exit_code(), 2);
    }
}

#[tokio::test]
async fn shards_of_one_count_work_side_by_side() {
    let run = memory();
    let _first = RunLock::acquire(&run, shard(1, 2)).await.unwrap();
    let _second = RunLock::acquire(&run, shard(2, 2)).await.unwrap();
    for overlapping in [shard(1, 2), shard(3, 4), scope(LockScope::Run)] {
        let refused = RunLock::acquire(&run, overlapping).await;
        assert!(matches!(refused, Err(StoreError::Locked { .. })));
    }
    let expected = [
        "lock/shard-1-of-2/0000000001.json",
        "lock/shard-2-of-2/0000000001.json",
    ];
    assert_eq!(objects(&run).await, expected);
}

#[tokio::test]
async fn a_lock_is_ours_though_the_answer_was_lost() {
    let answers = [
        Error::Generic {
            store: "scripted",
            source: "connection reset".into(),
        },
        // What the client's second try is told.
        Error::AlreadyExists {
            path: "lock".to_owned(),
            source: "412".into(),
        },
    ];
    for answer in answers {
        let (store, run) = ScriptedStore::run();
        *store.answer_of_create.lock().unwrap() = Some(answer);
        let lock = RunLock::acquire(&run, LockOptions::default())
            .await
            .unwrap();
        assert_eq!(objects(&run).await, ["lock/run/0000000001.json"]);
        lock.release().await;
        assert!(objects(&run).await.is_empty());
    }
}

#[tokio::test]
async fn who_comes_between_look_and_creation_is_given_way() {
    let (store, run) = ScriptedStore::run();
    let object = directory::object(LockScope::Shard { index: 1, count: 2 }, 1);
    let other = elsewhere(Duration::ZERO, Duration::from_secs(60));
    let payload = PutPayload::from(serde_json::to_vec(&other).unwrap());
    *store.before_create.lock().unwrap() = Some((run.path(&object), payload));

    let refused = RunLock::acquire(&run, LockOptions::default()).await;
    assert_eq!(refused_for(refused.unwrap_err()), "node-17");
    assert_eq!(objects(&run).await, [object]);
}

#[tokio::test]
async fn a_store_that_takes_no_lock_is_no_lock() {
    let (store, run) = ScriptedStore::run();
    store.is_read_only.store(true, Ordering::SeqCst);
    let refused = RunLock::acquire(&run, LockOptions::default()).await;
    assert!(
        matches!(refused, Err(StoreError::Object { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn release_leaves_nothing() {
    let (_directory, places) = places();
    for run in places {
        let lock = RunLock::acquire(&run, LockOptions::default())
            .await
            .unwrap();
        lock.release().await;
        assert!(run.list("").await.unwrap().is_empty());
        if let Some(path) = run.local_path() {
            assert!(path.is_dir() && !path.join("lock").exists());
        }
    }
}

#[tokio::test]
async fn an_overwrite_leaves_the_lock() {
    let (_directory, places) = places();
    for run in places {
        let lock = RunLock::acquire(&run, LockOptions::default())
            .await
            .unwrap();
        run.put("run.json", "{}").await.unwrap();
        run.clear().await.unwrap();
        assert!(run.get("run.json").await.unwrap().is_none());
        assert_eq!(objects(&run).await.len(), 1);
        lock.release().await;
    }
}

#[tokio::test]
async fn a_lock_of_another_is_not_released() {
    let run = memory();
    let lock = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    let other = elsewhere(Duration::ZERO, Duration::from_secs(60));
    let object = leave(&run, 1, &other).await;
    lock.release().await;
    assert_eq!(objects(&run).await, [object]);
}
