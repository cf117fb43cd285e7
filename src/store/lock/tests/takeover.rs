use std::fs::File;
use std::process::Command;
use std::time::{Duration, SystemTime};

use object_store::PutPayload;

use super::acquire::{one_winner, race};
use super::forged::{
    HOUR, breaking, elsewhere, leave, memory, objects, places, refused_for, shard,
};
use super::scripted_store::ScriptedStore;
use crate::store::lock::{LockRecord, Process};
use crate::store::{LockOptions, RunLock, StoreError};

const MINUTE: Duration = Duration::from_secs(60);
const OFTEN: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_takes_over_after_the_lease() {
    let (_directory, places) = places();
    for run in places {
        leave(&run, 7, &elsewhere(HOUR, Duration::ZERO)).await;
        let _lock = one_winner(race(&run, 32).await);
        assert_eq!(objects(&run).await, ["lock/run/0000000008.json"]);
    }
}

#[tokio::test]
async fn within_its_lease_a_lock_is_respected() {
    let (_directory, places) = places();
    for run in places {
        let object = leave(&run, 1, &elsewhere(MINUTE, HOUR)).await;
        let refused = RunLock::acquire(&run, LockOptions::default()).await;
        assert_eq!(refused_for(refused.unwrap_err()), "node-17");
        assert_eq!(objects(&run).await, [object]);
    }
}

/// A heartbeat that is old by our clock, in an object that was written just now: a clock is wrong.
#[tokio::test]
async fn the_store_has_the_last_word_on_the_time() {
    let (_directory, places) = places();
    for run in places {
        let object = leave(&run, 1, &elsewhere(HOUR, MINUTE)).await;
        let refused = RunLock::acquire(&run, LockOptions::default()).await;
        assert_eq!(refused_for(refused.unwrap_err()), "node-17");
        assert_eq!(run.list("lock").await.unwrap().len(), 1);

        if let Some(path) = run.local_path() {
            let file = File::options()
                .write(true)
                .open(path.join(&object))
                .unwrap();
            file.set_modified(SystemTime::now() - HOUR).unwrap();
            let lock = RunLock::acquire(&run, LockOptions::default())
                .await
                .unwrap();
            assert_eq!(objects(&run).await, ["lock/run/0000000002.json"]);
            lock.release().await;
            assert!(!path.join("lock").exists());
        }
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_process_of_this_machine_is_replaced_at_once() {
    let (_directory, places) = places();
    for run in places {
        let mut child = Command::new("true").spawn().unwrap();
        let mut record = LockRecord::new(HOUR, chrono::Utc::now());
        record.process.pid = child.id();
        child.wait().unwrap();
        leave(&run, 1, &record).await;
        assert!(!RunLock::holders(&run).await.unwrap()[0].alive);

        let _lock = RunLock::acquire(&run, shard(1, 2)).await.unwrap();
        assert_eq!(objects(&run).await, ["lock/shard-1-of-2/0000000001.json"]);
    }
}

#[tokio::test]
async fn a_live_process_of_this_machine_is_not() {
    let run = memory();
    leave(&run, 1, &LockRecord::new(HOUR, chrono::Utc::now())).await;
    let refused = RunLock::acquire(&run, LockOptions::default()).await;
    assert_eq!(refused_for(refused.unwrap_err()), Process::this().host);
}

#[tokio::test]
async fn a_live_lock_is_broken_on_request() {
    let run = memory();
    let first = RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
    // It is waited for.
    let breaking = RunLock::acquire(&run, breaking());
    let stopping = async {
        assert!(matches!(
            first.keep_every(OFTEN).await,
            StoreError::LockLost { .. }
        ));
        first.release().await;
    };
    let (second, ()) = tokio::join!(breaking, stopping);
    let second = second.unwrap();
    assert_eq!(objects(&run).await, ["lock/run/0000000002.json"]);
    second.release().await;
    assert!(objects(&run).await.is_empty());
}

#[tokio::test]
async fn who_does_not_stop_is_waited_for_to_the_end_of_its_lease() {
    let run = memory();
    let lease = Duration::from_millis(200);
    leave(&run, 1, &elsewhere(Duration::ZERO, lease)).await;
    let told = std::cell::RefCell::new(Vec::new());
    let tell = |text| told.borrow_mut().push(text);
    let lock = RunLock::acquire_and_tell(&run, breaking(), tell)
        .await
        .unwrap();
    assert_eq!(objects(&run).await, ["lock/run/0000000002.json"]);
    let told = told.take();
    assert!(
        told.len() == 1 && told[0].contains("waiting until"),
        "{told:?}"
    );
    lock.release().await;
}

#[tokio::test]
async fn every_writer_has_a_higher_epoch() {
    let (_directory, places) = places();
    for run in places {
        for epoch in 1..4 {
            let lock = RunLock::acquire(&run, LockOptions::default())
                .await
                .unwrap();
            assert_eq!(lock.writer().await.unwrap().epoch(), epoch);
            lock.release().await;
        }
        let locks = [
            RunLock::acquire(&run, shard(1, 2)).await.unwrap(),
            RunLock::acquire(&run, shard(2, 2)).await.unwrap(),
        ];
        let (one, two) = tokio::join!(locks[0].writer(), locks[1].writer());
        let mut epochs = [one.unwrap().epoch(), two.unwrap().epoch()];
        epochs.sort_unstable();
        assert_eq!(epochs, [4, 5]);
    }
}

/// A process that was stopped for longer than its lease publishes nothing until it knows that nobody took its place.
#[tokio::test]
async fn nothing_is_published_after_a_lease_until_it_is_renewed() {
    let run = memory();
    let options = LockOptions {
        lease: Duration::from_millis(300),
        ..LockOptions::default()
    };
    let lock = RunLock::acquire(&run, options).await.unwrap();
    let writer = lock.writer().await.unwrap();
    tokio::time::sleep(options.lease).await;
    let permit = std::pin::pin!(writer.permit());
    tokio::select! {
        biased;
        _permit = permit => {
            let renewed = RunLock::holders(&run).await.unwrap().remove(0).record;
            assert!(renewed.heartbeat_at > renewed.acquired_at);
        }
        lost = lock.keep_every(OFTEN) => panic!("{lost}"),
    }
}

#[tokio::test]
async fn who_comes_to_life_again_keeps_its_lock() {
    let (store, run) = ScriptedStore::run();
    let mut other = elsewhere(HOUR, MINUTE);
    other.lease_seconds = 0.0;
    let object = leave(&run, 1, &other).await;
    // It renews its lock after it was found stale, before ours is there.
    other.heartbeat_at = chrono::Utc::now();
    other.lease_seconds = MINUTE.as_secs_f64();
    let payload = PutPayload::from(serde_json::to_vec(&other).unwrap());
    *store.before_create.lock().unwrap() = Some((run.path(&object), payload));

    let refused = RunLock::acquire(&run, LockOptions::default()).await;
    assert_eq!(refused_for(refused.unwrap_err()), "node-17");
    assert_eq!(objects(&run).await, [object]);
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_is_respected_for_a_while() {
    let (_directory, [run, _]) = places();
    run.put("lock/run/0000000001.json", "").await.unwrap();
    let refused = RunLock::acquire(&run, LockOptions::default()).await;
    assert!(matches!(refused, Err(StoreError::Locked { .. })));

    let path = run.local_path().unwrap().join("lock/run/0000000001.json");
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - HOUR).unwrap();
    RunLock::acquire(&run, LockOptions::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn all_holders_are_shown_the_living_and_the_dead() {
    let run = memory();
    let _lock = RunLock::acquire(&run, shard(2, 8)).await.unwrap();
    leave(&run, 1, &elsewhere(HOUR, MINUTE)).await;
    let holders = RunLock::holders(&run).await.unwrap();
    let shown: Vec<_> = holders
        .iter()
        .map(|holder| (holder.scope.to_string(), holder.alive))
        .collect();
    let expected = [("the whole run".into(), false), ("shard 2/8".into(), true)];
    assert_eq!(shown, expected);
}
